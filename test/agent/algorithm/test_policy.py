import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.algorithm.policy import (
    Categorical,
    Normal,
    boltzmann,
    check_policy,
    draw_category,
    epsilon_greedy,
    greedy,
    make_distribution,
)

LOGITS = torch.tensor([[0.0, 1.0, -2.0], [3.0, 3.0, 3.0]])
PROBABILITIES = np.array([0.5, 0.3, 0.2])
CHI_SQUARE_2 = 13.8  # exceeded once in a thousand, two degrees of freedom


def rng(seed=0):
    return np.random.default_rng(seed)


def chi_square(drawn, probabilities):
    expected = probabilities * len(drawn)
    return ((np.bincount(drawn, minlength=len(probabilities)) - expected) ** 2 / expected).sum()


def test_categorical_log_prob_and_entropy_are_those_of_torch():
    theirs = torch.distributions.Categorical(logits=LOGITS)
    ours = Categorical(spaces.Discrete(3))
    for action in (torch.tensor([0, 2]), torch.tensor([1, 1])):
        torch.testing.assert_close(ours.log_prob(LOGITS, action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(LOGITS), theirs.entropy())


def test_normal_log_prob_and_entropy_are_those_of_torch():
    out = torch.tensor([[0.5, -1.0, 0.0, 0.7], [2.0, 0.0, -3.0, 1.0]])  # two means, two logs of deviations
    action = torch.tensor([[0.0, 1.0], [2.1, -4.0]])
    theirs = torch.distributions.Independent(torch.distributions.Normal(out[:, :2], out[:, 2:].exp()), 1)
    ours = Normal(spaces.Box(-1, 1, (2,)))
    torch.testing.assert_close(ours.log_prob(out, action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(out), theirs.entropy())


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


VALUES = np.tile(np.array([1.0, 5.0, 3.0]), (20_000, 1))


def test_epsilon_0_is_greedy_and_epsilon_1_is_uniform():
    assert (epsilon_greedy(VALUES, 0.0, rng()) == 1).all()
    assert chi_square(epsilon_greedy(VALUES, 1.0, rng()), np.full(3, 1 / 3)) < CHI_SQUARE_2


def test_each_env_throws_its_own_coin():
    drawn = epsilon_greedy(VALUES, 0.3, rng())  # of the random ones, a third take the best action too
    assert chi_square(drawn, np.array([0.1, 0.8, 0.1])) < CHI_SQUARE_2
    several = [tuple(epsilon_greedy(VALUES[:2], 0.5, rng(seed)) == 1) for seed in range(50)]
    assert {(True, False), (False, True)} <= set(several)


def test_boltzmann_draws_in_proportion_to_the_exponentials_of_the_values_over_the_temperature():
    values = np.broadcast_to(2 * np.log(PROBABILITIES), (20_000, 3))
    assert chi_square(boltzmann(values, 2.0, rng()), PROBABILITIES) < CHI_SQUARE_2


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-300])
def test_boltzmann_without_temperature_is_greedy(temperature):
    values = np.array([[1.0, 5.0, 3.0], [-1e3, -2e3, -3e3], [1e3, 1e3 + 1, 0.0]], np.float32)
    assert boltzmann(values, temperature, rng()).tolist() == [1, 0, 1]


def test_greedy_takes_the_first_best():
    assert greedy(np.array([[1.0, 5.0, 5.0]]), 1.0, rng()).tolist() == [1]


def test_the_default_distribution_is_that_of_the_space():
    assert isinstance(make_distribution("default", spaces.Discrete(2)), Categorical)
    assert isinstance(make_distribution("default", spaces.Box(-1, 1, (1,))), Normal)


@pytest.mark.parametrize(
    ("pdtype", "space", "key", "told"),
    [
        ("Normal", spaces.Discrete(2), "action_pdtype", "'Normal' cannot draw Discrete actions; use 'Categorical'"),
        ("Categorical", spaces.Box(-1, 1), "action_pdtype", "'Categorical' cannot draw Box actions; use 'Normal'"),
        ("default", spaces.MultiBinary(2), "name", "PPO needs Discrete or Box actions; the env's are MultiBinary"),
        (
            "default",
            spaces.Box(0, 9, (2,), np.uint8),
            "name",
            "PPO draws real numbers; the env's Box actions are uint8",
        ),
        ("Normal", spaces.MultiBinary(2), "name", "PPO needs Discrete or Box actions; the env's are MultiBinary"),
    ],
)
def test_a_distribution_that_does_not_fit_is_one_mistake(pdtype, space, key, told):
    assert [str(mistake) for mistake in check_policy("PPO", pdtype, space)] == [f"agent.algorithm.{key}: {told}"]


def test_a_distribution_that_fits_is_no_mistake():
    assert check_policy("PPO", "default", spaces.Discrete(2)) == check_policy("PPO", "Normal", spaces.Box(-1, 1)) == []
