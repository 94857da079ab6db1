"""The losses of REINFORCE, ActorCritic and PPO: policies of probability 3/4 and 1/4, values from a table."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.types import Batch

LOGITS = torch.tensor([math.log(3.0), 0.0])  # probabilities 3/4 and 1/4
ENTROPY = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))


def rows(action, **extras):
    return Batch(torch.zeros(len(action), 1), torch.tensor(action), None, None, None, extras=extras)


def loss_of(agent, batch, value=None, **scalars):
    """The loss's value, its info as numbers, and its gradient in the two logits."""
    logits = LOGITS.clone().requires_grad_()
    out = logits.expand(len(batch.obs), 2)
    result = out if value is None else (out, torch.tensor(value))
    numbers = {name: torch.tensor(number) for name, number in scalars.items()}
    loss, info = agent.algorithm.loss(lambda obs: result, lambda obs: result, batch, numbers)
    loss.backward()
    return loss.item(), {name: number.item() for name, number in info.items()}, logits.grad.tolist()


def hold(agent, rewards, *, terminated=(), truncated=()):
    """Rows of one env with these rewards; the episode ends at the rows named."""
    obs = np.ones((1, 2), np.float32)
    for t, reward in enumerate(rewards):
        agent.memory.add(obs, [0], [reward], [t in terminated], [t in truncated], obs)


def test_reinforce_is_the_mean_of_return_times_log_probability_less_the_entropy_bonus(lab):
    agent = lab.agent("Reinforce")
    loss, info, grad = loss_of(agent, rows([0, 1], **{"return": torch.tensor([4.0, -2.0])}), entropy_coef=0.5)
    policy_loss = -(4 * math.log(0.75) - 2 * math.log(0.25)) / 2
    assert info == pytest.approx({"policy_loss": policy_loss, "entropy": ENTROPY})
    assert loss == pytest.approx(policy_loss - 0.5 * ENTROPY)
    # d log pi(a) / d logit = 1[a] - pi; the entropy pulls towards the less probable action
    pull = -(4 * (1 - 0.75) - 2 * (0 - 0.75)) / 2
    bonus = 0.5 * 0.75 * (math.log(0.75) + ENTROPY)
    assert grad[0] == pytest.approx(pull + bonus)
    assert grad[1] == pytest.approx(-grad[0])


@pytest.mark.parametrize("name", ["Reinforce", "ActorCritic", "PPO"])
def test_the_entropy_bonus_makes_the_policy_more_even(lab, name):
    zeros = torch.zeros(2)
    extras = {"return": zeros, "advantage": zeros, "target": zeros, "value": zeros, "log_prob": zeros}
    value = None if name == "Reinforce" else [0.0, 0.0]
    scalars = {"entropy_coef": 1.0} | ({"clip_eps": 0.2} if name == "PPO" else {})
    loss, _, grad = loss_of(lab.agent(name), rows([0, 1], **extras), value, **scalars)
    assert loss == pytest.approx(-ENTROPY)
    assert grad[0] > 0 > grad[1]  # going down, the logit of the probable action falls


@pytest.mark.parametrize(
    ("keys", "returns"),
    [
        ({"center_return": False}, [1 + 3, 2 + 4, 4 + 4, 8]),
        ({}, [-2.5, -0.5, 1.5, 1.5]),  # less their mean, 13/2
        ({"standardize_returns": True}, [x / (11 / 4) ** 0.5 for x in (-2.5, -0.5, 1.5, 1.5)]),
    ],
)
def test_reinforce_learns_from_the_returns_of_whole_episodes(lab, keys, returns):
    agent = lab.agent("Reinforce", num_envs=1, algorithm_={"gamma": 0.5, **keys})
    hold(agent, [1, 2, 4, 8], terminated=[3])
    taken = []
    agent.algorithm.learner.step = lambda batch, frame, **scalars: taken.append((batch.extras["return"], scalars))
    agent.learn(4)
    assert taken[0][0].tolist() == pytest.approx(returns)
    assert taken[0][1] == {"entropy_coef": 0.01}


def constant_values(agent, value, next_value):
    """The critic says `value` of observations of ones, as it would of all."""
    agent.algorithm.learner.net = lambda obs: (torch.zeros(len(obs), 2), value + (next_value - value) * (obs[:, 0] - 1))


