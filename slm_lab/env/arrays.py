"""Between one value per sub-env and arrays with a leading axis; parts of Dict and Tuple spaces go by dotted keys."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.types import Arrays


def make_gather(space: spaces.Space) -> Callable[[list[Any]], Arrays]:
    """A function that stacks values of `space`, one per sub-env, to arrays of the space's dtype, always fresh ones."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        gathers = {key: make_gather(part) for key, part in parts_of(space)}

        def gather_parts(values: list[Any]) -> dict[str, np.ndarray]:
            return flatten_keys({str(key): gather([value[key] for value in values]) for key, gather in gathers.items()})

        return gather_parts
    shape, dtype = space.shape or (), space.dtype

    def gather(values: list[Any]) -> np.ndarray:
        out = np.empty((len(values), *shape), dtype)
        for index, value in enumerate(values):
            out[index] = value
        return out

    return gather


def make_scatter(space: spaces.Space, key: str = "") -> Callable[[Arrays], list[Any]]:
    """A function that splits actions with a leading axis into what each sub-env's `step` takes, sharing no memory.

    Box actions are clipped to the env's bounds here, so the memory keeps the action as the policy drew it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _make_scatter_parts(space, key)
    scatter = _make_scatter_leaf(space)
    return (lambda action: scatter(action[key])) if key else scatter


def _make_scatter_leaf(space: spaces.Space) -> Callable[[np.ndarray], list[Any]]:
    if isinstance(space, spaces.Discrete):
        return lambda action: action.tolist()
    if isinstance(space, spaces.Box):
        low, high, dtype = space.low, space.high, space.dtype
        return lambda action: list(np.minimum(np.maximum(action, low), high).astype(dtype, copy=False))
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
