import numpy as np
import pytest
import torch
import torch.distributions as theirs
from gymnasium import spaces

from slm_lab.agent.algorithm.distribution import (
    DISTRIBUTIONS,
    Bernoulli,
    Beta,
    Categorical,
    MultiCategorical,
    MultivariateNormal,
    Normal,
    draw_category,
    make_distribution,
)
from slm_lab.types import Step

PROBABILITIES = np.array([0.5, 0.3, 0.2])
CHI_SQUARE_2 = 13.8  # exceeded once in a thousand, two degrees of freedom
DRAWS = 20_000
SPACES = {
    "Categorical": spaces.Discrete(3, start=-1),
    "MultiCategorical": spaces.MultiDiscrete([2, 4, 3], start=[0, 5, -1]),
    "Bernoulli": spaces.MultiBinary((2, 2)),
    "Normal": spaces.Box(-1, 1, (2,)),
    "MultivariateNormal": spaces.Box(-1, 1, (3,)),
    "Beta": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)),
}


def rng(seed=0):
    return np.random.default_rng(seed)


def chi_square(drawn, probabilities):
    expected = probabilities * len(drawn)
    return ((np.bincount(drawn, minlength=len(probabilities)) - expected) ** 2 / expected).sum()


def outputs(distribution, rows=4, seed=0):
    return rng(seed).normal(size=(rows, distribution.units)).astype(np.float32)


def reference(name, out, space):
    """The same distribution by torch, of actions that count from 0."""
    if name == "Categorical":
        return theirs.Categorical(logits=out)
    if name == "Bernoulli":
        return theirs.Independent(theirs.Bernoulli(logits=out.reshape(-1, *space.shape)), len(space.shape))
    if name == "Normal":
        return theirs.Independent(theirs.Normal(out[:, :2], out[:, 2:].exp()), 1)
    if name == "MultivariateNormal":
        mean, below, scale = out.split(3, -1)  # three parts have three entries below the diagonal
        one, zero = torch.ones(len(out)), torch.zeros(len(out))
        rows = [one, zero, zero, below[:, 0], one, zero, below[:, 1], below[:, 2], one]
        mixing = torch.stack(rows, -1).view(-1, 3, 3)
        return theirs.MultivariateNormal(mean, scale_tril=scale.exp().unsqueeze(-1) * mixing)
    low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
    first, second = (1 + torch.nn.functional.softplus(out)).split(2, -1)
    stretch = theirs.AffineTransform(low, high - low)
    return theirs.Independent(theirs.TransformedDistribution(theirs.Beta(first, second), stretch), 1)


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if name in SPACES and name != "MultiCategorical"])
def test_log_prob_and_entropy_are_those_of_torch(name):
    space = SPACES[name]
    ours = make_distribution(name, space)
    out = outputs(ours)
    action = ours.sample(out, rng(1))
    by_torch = reference(name, torch.from_numpy(out), space)
    counted = torch.from_numpy(action - ours.start if name == "Categorical" else action)
    expected = by_torch.log_prob(counted.float() if name == "Bernoulli" else counted)
    torch.testing.assert_close(ours.log_prob(torch.from_numpy(out), torch.from_numpy(action)), expected)
    if name == "Beta":  # torch has none for a stretched one: stretching adds the logs of the ranges, 4 and 10
        first, second = (1 + torch.nn.functional.softplus(torch.from_numpy(out))).split(2, -1)
        entropy = theirs.Beta(first, second).entropy().sum(-1) + np.log(40)
    else:
        entropy = by_torch.entropy()
    torch.testing.assert_close(ours.entropy(torch.from_numpy(out)), entropy)


def test_several_choices_have_the_sums_of_their_log_probs_and_entropies():
    ours = MultiCategorical(SPACES["MultiCategorical"])
    out = torch.from_numpy(outputs(ours))
    action = torch.tensor([[0, 5, -1], [1, 8, 1], [1, 6, 0], [0, 7, -1]])
    parts = [theirs.Categorical(logits=logits) for logits in out.split([2, 4, 3], -1)]
    start = torch.tensor([0, 5, -1])
    log_prob = sum(part.log_prob(index) for part, index in zip(parts, (action - start).T, strict=True))
    torch.testing.assert_close(ours.log_prob(out, action), log_prob)
    torch.testing.assert_close(ours.entropy(out), sum(part.entropy() for part in parts))


