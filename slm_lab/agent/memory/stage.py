"""Where rows wait before they are written: checked, cast to their fields, packed. A refused add writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slm_lab.agent.memory.fields import DISCOUNT, LINK, REWARD, Field, Layout, pick
from slm_lab.errors import InvalidRow
from slm_lab.lib.jit import njit


class Stage:
    """Room for `count` packed rows; `fill` checks and packs them, `ring.write` takes them from here."""

    def __init__(self, layout: Layout, count: int):
        self.layout = layout
        self.count = count
        rows = np.zeros(count, layout.row)
        next_rows = np.zeros(count, layout.obs_row)
        self.rows = rows.view(np.uint8).reshape(count, layout.row.itemsize)  # (count, row bytes)
        self.words = self.rows.view(np.int32)
        self.next_obs = next_rows.view(np.uint8).reshape(count, layout.obs_row.itemsize)  # (count, observation bytes)
        self.terminated = np.zeros(count, np.bool_)
        self.truncated = np.zeros(count, np.bool_)
        self._reward = rows[REWARD]
        self._obs = [_place_of(field, rows, field.name) for field in layout.obs]
        self._next = [_place_of(field, next_rows, field.name.replace("obs", "next_obs", 1)) for field in layout.obs]
        self._action = [_place_of(field, rows, field.name) for field in layout.action]
        self._extras = [_Place(rows[field.name], field.key, field.key) for field in layout.extras]
        self._plain = (
            _Place(self._reward, REWARD),
            _Place(self.terminated, "terminated"),
            _Place(self.truncated, "truncated"),
        )

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
        for places, values in ((self._obs, obs), (self._next, next_obs), (self._action, action)):
            for place in places:
                place.put(values if place.key is None else pick(values, place.key))
        in_reward, in_terminated, in_truncated = self._plain
        in_reward.put(reward)
        in_terminated.put(terminated)
        in_truncated.put(truncated)
        bad = first_not_finite(self._reward)
        if bad >= 0:
            raise InvalidRow(f"reward: {np.asarray(reward)[bad]} in row {bad}; a reward must be finite in float32")
        if extras or self._extras:
            self._fill_extras(extras)

    def cut(self, after: Any) -> None:
        """What comes next does not continue the rows where `after` (count,) is true, whatever it begins with."""
        after = as_array(after, "cut")
        if after.shape != (self.count,):
            raise InvalidRow(f"cut: shape {after.shape} was given, ({self.count},) is needed")
        self.words[:, self.layout.word(LINK)] = after.astype(np.bool_)

    def _fill_extras(self, extras: Mapping[str, Any]) -> None:
        known = [place.key for place in self._extras]
        if extras.keys() != set(known):
            raise InvalidRow(
                f"extras: {sorted(extras)} were given, {known} are needed: those of the first row stay, in every row"
            )
        for place in self._extras:
            place.put(as_array(extras[place.key], place.name))
            if place.key == DISCOUNT and not ((place.array >= 0) & (place.array <= 1)).all():
                raise InvalidRow(f"discount: {extras[DISCOUNT]} was given; the discount of a step lies in [0, 1]")


def _place_of(field: Field, rows: np.ndarray, name: str) -> _Place:
    return _Place(rows[field.name], name, field.key, (len(rows), *field.given_shape))


class _Place:
    """One field of the staged rows, which takes only values that survive in it; of a stack of frames, the last one."""

    __slots__ = ("array", "dtype", "harmless", "is_stack", "key", "name", "shape")

    def __init__(self, array: np.ndarray, name: str, key: str | None = None, shape: tuple[int, ...] | None = None):
        self.array, self.dtype = array, array.dtype
        self.name, self.key = name, key
        self.shape = array.shape if shape is None else shape  # that a value must have
        self.is_stack = len(self.shape) > array.ndim
        self.harmless = {array.dtype}  # dtypes whose every value survives, as met so far

    def put(self, value: Any) -> None:
        if type(value) is not np.ndarray:
            if value is None:
                raise InvalidRow(f"{self.name}: missing")
            value = as_array(value, self.name)
        if value.shape != self.shape:
            raise InvalidRow(
                f"{self.name}: shape {value.shape} was given, {self.shape} is needed, the leading axis counts rows"
            )
        if value.dtype is not self.dtype and value.dtype not in self.harmless:
            self._check(value)
        self.array[...] = value[:, -1] if self.is_stack else value

    def _check(self, value: np.ndarray) -> None:
        """Floats may lose digits, nothing else may change. Whether numbers are too large for a float is asked of the
        first array of their dtype: all, where rows have a stage of their own."""
        given, kept = value.dtype, self.dtype
        if not np.can_cast(given, kept, "safe") and not self._survives(value):
            raise InvalidRow(f"{self.name}: {given} values were given that {kept} cannot hold")
        if kept.kind == "f" or np.can_cast(given, kept, "safe"):
            self.harmless.add(given)

    def _survives(self, value: np.ndarray) -> bool:
        if value.dtype.kind not in "biuf":
            return False
        with np.errstate(invalid="ignore", over="ignore"):
            kept = value.astype(self.dtype)
        if kept.dtype.kind == "f":
            return bool((np.isfinite(kept) | ~np.isfinite(value)).all())
        return value.dtype.kind != "f" and bool((kept == value).all())


def as_array(value: Any, name: str = "values") -> np.ndarray:
    """numpy's view of an array, list or tensor; InvalidRow where it has none."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    try:
        return np.asarray(value)
    except ValueError:
        raise InvalidRow(f"{name}: lists of different lengths were given, an array is needed") from None


@njit
def first_not_finite(values):
    for index in range(values.size):
        if not abs(values[index]) < np.inf:
            return index
    return -1