@pytest.mark.parametrize(
    ("keys", "targets"),
    [
        ({}, [1 + 4, 2 + 6, 4 + 8, 8 + 8]),  # to the end of what is held, then the value 16
        ({"num_step_returns": 2}, [1 + 1 + 4, 2 + 2 + 4, 4 + 4 + 4, 8 + 8]),
        ({"lam": 0.0}, [1 + 8, 2 + 8, 4 + 8, 8 + 8]),
        ({"lam": 1.0}, [1 + 4, 2 + 6, 4 + 8, 8 + 8]),
    ],
)
def test_actor_critic_estimates_targets_and_advantages_as_told(lab, keys, targets):
    standard = {"gamma": 0.5, "standardize_advantages": False, "training_frequency": 4}
    agent = lab.agent("ActorCritic", num_envs=1, algorithm_={**standard, **keys})
    constant_values(agent, 16.0, 16.0)
    hold(agent, [1, 2, 4, 8], truncated=[3])
    batch = agent.algorithm.add_estimates(agent.memory.drain())
    assert batch.extras["target"].tolist() == targets
    assert batch.extras["advantage"].tolist() == [target - 16 for target in targets]
    assert batch.extras["value"].tolist() == [16] * 4
    assert batch.extras["log_prob"].tolist() == pytest.approx([math.log(0.5)] * 4)


def test_nothing_follows_a_terminated_row_and_the_value_of_its_own_next_obs_follows_a_truncated_one(lab):
    agent = lab.agent("ActorCritic", num_envs=1, algorithm_={"gamma": 0.5, "standardize_advantages": False})
    constant_values(agent, 16.0, 16.0)
    hold(agent, [1, 2, 4, 8], terminated=[0], truncated=[1])
    target = agent.algorithm.add_estimates(agent.memory.drain()).extras["target"]
    assert target.tolist() == [1, 2 + 8, 4 + 8, 8 + 8]


def test_advantages_are_standardized_and_targets_are_not(lab):
    agent = lab.agent("ActorCritic", num_envs=1, algorithm_={"gamma": 0.5})
    constant_values(agent, 16.0, 16.0)
    hold(agent, [1, 2, 4, 8], terminated=[3])
    extras = agent.algorithm.add_estimates(agent.memory.drain()).extras
    assert extras["target"].tolist() == [4, 6, 8, 8]
    assert extras["advantage"].mean().item() == pytest.approx(0, abs=1e-6)
    assert extras["advantage"].std(correction=0).item() == pytest.approx(1)


def test_actor_critic_weighs_policy_loss_value_loss_and_entropy(lab):
    coefficients = {"policy_loss_coef": 2.0, "val_loss_coef": 0.25}
    agent = lab.agent("ActorCritic", algorithm_=coefficients)
    batch = rows([0, 1], advantage=torch.tensor([4.0, -2.0]), target=torch.tensor([1.0, 5.0]))
    loss, info, _ = loss_of(agent, batch, [3.0, 3.0], entropy_coef=0.5)
    policy_loss = -(4 * math.log(0.75) - 2 * math.log(0.25)) / 2
    assert info == pytest.approx({"policy_loss": policy_loss, "value_loss": 4, "entropy": ENTROPY})
    assert loss == pytest.approx(2 * policy_loss + 0.25 * 4 - 0.5 * ENTROPY)


def ppo_rows(**extras):
    """The old policy chose evenly, so the ratios are 3/2, 3/2, 1/2, 1/2."""
    four = torch.zeros(4)
    given = {
        "advantage": torch.tensor([2.0, -2.0, 2.0, -2.0]),
        "log_prob": torch.full((4,), math.log(0.5)),
        "target": four,
        "value": four,
    }
    return rows([0, 0, 1, 1], **{**given, **extras})


def test_ppo_takes_the_smaller_of_plain_and_clipped_advantage(lab):
    loss, info, _ = loss_of(lab.agent("PPO"), ppo_rows(), [0.0] * 4, entropy_coef=0.0, clip_eps=0.2)
    # min(3, 2.4), min(-3, -2.4), min(1, 1.6), min(-1, -1.6)
    assert loss == pytest.approx(-(2.4 - 3 + 1 - 1.6) / 4)
    assert info["policy_loss"] == pytest.approx(0.3)
    assert info["clip_fraction"] == 1
    assert info["approx_kl"] == pytest.approx((0.5 - math.log(1.5) - 0.5 - math.log(0.5)) / 2)


