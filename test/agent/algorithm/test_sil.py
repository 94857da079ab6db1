"""Self-imitation: policies of probability 3/4 and 1/4, values from a table, gamma one half."""

import math

import numpy as np
import pytest
import torch

from slm_lab.errors import SpecError
from slm_lab.spec.schema import read_spec
from slm_lab.types import Batch, Step

LOGITS = torch.tensor([math.log(3.0), 0.0])  # probabilities 3/4 and 1/4
BOTH = pytest.mark.parametrize("name", ["SIL", "PPOSIL"])


def make(lab, name="SIL", num_envs=1, memory=None, **keys):
    return lab.agent(name, memory=memory, num_envs=num_envs, algorithm_={"gamma": 0.5, **keys})


def live(agent, rewards, *, terminated=(), truncated=()):
    """Rows of one env with these rewards, the action counting them; the episode ends at the rows named."""
    obs = np.ones((1, 2), np.float32)
    for t, reward in enumerate(rewards):
        ends = np.array([t in terminated]), np.array([t in truncated])
        agent.remember(obs, np.array([t]), Step(obs, obs, np.array([reward]), *ends))


def to_imitate(agent):
    """The action of each row to imitate, and its return."""
    held = agent.algorithm.to_imitate
    if not held.size:
        return {}
    rows = held.all()
    return dict(zip(rows.action.tolist(), rows.extras["return"].tolist(), strict=True))


@BOTH
def test_only_rows_whose_return_exceeds_their_value_are_imitated(lab, name):
    agent = make(lab, name, sil_policy_loss_coef=2.0, sil_val_loss_coef=0.5)
    batch = Batch(torch.zeros(2, 1), torch.tensor([1, 0]), None, None, None, extras={"return": torch.tensor([7.0, 1])})
    batch.weight = torch.tensor([0.5, 1.0])
    logits, value = LOGITS.clone().requires_grad_(), torch.tensor([3.0, 3.0], requires_grad=True)
    out = logits.expand(2, 2), value
    loss, info = agent.algorithm.imitation_loss(lambda obs: out, None, batch, {})
    loss.backward()
    assert info["errors"].tolist() == [4, 0]  # (R - V)+: the priorities
    assert info["policy_loss"].item() == pytest.approx(-0.5 * 4 * math.log(0.25) / 2)
    assert info["value_loss"].item() == pytest.approx(0.5 * 0.5 * 4**2 / 2)
    assert loss.item() == pytest.approx(2 * info["policy_loss"].item() + 0.5 * info["value_loss"].item())
    # the policy loss leaves the value alone; the value loss pulls it up where the return was higher
    assert value.grad.tolist() == [pytest.approx(-0.5 * 0.5 * 4 / 2), 0]
    pull = 2 * 0.5 * 4 / 2  # times d log pi(1) / d logits = (-3/4, 3/4)
    assert logits.grad.tolist() == pytest.approx([0.75 * pull, -0.75 * pull])


@BOTH
def test_rows_are_kept_with_the_returns_of_their_whole_episode(lab, name):
    agent = make(lab, name)
    live(agent, [1, 2, 4])
    assert to_imitate(agent) == {}
    live(agent, [8, 1], terminated=[0])  # and a row of the next episode, which is not complete
    assert agent.algorithm.to_imitate.all().extras["return"].tolist() == [1 + 1 + 1 + 1, 2 + 2 + 2, 4 + 4, 8]


def test_the_return_of_a_truncated_episode_goes_on_with_the_value_of_its_last_observation(lab):
    agent = make(lab)
    agent.algorithm.learner.net = lambda obs: (None, 16 * obs[:, 0])
    live(agent, [1, 2], truncated=[1])
    assert to_imitate(agent) == {0: 1 + (2 + 8) / 2, 1: 2 + 8}


def test_episodes_that_outlast_a_learn_round_are_whole(lab):
    agent = make(lab, memory="OnPolicyBatchReplay", training_frequency=2)
    life = lab.Life(1)
    life.go_on(agent, 60)
    assert agent.algorithm.learner.opt_step == 30
    held, open_rows = agent.algorithm.to_imitate, agent.algorithm.episodes
    assert held.size + open_rows.size == 60
    assert held.ring.episodes > 1
    batch = held.all()
    returns, reward, last = batch.extras["return"], batch.reward, batch.discount == 0
    inside = ~last[:-1]
    torch.testing.assert_close(returns[:-1][inside], (reward[:-1] + 0.5 * returns[1:])[inside])