@pytest.mark.parametrize("name", SPACES)
def test_drawn_actions_and_modes_lie_in_the_space_and_their_gradients_are_finite(name):
    space = SPACES[name]
    ours = make_distribution(name, space)
    for scale in (1, 100):
        out = scale * outputs(ours, 300)
        action, mode = ours.sample(out, rng()), ours.mode(out)
        assert action.shape == mode.shape == (300, *space.shape)
        if "Normal" not in name:  # whose actions the env clips
            assert all(space.contains(one.astype(space.dtype)) for one in [*action, *mode])
        variable = torch.from_numpy(out).requires_grad_()
        log_prob = ours.log_prob(variable, torch.from_numpy(action))
        assert log_prob.shape == (300,)
        (log_prob + ours.entropy(variable)).sum().backward()
        assert variable.grad.isfinite().all()


@pytest.mark.parametrize("name", SPACES)
def test_no_action_is_more_probable_than_the_mode(name):
    ours = make_distribution(name, SPACES[name])
    out = np.repeat(outputs(ours, 1), 500, 0)
    best = ours.log_prob(torch.from_numpy(out), torch.from_numpy(ours.mode(out)))
    drawn = ours.log_prob(torch.from_numpy(out), torch.from_numpy(ours.sample(out, rng())))
    assert (drawn <= best + 1e-5).all()


@pytest.mark.parametrize("name", SPACES)
def test_the_mean_of_minus_the_log_prob_is_the_entropy(name):
    ours = make_distribution(name, SPACES[name])
    out = np.repeat(outputs(ours, 1), DRAWS, 0)
    told = -ours.log_prob(torch.from_numpy(out), torch.from_numpy(ours.sample(out, rng(3))))
    error = 4 * told.std() / DRAWS**0.5
    assert told.mean().item() == pytest.approx(ours.entropy(torch.from_numpy(out[:1])).item(), abs=error.item())


def test_each_choice_comes_as_often_as_it_is_probable():
    ours = MultiCategorical(spaces.MultiDiscrete([3, 2]))
    logits = np.log([*PROBABILITIES, 0.9, 0.1]).astype(np.float32)
    drawn = ours.sample(np.broadcast_to(logits, (DRAWS, 5)), rng())
    assert chi_square(drawn[:, 0], PROBABILITIES) < CHI_SQUARE_2
    assert chi_square(drawn[:, 1], np.array([0.9, 0.1])) < 10.8  # once in a thousand, one degree of freedom
    assert ours.mode(logits[None]).tolist() == [[0, 0]]


def test_bits_come_as_often_as_they_are_probable():
    ours = Bernoulli(spaces.MultiBinary(2))
    out = np.log([1 / 3, 4]).astype(np.float32)  # odds of 1 to 3 and 4 to 1
    drawn = ours.sample(np.broadcast_to(out, (DRAWS, 2)), rng())
    assert drawn.dtype == np.int8
    assert drawn.mean(0) == pytest.approx([0.25, 0.8], abs=4 * 0.5 / DRAWS**0.5)
    assert ours.mode(out[None]).tolist() == [[0, 1]]


def test_a_betas_draws_have_its_mean_between_the_bounds_and_its_mode_by_hand():
    ours = Beta(spaces.Box(-2, 2, (1,)))
    one, two = np.log(np.expm1([1.0, 2.0]))  # softplus gives 1 and 2: Beta(2, 3)
    out = np.broadcast_to(np.array([one, two], np.float32), (DRAWS, 2))
    assert ours.sample(out, rng()).mean() == pytest.approx(-2 + 4 * 2 / 5, abs=4 * 4 * 0.2 / DRAWS**0.5)
    assert ours.mode(out[:1]).item() == pytest.approx(-2 + 4 / 3)  # (a - 1) / (a + b - 2) of the range


def test_the_parts_of_a_multivariate_normal_vary_together():
    ours = MultivariateNormal(spaces.Box(-1, 1, (2,)))
    out = np.array([1.0, 2.0, 0.5, np.log(2.0), 0.0], np.float32)  # means, the entry below the diagonal, log scales
    drawn = ours.sample(np.broadcast_to(out, (DRAWS, 5)), rng())
    # the factor is [[2, 0], [0.5, 1]]
    np.testing.assert_allclose(np.cov(drawn.T), [[4, 1], [1, 1.25]], atol=0.15)
    assert drawn.mean(0) == pytest.approx([1, 2], abs=4 * 2 / DRAWS**0.5)


