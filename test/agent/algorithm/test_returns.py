"""Rewards 1, 2, 4, 8; gamma one half."""

import numpy as np
import pytest

from slm_lab.agent.algorithm.returns import gae, n_step_returns, returns_to_go, standardize

REWARD = np.array([1, 2, 4, 8], np.float32)
GOES_ON = np.array([0.5, 0.5, 0.5, 0.5], np.float32)  # discounts of rows that do not terminate
TERMINATED = np.array([0.5, 0.5, 0.5, 0], np.float32)
AT_LAST = np.array([False, False, False, True])
IN_THE_MIDDLE = np.array([False, True, False, True])
SIXTEEN = np.full(4, 16, np.float32)
ONE = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("discount", "end", "returns"),
    [
        (TERMINATED, AT_LAST, [1 + 3, 2 + 4, 4 + 4, 8]),
        (GOES_ON, AT_LAST, [1 + 4, 2 + 6, 4 + 8, 8 + 8]),  # truncated, or held so far: the value 16 follows
        (TERMINATED, IN_THE_MIDDLE, [1 + 5, 2 + 8, 4 + 4, 8]),  # row 2 does not continue row 1
    ],
)
def test_returns_to_go_by_hand(discount, end, returns):
    assert returns_to_go(REWARD, discount, end, SIXTEEN).tolist() == returns


@pytest.mark.parametrize(
    ("n", "discount", "end", "returns"),
    [
        (1, TERMINATED, AT_LAST, [1 + 8, 2 + 8, 4 + 8, 8]),
        (1, GOES_ON, AT_LAST, [1 + 8, 2 + 8, 4 + 8, 8 + 8]),
        (2, TERMINATED, AT_LAST, [1 + 1 + 4, 2 + 2 + 4, 4 + 4, 8]),
        (2, GOES_ON, AT_LAST, [1 + 1 + 4, 2 + 2 + 4, 4 + 4 + 4, 8 + 8]),
        (3, GOES_ON, AT_LAST, [1 + 1 + 1 + 2, 2 + 2 + 2 + 2, 4 + 4 + 4, 8 + 8]),
        (3, GOES_ON, IN_THE_MIDDLE, [1 + 1 + 4, 2 + 8, 4 + 4 + 4, 8 + 8]),
    ],
)
def test_n_step_returns_by_hand(n, discount, end, returns):
    assert n_step_returns(REWARD, discount, end, SIXTEEN, n).tolist() == returns


def test_more_steps_than_rows_are_the_return_to_go():
    for discount in (TERMINATED, GOES_ON):
        for end in (AT_LAST, IN_THE_MIDDLE):
            expected = returns_to_go(REWARD, discount, end, SIXTEEN)
            assert n_step_returns(REWARD, discount, end, SIXTEEN, 100).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("discount", "end", "advantage"),
    [
        # with values of 1 the one-step errors are r + 1/2 - 1; each takes a quarter of the next one's advantage
        (TERMINATED, AT_LAST, [0.5 + 2.8125 / 4, 1.5 + 5.25 / 4, 3.5 + 7 / 4, 8 - 1]),
        (GOES_ON, AT_LAST, [0.5 + 2.84375 / 4, 1.5 + 5.375 / 4, 3.5 + 7.5 / 4, 8 + 0.5 - 1]),
        (TERMINATED, IN_THE_MIDDLE, [0.5 + 1.5 / 4, 1.5, 3.5 + 7 / 4, 8 - 1]),
    ],
)
def test_advantages_by_hand(discount, end, advantage):
    assert gae(REWARD, discount, end, ONE, ONE, 0.5).tolist() == advantage


def test_lambda_0_is_the_one_step_error_and_lambda_1_the_return_less_the_value():
    value = np.array([3, 1, 4, 1], np.float32)
    next_value = np.array([1, 4, 1, 5], np.float32)  # that of the row after it, where one follows
    error = REWARD + GOES_ON * next_value - value
    assert gae(REWARD, GOES_ON, AT_LAST, value, next_value, 0.0).tolist() == error.tolist()
    returns = returns_to_go(REWARD, GOES_ON, AT_LAST, next_value)
    assert gae(REWARD, GOES_ON, AT_LAST, value, next_value, 1.0).tolist() == (returns - value).tolist()


def test_envs_one_after_the_other_are_as_each_alone():
    rng = np.random.default_rng(0)
    envs = [
        [rng.random(6).astype(np.float32), np.where(ends := rng.random(6) < 0.3, 0, 0.5).astype(np.float32), ends]
        for _ in range(3)
    ]
    for _, _, end in envs:
        end[-1] = True
    values = [rng.random((2, 6)).astype(np.float32) for _ in envs]
    together = [np.concatenate(columns) for columns in zip(*envs, strict=True)]
    value, next_value = np.concatenate(values, 1)
    for whole, parts in (
        (gae(*together, value, next_value, 0.9), [gae(*e, *v, 0.9) for e, v in zip(envs, values, strict=True)]),
        (
            n_step_returns(*together, next_value, 3),
            [n_step_returns(*e, v[1], 3) for e, v in zip(envs, values, strict=True)],
        ),
        (returns_to_go(*together, next_value), [returns_to_go(*e, v[1]) for e, v in zip(envs, values, strict=True)]),
    ):
        assert whole.tolist() == np.concatenate(parts).tolist()


def test_standardized_values_have_mean_0_and_deviation_1_and_equal_ones_are_zeros():
    assert standardize(np.array([1.0, 3.0])).tolist() == pytest.approx([-1, 1])
    assert standardize(np.array([5.0, 5.0])).tolist() == [0, 0]
    assert standardize(np.array([7.0])).tolist() == [0]
