"""Between one value per sub-env and arrays with a leading axis; parts of Dict and Tuple spaces go by dotted keys."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.types import Arrays


class Misfit(ValueError):
    """A value is not what its space says; `index`: of which sub-env."""

    def __init__(self, index: int, reason: str):
        super().__init__(reason)
        self.index = index


def make_gather(space: spaces.Space) -> Callable[[list[Any]], Arrays]:
    """A function that stacks values of `space`, one per sub-env, to arrays of the space's dtype, always fresh ones.

    It raises Misfit for a value of another shape, or of a dtype that would lose what it says.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        gathers = {key: make_gather(part) for key, part in parts_of(space)}

        def gather_parts(values: list[Any]) -> dict[str, np.ndarray]:
            return flatten_keys({str(key): gather(_part(values, key)) for key, gather in gathers.items()})

        return gather_parts
    if isinstance(space, spaces.Discrete):
        return _make_gather_classes(space)
    shape, dtype = space.shape or (), space.dtype
    first, last = (
        (space.start, space.start + space.nvec - 1) if isinstance(space, spaces.MultiDiscrete) else (None, None)
    )

    def gather(values: list[Any]) -> np.ndarray:
        out = np.empty((len(values), *shape), dtype)
        for index, value in enumerate(values):
            if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                _check_fit(value, index, space)
            out[index] = value
        if first is not None and (np.less(out, first).any() or np.greater(out, last).any()):
            _tell_class(out, space)
        return out

    return gather


def _make_gather_classes(space: spaces.Discrete) -> Callable[[list[Any]], np.ndarray]:
    first, last = int(space.start), int(space.start + space.n - 1)

    def gather(values: list[Any]) -> np.ndarray:
        for index, value in enumerate(values):
            if type(value) is not int:
                _check_fit(value, index, space)
            if not first <= value <= last:
                raise Misfit(index, f"its observation is {value!r}, its space says {first} to {last}")
        return np.array(values, space.dtype)

    return gather


def _tell_class(values: np.ndarray, space: spaces.Space) -> None:
    """Raise Misfit for the first of the values (N, ...) that is not in the space."""
    for index, value in enumerate(values):
        if not space.contains(value):
            raise Misfit(index, f"its observation is {value}, its space is {space}")


def _part(values: list[Any], key: Any) -> list[Any]:
    found = []
    for index, value in enumerate(values):
        try:
            found.append(value[key])
        except (KeyError, IndexError, TypeError) as problem:
            raise Misfit(index, f"its observation has no part '{key}'") from problem
    return found


def _check_fit(value: Any, index: int, space: spaces.Space) -> None:
    """Raise Misfit where numpy would make something else of the value, or nothing."""
    try:
        array = np.asarray(value)
    except ValueError as problem:
        raise Misfit(index, f"its observation is {value!r}: {problem}") from problem
    wanted = space.shape or ()
    if array.shape != wanted:
        raise Misfit(index, f"its observation has shape {array.shape}, its space says {wanted}")
    if not np.can_cast(array.dtype, space.dtype, "same_kind") and not _whole(array, space):
        raise Misfit(index, f"its observation is {array.dtype}, its space says {space.dtype}")


def _whole(array: np.ndarray, space: spaces.Space) -> bool:
    """Whether signed and unsigned integers or booleans mean the same."""
    return array.dtype.kind in "biu" and space.dtype.kind in "biu" and bool((array.astype(space.dtype) == array).all())


def policy_space(space: spaces.Space) -> spaces.Space:
    """The space that a policy acts in: where a Box has both bounds, they are -1 and 1; all else is as the env's."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: policy_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([policy_space(part) for part in space.spaces])
    if not _rescales(space):
        return space
    bounded = space.bounded_below & space.bounded_above
    low, high = np.where(bounded, -1, space.low), np.where(bounded, 1, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


def _rescales(space: spaces.Space) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return False
    bounded = space.bounded_below & space.bounded_above
    return bool((bounded & ((space.low != -1) | (space.high != 1))).any())


def make_scatter(space: spaces.Space, key: str = "") -> Callable[[Arrays], list[Any]]:
    """A function that splits actions with a leading axis into what each sub-env's `step` takes, sharing no memory.

    Actions are of the policy's space. Those of a Box are clipped and taken to the env's bounds here, so the memory
    keeps the action as the policy drew it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _make_scatter_parts(space, key)
    scatter = _make_scatter_leaf(space)
    return (lambda action: scatter(action[key])) if key else scatter


def _make_scatter_leaf(space: spaces.Space) -> Callable[[np.ndarray], list[Any]]:
    if isinstance(space, spaces.Discrete):
        return lambda action: action.tolist()
    if isinstance(space, spaces.Box):
        given, dtype = policy_space(space), space.dtype
        assert isinstance(given, spaces.Box)
        low, high = given.low, given.high
        if given is space:
            return lambda action: list(np.minimum(np.maximum(action, low), high).astype(dtype, copy=False))
        bounded = space.bounded_below & space.bounded_above
        least = np.where(bounded, space.low, -1).astype(np.float64)
        most = np.where(bounded, space.high, 1).astype(np.float64)
        middle, half = (least + most) / 2, (most - least) / 2

        def to_bounds(action: np.ndarray) -> list[Any]:
            inside = middle + half * np.minimum(np.maximum(action, low), high)
            return list(np.clip(inside, space.low, space.high).astype(dtype))  # rounding may leave them

        return to_bounds
    return lambda action: list(np.array(action, space.dtype))


def _make_scatter_parts(space: spaces.Dict | spaces.Tuple, key: str) -> Callable[[Arrays], list[Any]]:
    parts = [(name, make_scatter(part, f"{key}.{name}" if key else str(name))) for name, part in parts_of(space)]

    def scatter_parts(action: Arrays) -> list[Any]:
        rows = zip(*(scatter(action) for _, scatter in parts), strict=True)
        if isinstance(space, spaces.Tuple):
            return list(rows)
        return [{name: value for (name, _), value in zip(parts, row, strict=True)} for row in rows]

    return scatter_parts


def parts_of(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, spaces.Space]]:
    return list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))


def flatten_keys(tree: dict[str, Any]) -> dict[str, Any]:
    """{"a": {"b": {"c": x}}} -> {"a.b.c": x}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": leaf for inner, leaf in flatten_keys(value).items()})
        else:
            flat[key] = value
    return flat


def first_not_finite(values: Arrays) -> int | None:
    """Which sub-env's row holds a NaN or an infinity, or None."""
    for array in values.values() if isinstance(values, dict) else (values,):
        if array.dtype.kind != "f":
            continue
        flat = array.ravel()
        if isfinite(flat.dot(flat)):  # then every number is, told in a third of the time of asking each
            continue
        faulty = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
        if faulty.any():
            return int(faulty.argmax())
    return None