@pytest.mark.parametrize("name", ["Normal", "MultivariateNormal"])
def test_log_std_init_makes_the_logs_of_deviations_parameters(lab, name):
    keys = {"algorithm_": {"action_pdtype": name}, "net_": {"log_std_init": -0.5}}
    agent = lab.agent("PPO", action_space=spaces.Box(-1, 1, (3,)), **keys)
    net, units = agent.algorithm.learner.net, agent.algorithm.distribution.units
    assert net.actor.log_std.tolist() == [-0.5] * 3
    out = agent.algorithm.policy.forward(lab.Life().obs)
    assert out.shape == (2, units)
    assert (out[:, -3:] == -0.5).all()
    np.testing.assert_allclose(net(torch.from_numpy(lab.Life().obs))[0].detach(), out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["Reinforce", "ActorCritic", "PPO"])
@pytest.mark.parametrize(("name", "right"), [("MultiCategorical", [1, 7, 0]), ("Bernoulli", [[1, 0], [1, 1]])])
def test_actions_of_several_parts_are_learned(lab, algorithm, name, right):
    """Each part that is right earns 1: a bandit, whose episodes last one step."""
    space, num_envs = SPACES[name], 8
    small = {"PPO": {"time_horizon": 8, "minibatch_size": 32}, "ActorCritic": {"training_frequency": 8}}
    keys = small.get(algorithm, {"training_frequency": 64})
    net = {"optim_spec": {"name": "Adam", "lr": 0.05}}
    agent = lab.agent(algorithm, action_space=space, num_envs=num_envs, algorithm_=keys, net_=net)
    obs, ends = np.zeros((num_envs, 2), np.float32), np.ones(num_envs, bool)
    for step in range(600):
        action = agent.act(obs, step * num_envs)
        reward = (action == right).reshape(num_envs, -1).sum(1).astype(float)
        agent.remember(obs, action, Step(obs, obs, reward, ends, ~ends))
        agent.learn((step + 1) * num_envs)
    assert agent.act(obs[:1], 0, explore=False)[0].tolist() == right


def test_normal_actions_have_the_shape_of_the_space():
    for shape in ((), (3,), (2, 3)):
        ours = Normal(spaces.Box(-1, 1, shape))
        out = np.zeros((5, ours.units), np.float32)
        action = ours.sample(out, rng())
        assert action.shape == ours.mode(out).shape == (5, *shape)
        assert action.dtype == np.float32
        assert ours.log_prob(torch.from_numpy(out), torch.from_numpy(action)).shape == (5,)


def test_a_deviation_stays_finite_whatever_the_net_puts_out():
    ours = Normal(spaces.Box(-1, 1, (1,)))
    for log_std in (-1e9, 1e9):
        out = torch.tensor([[0.0, log_std]])
        assert ours.log_prob(out, torch.tensor([[1.0]])).isfinite()
        assert np.isfinite(ours.sample(out.numpy(), rng())).all()


def test_categories_come_as_often_as_they_are_probable():
    logits = np.broadcast_to(np.log(PROBABILITIES), (20_000, 3)).astype(np.float32)
    assert chi_square(draw_category(logits, rng()), PROBABILITIES) < CHI_SQUARE_2


def test_a_normal_sample_has_the_mean_and_the_deviation_that_were_put_out():
    out = np.broadcast_to(np.array([3.0, np.log(2.0)], np.float32), (20_000, 2))
    drawn = Normal(spaces.Box(-1, 1, (1,))).sample(out, rng())
    assert drawn.mean() == pytest.approx(3, abs=4 * 2 / 20_000**0.5)  # four standard errors
    assert drawn.std() == pytest.approx(2, abs=4 * 2 / 40_000**0.5)


def test_actions_count_from_the_start_of_the_space():
    ours = Categorical(spaces.Discrete(3, start=-1))
    logits = np.array([[0.0, 1.0, -2.0]], np.float32)
    assert ours.mode(logits).tolist() == [0]
    assert set(ours.sample(np.repeat(logits * 0, 100, 0), rng()).tolist()) == {-1, 0, 1}
    theirs = torch.distributions.Categorical(logits=torch.from_numpy(logits))
    torch.testing.assert_close(
        ours.log_prob(torch.from_numpy(logits), torch.tensor([1])), theirs.log_prob(torch.tensor([2]))
    )


def test_the_mode_of_a_normal_is_its_mean():
    out = np.array([[0.5, -1.0, 3.0, 3.0]], np.float32)
    assert Normal(spaces.Box(-1, 1, (2,))).mode(out).tolist() == [[0.5, -1.0]]


def test_the_default_distribution_is_that_of_the_space():
    assert isinstance(make_distribution("default", spaces.Discrete(2)), Categorical)
    assert isinstance(make_distribution("default", spaces.Box(-1, 1, (1,))), Normal)
