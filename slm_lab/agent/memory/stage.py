"""Where rows wait before they are written: checked, cast to their fields, packed. A refused add writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slm_lab.agent.memory.fields import REWARD, Field, Layout, pick
from slm_lab.errors import InvalidRow
from slm_lab.lib.jit import njit


class Stage:
    """Room for `count` packed rows; `fill` checks and packs them, `ring.write` takes them from here."""

    def __init__(self, layout: Layout, count: int):
        self.layout = layout
        self.count = count
        rows = np.zeros(count, layout.row)
        next_rows = np.zeros(count, layout.obs_row)
        self.rows = rows.view(np.uint8).reshape(count, -1)  # (count, row bytes)
        self.next_obs = next_rows.view(np.uint8).reshape(count, -1)  # (count, observation bytes)
        self.terminated = np.zeros(count, np.bool_)
        self.truncated = np.zeros(count, np.bool_)
        self._reward = rows[REWARD]
        self._obs = [(field, field.name, rows[field.name]) for field in layout.obs]
        self._next = [(field, field.name.replace("obs", "next_obs", 1), next_rows[field.name]) for field in layout.obs]
        self._action = [(field, field.name, rows[field.name]) for field in layout.action]
        self._extras = [(field, field.key, rows[field.name]) for field in layout.extras]
        self._flag = Field("flag", None, np.dtype(np.bool_), ())
        self._number = Field(REWARD, None, np.dtype(np.float32), ())

    def fill(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Any,
        extras: Mapping[str, Any],
    ) -> None:
        """Pack `count` rows given as arrays with that leading axis; raises InvalidRow at the first misfit."""
        for field, name, place in self._obs:
            _put(place, pick(obs, field.key), field, name)
        for field, name, place in self._next:
            _put(place, pick(next_obs, field.key), field, name)
        for field, name, place in self._action:
            _put(place, pick(action, field.key), field, name)
        _put(self._reward, reward, self._number, REWARD)
        _put(self.terminated, terminated, self._flag, "terminated")
        _put(self.truncated, truncated, self._flag, "truncated")
        bad = first_not_finite(self._reward)
        if bad >= 0:
            raise InvalidRow(f"reward: {np.asarray(reward)[bad]} in row {bad}; a reward must be finite in float32")
        if extras or self._extras:
            self._fill_extras(extras)

    def _fill_extras(self, extras: Mapping[str, Any]) -> None:
        known = [key for _, key, _ in self._extras]
        if extras.keys() != set(known):
            raise InvalidRow(
                f"extras: {sorted(extras)} were given, {known} are needed: those of the first row stay, in every row"
            )
        for field, key, place in self._extras:
            _put(place, as_array(extras[key]), field, key)


def as_array(value: Any) -> np.ndarray:
    """numpy's view of an array, list or tensor."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def _put(place: np.ndarray, value: Any, field: Field, name: str) -> None:
    if type(value) is not np.ndarray:
        if value is None:
            raise InvalidRow(f"{name}: missing")
        value = as_array(value)
    if value.shape != place.shape:
        raise InvalidRow(
            f"{name}: shape {value.shape} was given, {place.shape} is needed, the leading axis counts rows"
        )
    if value.dtype != field.dtype and not _fits(value, field.dtype):
        raise InvalidRow(f"{name}: {value.dtype} values were given that {field.dtype} cannot hold")
    place[...] = value


def _fits(value: np.ndarray, dtype: np.dtype) -> bool:
    """Whether the values survive the cast: floats may lose digits, nothing else may change."""
    if value.dtype.kind not in "biuf":
        return False
    if np.can_cast(value.dtype, dtype, "safe") or (value.dtype.kind == "f" and dtype.kind == "f"):
        return True
    if dtype.kind == "f":
        return True
    with np.errstate(invalid="ignore"):
        return value.dtype.kind != "f" and bool((value.astype(dtype) == value).all())


@njit
def first_not_finite(values):
    for index in range(values.size):
        if not np.isfinite(values[index]):
            return index
    return -1