def test_rows_of_several_envs_are_kept_episode_by_episode(lab):
    agent = make(lab, num_envs=2)
    obs = np.zeros((2, 2), np.float32)
    for t, ends in enumerate([[False, False], [False, True], [True, False]]):
        step = Step(obs, obs, np.array([1.0, 10.0]), np.array(ends), np.zeros(2, bool))
        agent.remember(obs, np.array([t, t]), step)
    assert agent.algorithm.to_imitate.all().extras["return"].tolist() == [15, 10, 1.75, 1.5, 1]
    assert agent.algorithm.episodes.size == 1


@BOTH
def test_batches_updates_and_priorities_are_as_told(lab, name):
    keys = {"time_horizon": 50} if name == "PPOSIL" else {"training_frequency": 2}
    memory = {"name": "PrioritizedReplay", "batch_size": 8, "max_size": 100}
    agent = make(lab, name, training_iter=3, training_batch_iter=2, sil_memory=memory, **keys)
    told = []
    agent.algorithm.to_imitate.update_priorities = lambda ids, errors: told.append((len(ids), errors.min().item() >= 0))
    lab.Life(1).go_on(agent, 60)
    rounds = agent.algorithm.imitator.opt_step // 6
    assert rounds > 0
    assert told == [(8, True)] * 3 * rounds
    assert agent.algorithm.opt_step == agent.algorithm.learner.opt_step + 6 * rounds


def test_imitation_raises_the_chance_of_an_action_that_went_well(lab):
    agent = make(lab, training_frequency=1, sil_memory={"name": "Replay", "batch_size": 16})
    obs = np.ones((1, 2), np.float32)
    for action, reward in ((0, -1.0), (1, 5.0)) * 4:
        agent.remember(obs, np.array([action]), Step(obs, obs, np.array([reward]), np.array([True]), np.array([False])))

    def chance():
        return torch.softmax(agent.algorithm.learner.net(torch.from_numpy(obs))[0], -1)[0, 1].item()

    before = chance()
    for _ in range(20):
        agent.algorithm.imitate(0)
    assert chance() > before + 0.05


def test_slm_labs_keys_for_the_rows_to_imitate_are_read(lab):
    keys = {"sil_replay_name": "Replay", "batch_size": 32, "max_size": 10_000, "use_cer": True}
    agent = lab.spec("SIL", "OnPolicyReplay", memory_=keys).agent
    assert agent.memory.model_dump() == {"name": "OnPolicyReplay", "frame_stack": 1}
    own = agent.algorithm.sil_memory
    assert (own.name, own.batch_size, own.max_size, own.use_cer) == ("Replay", 32, 10_000, True)


@pytest.mark.parametrize("keys", [{"storage": "disk"}, {"n_step": 3}])
def test_rows_to_imitate_are_in_ram_and_single_steps(lab, keys):
    with pytest.raises(ValueError, match="leave out storage and n_step"):
        lab.spec("SIL", algorithm_={"sil_memory": {"name": "Replay", **keys}})


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"name": "Replay", "alpha": 0.5}, "agent.algorithm.sil_memory.alpha: no such key"),
        (
            {"name": "Replay", "max_sise": 5},
            "agent.algorithm.sil_memory.max_sise: no such key; did you mean 'max_size'?",
        ),
        ({"name": "OnPolicyReplay"}, "'OnPolicyReplay' cannot hold rows to imitate; use PrioritizedReplay or Replay"),
        ({"max_size": 50}, "agent.algorithm.sil_memory.name: missing"),
    ],
)
def test_mistakes_in_the_block_of_rows_to_imitate_are_told_at_their_place(lab, block, told):
    with pytest.raises(SpecError) as problem:
        lab.spec("SIL", algorithm_={"sil_memory": block})
    assert told in str(problem.value)


def test_a_saved_spec_keeps_the_block_of_rows_to_imitate(lab):
    spec = lab.spec("PPOSIL", algorithm_={"sil_memory": {"name": "PrioritizedReplay", "alpha": 0.25}})
    assert read_spec(spec.to_tree(), spec.name) == spec
