"""What `validate` refuses: values outside of the spaces, with field, place, number and bound."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.memory import make_memory
from slm_lab.errors import InvalidRow

SPACE = spaces.Dict(
    pose=spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 2], np.float32)),
    rest=spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]),
)
ACTION = spaces.MultiDiscrete([2, 3], start=[0, 5])


def rows(**changes):
    """Two rows that fit; `changes` to leaves by their dotted keys."""
    leaves = {
        "pose": np.array([[0, -1e30], [1.0000001, 2]], np.float32),
        "rest.0": np.array([-1, 1]),
        "rest.1": np.array([[0, 1], [1, 1]], np.int8),
    }
    action = changes.pop("action", np.array([[0, 5], [1, 7]]))
    flat = {key: changes.get(key, value) for key, value in leaves.items()}
    row = {"obs": leaves, "next_obs": flat, "action": action, "reward": changes.get("reward", np.zeros(2))}
    return row | {"terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool)}


@pytest.fixture
def memory():
    return make_memory({"name": "Replay"}, SPACE, ACTION)


def test_rows_in_their_spaces_pass_also_where_rounding_took_them_over_a_bound(memory):
    memory.validate(rows())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pose": np.array([[0, 0], [1.5, 0]], np.float32)}, r"next_obs.pose\[0\]: 1.5 in row 1; the most is 1.0"),
        ({"pose": np.array([[0, 2.5], [0, 0]], np.float32)}, r"next_obs.pose\[1\]: 2.5 in row 0; the most is 2.0"),
        ({"pose": np.array([[0, np.nan], [0, 0]], np.float32)}, r"next_obs.pose\[1\]: nan in row 0; every value must"),
        ({"pose": np.array([[0, -np.inf], [0, 0]], np.float32)}, r"next_obs.pose\[1\]: -inf in row 0; every value"),
        ({"rest.0": np.array([-2, 0])}, "next_obs.rest.0: -2 in row 0; the least is -1"),
        ({"rest.0": np.array([0, 2])}, "next_obs.rest.0: 2 in row 1; the most is 1"),
        ({"rest.1": np.array([[0, 1], [2, 0]], np.int8)}, r"next_obs.rest.1\[0\]: 2 in row 1; the most is 1"),
        ({"action": np.array([[0, 5], [0, 8]])}, r"action\[1\]: 8 in row 1; the most is 7"),
        ({"action": np.array([[0, 4], [0, 5]])}, r"action\[1\]: 4 in row 0; the least is 5"),
        ({"reward": np.array([0, np.inf])}, "reward: inf in row 1; a reward must be finite"),
    ],
)
def test_value_outside_its_space_is_named_with_its_place_and_bound(memory, changes, message):
    with pytest.raises(InvalidRow, match=message):
        memory.validate(rows(**changes))
    assert memory.seen == 0


def test_bounds_are_not_asked_where_the_caller_says_so(memory):
    memory.validate(rows(action=np.array([[0, 5], [0, 8]])), bounds=False)


def test_extra_that_a_row_lacks_or_that_is_new_is_named(memory):
    memory.add_rows({**rows(), "value": [1.0, 2.0]})
    with pytest.raises(InvalidRow, match=r"extras: \[\] were given, \['value'\] are needed"):
        memory.validate(rows())


def test_bounds_at_the_end_of_the_floats_and_images_pass(recwarn):
    most = np.finfo(np.float64).max
    space = spaces.Tuple([spaces.Box(-most, most, (1,), np.float64), spaces.Box(0, 255, (2,), np.uint8)])
    memory = make_memory({}, space, spaces.Box(-2.0, 2.0, (1,), np.float32))
    obs = (np.array([[most]]), np.array([[0, 255]], np.uint8))
    row = {"obs": obs, "next_obs": obs, "action": np.array([[2.0]], np.float32), "reward": np.zeros(1)}
    memory.validate({**row, "terminated": np.zeros(1, bool), "truncated": np.zeros(1, bool)})
    assert not recwarn.list


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_number_that_the_field_s_floats_do_not_reach_is_refused_and_infinity_is_itself(dtype):
    memory = make_memory({}, spaces.Box(-np.inf, np.inf, (1,), dtype), spaces.Discrete(2))
    flat = np.zeros(2)
    row = {"action": [0, 1], "reward": flat, "terminated": flat > 0, "truncated": flat > 0}
    big = {**row, "obs": np.array([[0.0], [1e39]]), "next_obs": np.zeros((2, 1))}
    for call in (memory.validate, memory.add_rows, lambda rows: memory.add_rows({**rows, "obs": rows["obs"].tolist()})):
        with pytest.raises(InvalidRow, match=f"^obs: float64 values were given that {dtype.__name__} cannot hold"):
            call(big)
    assert memory.seen == 0
    memory.add_rows({**big, "obs": np.array([[0.0], [np.inf]])})
    assert memory.seen == 2
