import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.algorithm.policy import boltzmann, check_policy, epsilon_greedy, greedy

PROBABILITIES = np.array([0.5, 0.3, 0.2])
CHI_SQUARE_2 = 13.8  # exceeded once in a thousand, two degrees of freedom


def rng(seed=0):
    return np.random.default_rng(seed)


def chi_square(drawn, probabilities):
    expected = probabilities * len(drawn)
    return ((np.bincount(drawn, minlength=len(probabilities)) - expected) ** 2 / expected).sum()


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


@pytest.mark.parametrize(
    ("pdtype", "space", "key", "told"),
    [
        ("Normal", spaces.Discrete(2), "action_pdtype", "'Normal' cannot draw Discrete actions; use 'Categorical'"),
        ("Beta", spaces.MultiBinary(2), "action_pdtype", "'Beta' cannot draw MultiBinary actions; use 'Bernoulli'"),
        (
            "Categorical",
            spaces.Box(-1, 1),
            "action_pdtype",
            "'Categorical' cannot draw Box actions; use 'Normal' or 'MultivariateNormal' or 'Beta'",
        ),
        (
            "Beta",
            spaces.Box(0, np.inf),
            "action_pdtype",
            "'Beta' cannot draw Box actions without bounds; use 'Normal' or 'MultivariateNormal'",
        ),
        (
            "default",
            spaces.Text(3),
            "name",
            "PPO needs Discrete, MultiDiscrete, MultiBinary or Box actions; the env's are Text",
        ),
        (
            "default",
            spaces.Box(0, 9, (2,), np.uint8),
            "name",
            "PPO draws real numbers; the env's Box actions are uint8",
        ),
    ],
)
def test_a_distribution_that_does_not_fit_is_one_mistake(pdtype, space, key, told):
    assert [str(mistake) for mistake in check_policy("PPO", pdtype, space)] == [f"agent.algorithm.{key}: {told}"]


def test_a_distribution_that_fits_is_no_mistake():
    assert check_policy("PPO", "default", spaces.Discrete(2)) == check_policy("PPO", "Normal", spaces.Box(-1, 1)) == []
