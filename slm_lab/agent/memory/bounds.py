"""Whether values lie in the spaces that their fields come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.agent.memory.fields import pick
from slm_lab.agent.memory.stage import as_array
from slm_lab.errors import InvalidRow
from slm_lab.lib.trees import leaves

TOLERANCE = 1e-5  # of a bound's size: what arithmetic in float32 may lose


class Bounds:
    """Checks the observations and actions of rows that have the right shapes and dtypes."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space):
        self._obs = list(leaves(observation_space))
        self._action = list(leaves(action_space))

    def check(self, rows: Mapping[str, Any]) -> None:
        """Raise InvalidRow at the first value that is not finite or not in its space."""
        for name, parts in (("obs", self._obs), ("next_obs", self._obs), ("action", self._action)):
            for key, space in parts:
                check(as_array(pick(rows[name], key)), space, name if key is None else f"{name}.{key}")


def check(values: np.ndarray, space: spaces.Space, name: str) -> None:
    if values.dtype.kind == "f":
        _refuse(~np.isfinite(values), values, name, "every value must be finite")
    low, high = limits(space)
    with np.errstate(over="ignore"):  # beside the largest float there is no room for slack
        slack = _slack(low, high) if values.dtype.kind == "f" else 0
        least, most = low - slack, high + slack
    _refuse(values < least, values, name, "the least is", low)
    _refuse(values > most, values, name, "the most is", high)


def limits(space: spaces.Space) -> tuple[Any, Any]:
    """The least and the greatest value, numbers or arrays of the space's shape."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    start = getattr(space, "start", 0)
    return start, start + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1


def _slack(low: Any, high: Any) -> Any:
    sizes = np.maximum(np.where(np.isfinite(low), np.abs(low), 0), np.where(np.isfinite(high), np.abs(high), 0))
    return TOLERANCE * np.maximum(sizes.astype(np.float64), 1e-3)


def _refuse(outside: np.ndarray, values: np.ndarray, name: str, reason: str, limit: Any = None) -> None:
    if not outside.any():
        return
    place = tuple(int(at) for at in np.argwhere(outside)[0])
    within = f"[{', '.join(map(str, place[1:]))}]" if len(place) > 1 else ""
    bound = "" if limit is None else f" {np.broadcast_to(limit, values.shape)[place]}"
    raise InvalidRow(f"{name}{within}: {values[place]} in row {place[0]}; {reason}{bound}")