def test_within_the_clipping_range_ppo_follows_the_plain_ratio(lab):
    loss, info, _ = loss_of(lab.agent("PPO"), ppo_rows(), [0.0] * 4, entropy_coef=0.0, clip_eps=0.75)
    assert loss == pytest.approx(-(3 - 3 + 1 - 1) / 4)
    assert info["clip_fraction"] == 0


def test_a_clipped_ratio_pulls_no_more(lab):
    batch = ppo_rows(advantage=torch.tensor([2.0, 2.0, -2.0, -2.0]))  # each wants to go on in the way it has gone
    assert loss_of(lab.agent("PPO"), batch, [0.0] * 4, entropy_coef=0.0, clip_eps=0.2)[2] == [0, 0]


@pytest.mark.parametrize(("clip_vloss", "losses"), [(False, [1.0, 1.0]), (True, [1.69, 1.0])])
def test_a_clipped_value_counts_with_the_larger_of_its_two_losses(lab, clip_vloss, losses):
    agent = lab.agent("PPO", algorithm_={"clip_vloss": clip_vloss})
    # the value 2 was 1.5, so clipped it is 1.7: 1.3 from the target 3, 0.7 from the target 1
    old = {"value": torch.full((4,), 1.5), "target": torch.tensor([3.0, 3.0, 1.0, 1.0])}
    _, info, _ = loss_of(agent, ppo_rows(**old), [2.0] * 4, entropy_coef=0.0, clip_eps=0.2)
    assert info["value_loss"] == pytest.approx(sum(losses) / 2)


def test_ppo_goes_over_the_rows_in_minibatches_for_some_epochs(lab):
    agent = lab.agent("PPO", algorithm_={"time_horizon": 5, "minibatch_size": 4, "training_epoch": 3})
    sizes = []
    step = agent.algorithm.learner.step
    agent.algorithm.learner.step = lambda batch, *args, **keys: (
        sizes.append(len(batch.obs)) or step(batch, *args, **keys)
    )
    lab.Life().go_on(agent, 11)  # two rounds of 10 rows
    assert sizes == [4, 4, 2] * 6


def test_the_first_minibatch_finds_the_policy_that_acted(lab):
    agent = lab.agent("PPO", algorithm_={"time_horizon": 5, "minibatch_size": 64, "training_epoch": 1})
    lab.Life().go_on(agent, 5)
    report = agent.algorithm.report(10)
    assert report["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert report["clip_fraction"] == 0


def test_schedules_are_reported_at_the_frame(lab):
    down = {"name": "linear_decay", "start_val": 0.2, "end_val": 0.0, "end_step": 100}
    agent = lab.agent("PPO", algorithm_={"clip_eps_spec": down, "entropy_coef_spec": down})
    assert agent.algorithm.report(50) == {"lr": 0.001, "entropy_coef": 0.1, "clip_eps": 0.1}


@pytest.mark.parametrize("name", ["Reinforce", "ActorCritic", "PPO"])
@pytest.mark.parametrize("net", [{}, {"log_std_init": -0.5}, {"shared": False}, {"shared": False, "log_std_init": 0.5}])
def test_numpy_acts_as_torch_does(lab, name, net):
    agent = lab.agent(name, action_space=spaces.Box(-1, 1, (3,)), net_=net)
    obs = lab.Life(8).obs
    with torch.no_grad():
        out = agent.algorithm.learner.net(torch.from_numpy(obs))
    out = out[0] if isinstance(out, tuple) else out
    np.testing.assert_allclose(agent.algorithm.policy.forward(obs), out.numpy(), rtol=1e-5, atol=1e-6)
    if "log_std_init" in net:
        assert (out[:, 3:] == net["log_std_init"]).all()


def test_two_estimates_at_once_are_refused(lab):
    with pytest.raises(ValueError, match="set one, the other to null"):
        lab.spec("ActorCritic", algorithm_={"lam": 0.9, "num_step_returns": 5})
    assert lab.spec("PPO", algorithm_={"lam": None, "num_step_returns": 5}).agent.algorithm.num_step_returns == 5
