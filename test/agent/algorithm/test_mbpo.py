"""Imagined rows: where they come from, where they end, how they are mixed with real ones, how all is saved."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.agent import Agent, check_agent
from slm_lab.agent.algorithm.mbpo import Mixture, joined
from slm_lab.agent.memory import make_memory
from slm_lab.errors import SpecError
from slm_lab.spec.schema import read_spec

PLANE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
PUSH = spaces.Box(-2, 2, (1,), np.float32)


def spec_of(lab, imagined=None, algorithm="MBPO", **keys):
    tree = lab.spec(algorithm, algorithm_=keys).to_tree()
    if imagined is not None:
        tree["agent"]["imagined_memory"] = imagined
    return read_spec(tree, "test")


def agent_of(lab, seed=0, action_space=PUSH, imagined=None, **keys):
    imagined = imagined or {"name": "Replay", "max_size": 500, "batch_size": 20}
    return Agent(spec_of(lab, imagined, **keys), PLANE, action_space, seed)


def ending(agent, when):
    """Let the model move all by (1, 0), reward 7, and end where `when(obs)`."""

    def draw(obs, action, rng):
        return obs + torch.tensor([1.0, 0.0]), torch.full((len(obs),), 7.0), when(obs)

    agent.algorithm.dynamics.draw = draw


def schedule(length):
    return {"name": "no_decay", "start_val": length}


# imagining


@pytest.mark.parametrize("action_space", [PUSH, spaces.Discrete(3, start=1)])
def test_rollouts_begin_at_real_rows_and_follow_the_model(lab, action_space):
    agent = agent_of(lab, action_space=action_space, rollout_length_spec=schedule(3))
    ending(agent, lambda obs: torch.zeros(len(obs), dtype=torch.bool))
    agent.algorithm.imagine(np.array([[0, 5], [10, 6]], np.float32), 0)
    rows = agent.algorithm.imagined.all()
    assert rows.obs.tolist() == [[0, 5], [10, 6], [1, 5], [11, 6], [2, 5], [12, 6]]
    assert (rows.next_obs - rows.obs).tolist() == [[1, 0]] * 6
    assert rows.reward.tolist() == [7] * 6
    assert rows.discount.tolist() == pytest.approx([0.99] * 6)
    assert all(action_space.contains(action.astype(action_space.dtype)) for action in rows.action.numpy())


def test_none_is_imagined_after_a_termination(lab):
    agent = agent_of(lab, rollout_length_spec=schedule(5))
    ending(agent, lambda obs: obs[:, 0] >= 1)
    agent.algorithm.imagine(np.array([[0, 5], [1, 6]], np.float32), 0)
    rows = agent.algorithm.imagined.all()
    assert rows.obs.tolist() == [[0, 5], [1, 6], [1, 5]]
    assert rows.discount.tolist() == pytest.approx([0.99, 0, 0])


def test_rollouts_grow_by_their_schedule(lab):
    grows = {"name": "linear_decay", "start_val": 1, "end_val": 3, "start_step": 0, "end_step": 100}
    agent = agent_of(lab, rollout_length_spec=grows)
    ending(agent, lambda obs: torch.zeros(len(obs), dtype=torch.bool))
    sizes = []
    for frame in (0, 50, 100):
        agent.algorithm.imagine(np.zeros((2, 2), np.float32), frame)
        sizes.append(agent.algorithm.imagined.size)
    assert np.diff([0, *sizes]).tolist() == [2, 4, 6]


def test_the_model_is_fitted_at_its_own_frequency_and_imagines_as_many_rollouts(lab):
    agent = agent_of(lab, model_training_frequency=20, rollouts=8)
    fits = []
    fit = agent.algorithm.dynamics.fit
    agent.algorithm.dynamics.fit = lambda memory, frame: fits.append(frame) or fit(memory, frame)
    lab.Life().go_on(agent, 25)
    assert fits == [2, 20, 40]
    assert agent.algorithm.imagined.seen == 24
    assert agent.algorithm.opt_step == 50
    assert agent.algorithm.imagined.all().next_obs.isfinite().all()


# batches


def filled(value, rows=30, **keys):
    memory = make_memory({"name": "Replay", "batch_size": 20, **keys}, PLANE, PUSH)
    ones = np.full((rows, 2), value, np.float32)
    ends = np.zeros(rows, bool)
    told = {"obs": ones, "action": ones[:, :1], "reward": ones[:, 0], "next_obs": ones}
    memory.add_rows({**told, "terminated": ends, "truncated": ends}, ordered=False)
    return memory


@pytest.mark.parametrize(("ratio", "real"), [(0.0, 0), (0.05, 1), (0.5, 10), (1.0, 20)])
def test_a_batch_has_its_share_of_real_rows(ratio, real):
    batch = Mixture(filled(-1), filled(1), ratio).sample()
    assert len(batch.reward) == 20
    assert (batch.reward > 0).sum() == real
    assert batch.obs.shape == batch.next_obs.shape == (20, 2)


def test_errors_go_to_the_memory_that_their_rows_are_from():
    told = {}
    memories = [filled(-1), filled(1)]
    for name, memory in zip(("imagined", "real"), memories, strict=True):
        memory.update_priorities = lambda ids, errors, name=name: told.update({name: (ids, errors)})
    mixture = Mixture(*memories, 0.25)
    batch = mixture.sample()
    mixture.update_priorities(batch.ids, batch.reward)
    assert told["imagined"][1].tolist() == [-1] * 15
    assert told["real"][1].tolist() == [1] * 5
    assert torch.equal(told["real"][0], batch.ids[15:])


def test_joined_rows_keep_their_order():
    assert joined([filled(2).sample(3), filled(5).sample(2)]).reward.tolist() == [2, 2, 2, 5, 5]


# resuming


def test_a_resumed_agent_goes_on_exactly(lab):
    imagined = {"name": "PrioritizedReplay", "max_size": 500, "batch_size": 20}
    life, agent = lab.Life(), agent_of(lab, imagined=imagined)
    life.go_on(agent, 33)
    other = agent_of(lab, seed=5, imagined=imagined)
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    lives = life, copy.deepcopy(life)
    actions = [one.go_on(each, 30) for one, each in zip(lives, (agent, other), strict=True)]
    assert np.array_equal(*actions)
    for one, again in zip(agent.algorithm.learners, other.algorithm.learners, strict=True):
        assert all(torch.equal(a.flat, b.flat) for a, b in zip(one.groups, again.groups, strict=True))
        assert all(torch.isfinite(group.flat).all() for group in one.groups)
    assert agent.algorithm.imagined.seen == other.algorithm.imagined.seen


# what fits


def test_what_does_not_fit_is_told_by_its_path(lab):
    def mistakes(obs_space=PLANE, **keys):
        return {mistake.path for mistake in check_agent(spec_of(lab, **keys), obs_space, PUSH)}

    assert mistakes() == set()
    assert mistakes(spaces.Discrete(3)) == {"agent.algorithm.name", "agent.memory.target"}
    assert mistakes(imagined={"name": "OnPolicyReplay"}) == {"agent.imagined_memory.name"}
    assert mistakes(imagined={"name": "Replay", "n_step": 3}) == {"agent.imagined_memory"}


def test_the_memory_of_imagined_rows_has_a_default_and_is_refused_elsewhere(lab):
    assert spec_of(lab).agent.imagined_memory.name == "Replay"
    with pytest.raises(SpecError, match=r"agent\.imagined_memory: MPC imagines no rows: leave it out"):
        spec_of(lab, {"name": "Replay"}, "MPC")
    with pytest.raises(SpecError, match=r"agent\.imagined_memory\.max_sise: no such key; did you mean 'max_size'"):
        spec_of(lab, {"name": "Replay", "max_sise": 3})
