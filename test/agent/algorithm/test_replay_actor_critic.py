"""SAC, TD3 and DDPG: their losses by hand, and what they share."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.learner import ERRORS
from slm_lab.types import Batch

REACH = spaces.Box(-2, 2, (1,), np.float32)
ENTROPY_AT_ZERO = 0.5 * math.log(2 * math.pi) + math.log(2)  # minus log-prob of the middle of [-2, 2], deviation 1
NAMES = ["SAC", "TD3", "DDPG"]


def batch(action, noise=0.0, next_noise=0.0):
    """Two rows, the second one terminated and of double weight."""
    return Batch(
        obs=torch.zeros(2, 2),
        action=action,
        reward=torch.tensor([1.0, 2.0]),
        next_obs=torch.ones(2, 2),
        discount=torch.tensor([0.5, 0.0]),
        weight=torch.tensor([1.0, 2.0]),
        extras={"noise": torch.full((2, 1), noise), "next_noise": torch.full((2, 1), next_noise)},
    )


def critic_loss(agent, q, next_q, rows):
    """With critics that say `q` of what was done, and targets that say next_q(action) of what follows."""
    loss, info = agent.algorithm.critic_loss(
        lambda obs, action: torch.tensor([q, q]), lambda obs, action=None: next_q(action), rows, {}
    )
    return loss.item(), info[ERRORS].tolist()


def learnt(agent):
    return [group.flat.clone() for learner in agent.algorithm.learners for group in learner.groups]


# losses


def test_sac_wants_the_lower_value_and_the_entropy_of_what_follows(lab):
    agent = lab.agent("SAC", action_space=REACH)
    agent.algorithm.actor_as_seen = lambda obs: (torch.zeros(2, 2), torch.tensor(math.log(0.5)))
    loss, errors = critic_loss(agent, [1.0, 3.0], lambda action: torch.tensor([[4.0, 8.0], [9.0, 9.0]]), batch(REACH))
    wanted = 1 + 0.5 * (4 + 0.5 * ENTROPY_AT_ZERO)
    assert errors == pytest.approx([(abs(wanted - 1) + abs(wanted - 3)) / 2, 1])
    assert loss == pytest.approx(((wanted - 1) ** 2 + (wanted - 3) ** 2 + 2 * (1 + 1)) / 2)


def test_sac_over_discrete_actions_takes_the_exact_mean(lab):
    agent = lab.agent("SAC")
    logits = torch.tensor([[0.0, math.log(3)]] * 2)  # a quarter, three quarters
    agent.algorithm.actor_as_seen = lambda obs: (logits, torch.tensor(0.0))
    by_critic = torch.tensor([[[4.0, 8.0], [0.0, 16.0]]] * 2)  # the lower of each action: 0 and 8
    loss, errors = critic_loss(agent, [1.0, 1.0], lambda action: by_critic, batch(torch.tensor([0, 1])))
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    wanted = 1 + 0.5 * (6 + entropy)
    assert errors == pytest.approx([wanted - 1, 1])
    assert loss == pytest.approx((2 * (wanted - 1) ** 2 + 2 * 2) / 2)


def test_critics_may_agree_on_their_mean(lab):
    boxed = lab.agent("SAC", action_space=REACH, algorithm_={"critics_agree": "mean"})
    boxed.algorithm.actor_as_seen = lambda obs: (torch.zeros(2, 2), torch.tensor(-math.inf))
    _, errors = critic_loss(boxed, [0.0, 0.0], lambda action: torch.tensor([[4.0, 8.0], [9.0, 9.0]]), batch(REACH))
    assert errors == pytest.approx([1 + 0.5 * 6, 2])
    classes = lab.agent("SAC", algorithm_={"critics_agree": "mean"})
    classes.algorithm.actor_as_seen = lambda obs: (torch.zeros(2, 2), torch.tensor(-math.inf))
    by_critic = torch.tensor([[[4.0, 8.0], [0.0, 16.0]]] * 2)  # 2 and 12, each as likely
    _, errors = critic_loss(classes, [0.0, 0.0], lambda action: by_critic, batch(torch.tensor([0, 1])))
    assert errors == pytest.approx([1 + 0.5 * 7, 2])


def test_sacs_actor_climbs_value_and_entropy(lab):
    agent = lab.agent("SAC", action_space=REACH, algorithm_={"target_entropy": 1.0})
    out = torch.zeros(2, 2, requires_grad=True)
    log_alpha = torch.tensor(math.log(0.5), requires_grad=True)
    agent.algorithm.critics_as_seen = lambda obs, action: torch.cat([3 * action, 3 * action + 1], -1)
    loss, info = agent.algorithm.actor_loss(lambda obs: (out, log_alpha), None, batch(REACH), {})
    assert info["loss"].item() == pytest.approx(-0.5 * ENTROPY_AT_ZERO)
    assert info["entropy"].item() == pytest.approx(ENTROPY_AT_ZERO)
    loss.backward()
    # d(3 * 2 tanh(mean)) = 6; the log of the deviation adds alpha * 1 to the entropy; a mean over two rows
    assert out.grad.tolist() == [pytest.approx([-3, -0.25])] * 2
    assert log_alpha.grad.item() == pytest.approx(ENTROPY_AT_ZERO - 1)


def test_alpha_rises_below_the_target_entropy_but_not_beyond_its_bound(lab):
    for target, bound, sign in ((9.0, None, 1), (9.0, 0.5, 1), (9.0, 0.0, 0), (-9.0, 0.0, -1)):
        keys = {"target_entropy": target, "log_alpha_max": bound}
        agent = lab.agent("SAC", action_space=REACH, algorithm_=keys)
        log_alpha = torch.tensor(0.0, requires_grad=True)
        loss, _ = agent.algorithm.actor_loss(lambda obs, p=log_alpha: (torch.zeros(2, 2), p), None, batch(REACH), {})
        loss.backward()
        assert np.sign(-log_alpha.grad.item()) == sign


@pytest.mark.parametrize(
    ("alpha", "bound", "start"), [(1.0, None, 0), (1.0, 1.0, 0), (1.0, -3.0, -3), (0.1, None, -2.3026), (0.1, -3, -3)]
)
def test_the_temperature_starts_as_told_or_at_its_bound(lab, alpha, bound, start):
    agent = lab.agent("SAC", algorithm_={"alpha_init": alpha, "log_alpha_max": bound})
    assert agent.algorithm.actor.net.temperature.log_alpha.item() == pytest.approx(start, abs=1e-4)


def test_the_target_entropy_is_the_same_policy_in_any_unit(lab):
    one, two = (lab.agent("SAC", action_space=spaces.Box(-high, high, (3,))).algorithm for high in (1, 2))
    assert one.target_entropy == pytest.approx(-3)
    assert two.target_entropy == pytest.approx(-3 + 3 * math.log(2))
    assert lab.agent("SAC").algorithm.target_entropy == pytest.approx(0.5 * math.log(2))


def test_td3_wants_the_lower_value_of_an_action_near_the_targets(lab):
    agent = lab.agent("TD3", action_space=REACH)
    agent.algorithm.actor.target = lambda obs: torch.zeros(2, 1)
    values = lambda action: torch.cat([10 * action, 10 * action + 1], -1)  # noqa: E731
    # noise of 0.2 * 1 half ranges: the action is 0.4; clipped at 0.5 half ranges: 1
    assert critic_loss(agent, [0.0, 0.0], values, batch(REACH, next_noise=1.0))[1] == pytest.approx([1 + 2, 2])
    assert critic_loss(agent, [0.0, 0.0], values, batch(REACH, next_noise=9.0))[1] == pytest.approx([1 + 5, 2])


def test_ddpg_wants_the_value_of_the_targets_own_action(lab):
    agent = lab.agent("DDPG", action_space=REACH)
    agent.algorithm.actor.target = lambda obs: torch.full((2, 1), math.atanh(0.5))
    assert critic_loss(agent, [0.0], lambda action: 10 * action, batch(REACH, next_noise=1.0))[1] == [1 + 5, 2]


@pytest.mark.parametrize("name", ["TD3", "DDPG"])
def test_a_deterministic_actor_climbs_the_first_critic(lab, name):
    agent = lab.agent(name, action_space=REACH)
    out = torch.zeros(2, 1, requires_grad=True)
    agent.algorithm.critics_as_seen = lambda obs, action: torch.cat([3 * action, -action], -1)
    agent.algorithm.actor_loss(lambda obs: out, None, batch(REACH), {})[0].backward()
    assert out.grad.flatten().tolist() == [-3, -3]


# what they share


@pytest.mark.parametrize("name", NAMES)
def test_the_actors_step_leaves_no_gradient_in_the_critics_nor_the_critics_in_the_actor(lab, name):
    agent = lab.agent(name, action_space=REACH)
    lab.Life().go_on(agent, 10)
    algorithm = agent.algorithm
    rows = agent.memory.sample()
    algorithm.add_noise(rows)
    for mover, other in ((algorithm.actor, algorithm.learner), (algorithm.learner, algorithm.actor)):
        for group in other.groups:
            group.flat.grad.zero_()
        still, moving = other.groups[0].flat.clone(), mover.groups[0].flat.clone()
        mover.step(rows, 20)
        assert all(not group.flat.grad.any() for group in other.groups)
        assert torch.equal(other.groups[0].flat, still)
        assert not torch.equal(mover.groups[0].flat, moving)


@pytest.mark.parametrize("name", NAMES)
def test_critics_and_actor_see_each_other_as_they_are_now(lab, name):
    agent = lab.agent(name, action_space=REACH)
    lab.Life().go_on(agent, 20)
    other = lab.agent(name, action_space=REACH, seed=5)
    other.load_state_dict(agent.state_dict())
    for algorithm in (agent.algorithm, other.algorithm):
        pairs = ((algorithm.critics_as_seen, algorithm.learner.net), (algorithm.actor_as_seen, algorithm.actor.net))
        for seen, net in pairs:
            for mine, own in zip(seen.parameters(), net.parameters(), strict=True):
                assert torch.equal(mine, own)
                assert not mine.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_training_begins_with_random_actions_and_evaluations_never_do(lab, name):
    agent = lab.agent(name, action_space=REACH, algorithm_={"training_start_step": 10})
    obs = np.zeros((1000, 2), np.float32)
    best = agent.act(obs, 0, explore=False)
    assert len(np.unique(best)) == 1
    drawn = agent.act(obs, 9)
    assert drawn.dtype == np.float32
    assert np.histogram(drawn, bins=4, range=(-2, 2))[0].min() > 200  # uniform
    assert (agent.act(obs, 10, explore=False) == best).all()
    assert np.abs(agent.act(obs, 10)).max() <= 2
    assert agent.memory.ready(9) is False


@pytest.mark.parametrize("name", NAMES)
def test_the_actor_waits_for_its_turn(lab, name):
    algorithm = {"policy_delay": 3, "training_iter": 2}
    agent = lab.agent(name, action_space=REACH, algorithm_=algorithm, memory_={"batch_size": 2})
    lab.Life().go_on(agent, 4)  # 8 frames, 2 updates each
    assert agent.algorithm.opt_step == 16
    assert agent.algorithm.actor.opt_step == 5


def test_td3s_targets_wait_with_the_actor_and_sacs_do_not(lab):
    for name, waits in (("TD3", True), ("SAC", False)):
        agent = lab.agent(name, action_space=REACH, algorithm_={"policy_delay": 100}, memory_={"batch_size": 2})
        before = agent.algorithm.learner.groups[0].target.clone()
        lab.Life().go_on(agent, 4)
        assert torch.equal(before, agent.algorithm.learner.groups[0].target) == waits


def test_a_critic_sees_actions_scaled_to_one(lab):
    wide, narrow = (lab.agent("SAC", action_space=spaces.Box(-high, high, (1,))).algorithm for high in (2, 1))
    obs, action = torch.randn(5, 2), torch.rand(5, 1)
    assert torch.equal(wide.learner.net(obs, 2 * action), narrow.learner.net(obs, action))


def test_discrete_actions_count_from_the_start_of_the_space(lab):
    net = lab.agent("SAC", action_space=spaces.Discrete(3, start=5)).algorithm.learner.net
    obs = torch.randn(3, 2)
    assert torch.equal(net(obs, torch.tensor([5, 6, 7])), net(obs)[torch.arange(3), :, torch.arange(3)])


def test_a_checkpoint_to_act_with_holds_the_actor_alone(lab):
    agent, other = (lab.agent("SAC", action_space=REACH, seed=seed) for seed in (0, 1))
    other.algorithm.load_policy_state(agent.algorithm.policy_state())
    obs = lab.Life(9).obs
    assert (agent.act(obs, 0, explore=False) == other.act(obs, 0, explore=False)).all()
    assert not torch.equal(learnt(agent)[0], learnt(other)[0])


def test_distributions_of_other_spaces_are_refused(lab):
    check = lab.agent("SAC").algorithm.check
    for pdtype, space, use in (
        ("Normal", spaces.Discrete(2), "Discrete actions; use 'default' or 'Categorical' or 'GumbelSoftmax'"),
        ("GumbelSoftmax", REACH, "Box actions; use 'default' or 'Normal'"),
    ):
        settings = lab.spec("SAC", algorithm_={"action_pdtype": pdtype}).agent.algorithm
        assert [str(mistake) for mistake in check(settings, space)] == [
            f"agent.algorithm.action_pdtype: '{pdtype}' cannot draw {use}"
        ]
    settings = lab.spec("SAC").agent.algorithm
    assert [mistake.problem for mistake in check(settings, spaces.MultiBinary(2))] == [
        "SAC needs Discrete or Box actions; the env's are MultiBinary"
    ]


# CrossQ


@pytest.mark.parametrize("space", [REACH, spaces.Discrete(2, start=5)])
def test_crossq_asks_its_critics_once_for_both_what_is_and_what_follows(lab, space):
    algorithm = lab.agent("CrossQ", action_space=space).algorithm
    is_box = space is REACH
    algorithm.actor_as_seen = lambda obs: (torch.zeros(2, 2), torch.tensor(-99.0))
    calls = []

    def net(obs, action=None):
        calls.append(obs[:, 0].tolist())
        q = torch.tensor([[1.0, 3.0], [1.0, 3.0], [4.0, 8.0], [9.0, 9.0]])
        return q if is_box else torch.stack([q, q], -1)

    rows = batch(torch.zeros(2, 1) if is_box else torch.tensor([5, 6]))
    loss, info = algorithm.critic_loss(net, None, rows, {})
    assert calls == [[0, 0, 1, 1]]
    assert info[ERRORS].tolist() == pytest.approx([1, 1])  # wanted: 1 + 4 / 2, and 2
    assert loss.item() == pytest.approx((4 + 0 + 2 * (1 + 1)) / 2)


def test_crossq_has_no_target_and_its_actor_sees_running_statistics(lab):
    agent = lab.agent("CrossQ")
    algorithm = agent.algorithm
    before = [values.clone() for values in algorithm.learner.net.buffers()]
    lab.Life().go_on(agent, 10)
    assert algorithm.learner.target is algorithm.learner.net
    assert all(not torch.equal(old, new) for old, new in zip(before, algorithm.learner.net.buffers(), strict=True))
    for seen, own in zip(algorithm.critics_as_seen.buffers(), algorithm.learner.net.buffers(), strict=True):
        assert torch.equal(seen, own)
    assert not algorithm.critics_as_seen.training
    assert algorithm.learner.opt_step == 3 * algorithm.actor.opt_step + algorithm.learner.opt_step % 3 > 3
