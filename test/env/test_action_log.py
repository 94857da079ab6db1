"""What was done since an episode began, whatever else was done at the time."""

import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.env.action_log import FIRST, ActionLog

BOX = spaces.Box(-1, 1, (2,), np.float32)


def numbered(steps, envs=3):
    log = ActionLog(spaces.Discrete(10_000), envs)
    for step in range(steps):
        log.append(np.arange(envs) + 10 * step)
    return log


def test_each_sub_env_has_its_own_since_its_own_beginning():
    log = numbered(4)
    assert log.since(2, 1).tolist() == [21, 31]
    assert log.since(0, 0).tolist() == [0, 10, 20, 30]
    assert log.since(4, 2).shape == (0,)


def test_it_grows_and_forgets():
    log = numbered(FIRST + 5)
    assert log.since(FIRST, 0).tolist() == [10 * step for step in range(FIRST, FIRST + 5)]
    log.forget(FIRST)
    assert (log.steps, log.since(0, 0).tolist()) == (5, [10 * step for step in range(FIRST, FIRST + 5)])


def test_what_was_taken_can_be_taken_up_again():
    log = numbered(6)
    taken = [log.since(start, index) for index, start in enumerate((5, 0, 3))]
    other = ActionLog(spaces.Discrete(10_000), 3)
    begun = other.take_up(taken)
    assert begun == [5, 0, 3]
    for index, start in enumerate(begun):
        np.testing.assert_array_equal(other.since(start, index), taken[index])
    other.append(np.array([7, 8, 9]))
    assert other.since(begun[2], 2).tolist() == [32, 42, 52, 9]


def test_parts_keep_their_shapes_and_numbers_their_precision():
    log = ActionLog(spaces.Dict({"a": BOX, "b": spaces.Discrete(3)}), 2)
    assert {key: part.shape for key, part in log.since(0, 1).items()} == {"a": (0, 2), "b": (0,)}
    log.append({"a": np.full((2, 2), 0.1), "b": np.array([1, 2])})
    assert log.since(0, 1)["a"].dtype == np.float64
    assert log.since(0, 1)["a"][0, 0] == 0.1
    assert log.take_up([log.since(0, 0), {key: part[:0] for key, part in log.since(0, 1).items()}]) == [0, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_action_is_the_caller_s_to_change(dtype):
    log, action = ActionLog(BOX, 1), np.ones((1, 2), dtype)
    log.append(action)
    action[:] = 0
    assert log.since(0, 0).tolist() == [[1, 1]]
    assert log.since(0, 0).dtype == dtype
