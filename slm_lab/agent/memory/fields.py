"""What a row consists of: typed fields read off the env's spaces, and their places inside one packed row.

Nested spaces (Dict, Tuple) become leaves with dotted keys: Dict(goal=Dict(pos=Box)) gives "obs.goal.pos".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.errors import InvalidMemorySpec, InvalidRow

REWARD = "reward"  # float32, whatever the env computes in: a loss is float32
LINK = "link"  # int32: flags of the row in the low bits, place of its own next_obs above them; see ring.py
# Extras that mean something to the memory itself: where a row comes from, and the env's own discount of its step.
SOURCE, DISCOUNT = "source", "discount"
BURN_IN = "burn_in"  # an extra of windows, which counts the rows before those to learn from
OWN_DTYPES = {SOURCE: np.dtype(np.int32), DISCOUNT: np.dtype(np.float32)}


@dataclass(frozen=True)
class Field:
    """One array of a row: `group` is obs, action or extras; `key` its dotted place inside a nested space, else None.

    Of an observation that is a stack of frames, a row holds the newest frame alone: `shape` is that of one frame.
    """

    group: str
    key: str | None
    dtype: np.dtype
    shape: tuple[int, ...]  # of one env, without the leading axis
    stack: int = 1  # frames that the env stacks along the first axis

    @property
    def name(self) -> str:
        return self.group if self.key is None else f"{self.group}.{self.key}"

    @property
    def given_shape(self) -> tuple[int, ...]:
        """As the env gives it, and as a batch has it again."""
        return self.shape if self.stack == 1 else (self.stack, *self.shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


def fields_of(space: spaces.Space, group: str, key: str | None = None) -> list[Field]:
    """The leaves of a space, with the dtypes of the env."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        if isinstance(space, spaces.Dict) and (dotted := [name for name in space.spaces if "." in str(name)]):
            raise InvalidMemorySpec(
                f"{group}: the key '{dotted[0]}' has a dot, which parts the names of nested spaces here; rename it"
            )
        return [leaf for name, part in parts for leaf in fields_of(part, group, _dotted(key, name))]
    if isinstance(space, spaces.Discrete):
        return [Field(group, key, np.dtype(np.int64), ())]
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return [Field(group, key, np.dtype(space.dtype), tuple(space.shape))]
    raise InvalidMemorySpec(
        f"{Field(group, key, np.dtype(bool), ()).name}: a memory cannot hold {type(space).__name__} spaces; "
        "it holds Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them"
    )


def in_stacks(fields: Iterable[Field], stack: int) -> list[Field]:
    """The fields of an observation whose leaves are stacks of so many frames along their first axis."""
    if stack == 1:
        return list(fields)
    for field in fields:
        if field.shape[:1] != (stack,):
            raise InvalidMemorySpec(
                f"frame_stack: {stack}, but {field.name} has shape {field.shape}; its first axis must be the {stack} "
                "frames that the env stacks"
            )
    return [replace(field, shape=field.shape[1:], stack=stack) for field in fields]


def fields_of_extras(extras: Mapping[str, np.ndarray]) -> list[Field]:
    """Fields for what a caller adds to its rows, by the arrays of its first add; their leading axis is the env axis."""
    if BURN_IN in extras:
        raise InvalidRow(
            f"{BURN_IN}: windows of rows have an extra of that name, which counts; call this one otherwise"
        )
    for name, array in extras.items():
        if array.dtype.kind not in "biuf":
            raise InvalidRow(f"{name}: {array.dtype} values were given; a row holds numbers and booleans")
    return [
        Field("extras", name, OWN_DTYPES.get(name, array.dtype), tuple(array.shape[1:]))
        for name, array in sorted(extras.items())
    ]


def pick(values: Any, key: str | None) -> Any:
    """The leaf `key` of an array tree, which may be nested or flat with dotted keys; None where it is missing."""
    if key is None:
        return values
    if isinstance(values, Mapping) and key in values:
        return values[key]
    for part in key.split("."):
        if isinstance(values, Mapping):
            values = values.get(part)
        elif isinstance(values, tuple | list) and part.isdigit() and int(part) < len(values):
            values = values[int(part)]
        else:
            return None
    return values


class Layout:
    """The packed row: observation leaves first (a bare observation is a prefix of a row), then the rest.

    numpy's alignment rules make every stride a multiple of its field's item size, as torch needs. Within a group the
    widest items come first, so that little is lost to padding.
    """

    def __init__(self, obs: Iterable[Field], action: Iterable[Field], extras: Iterable[Field] = ()):
        self.obs = tuple(obs)
        self.action = tuple(action)
        self.extras = tuple(extras)
        first = _widest_first([(field.name, field.dtype, field.shape) for field in self.obs])
        rest = [(field.name, field.dtype, field.shape) for field in (*self.action, *self.extras)]
        rest += [(REWARD, np.dtype(np.float32), ()), (LINK, np.dtype(np.int32), ())]
        self.row = np.dtype(first + _widest_first(rest), align=True)
        self.stack = max(field.stack for field in self.obs)
        names = [name for name, _, _ in first]
        self.obs_nbytes = max(self.offset(field.name) + field.nbytes for field in self.obs)
        self.obs_row = np.dtype(
            {
                "names": names,
                "formats": [self.row.fields[name][0] for name in names],
                "offsets": [self.offset(name) for name in names],
                "itemsize": -(-self.obs_nbytes // 8) * 8,
            }
        )

    def with_extras(self, extras: Iterable[Field]) -> Layout:
        return Layout(self.obs, self.action, extras)

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.obs, *self.action, *self.extras)

    def offset(self, name: str) -> int:
        return self.row.fields[name][1]

    def word(self, name: str) -> int:
        """Where a field of 4 bytes begins, counted in words; -1 where rows have no such field."""
        return self.offset(name) // 4 if name in (self.row.names or ()) else -1

    def describe(self) -> list[dict]:
        """The fields as JSON values; equal descriptions mean equal bytes."""
        return [
            {
                "group": field.group,
                "key": field.key,
                "dtype": field.dtype.str,
                "shape": list(field.shape),
                "stack": field.stack,
            }
            for field in self.fields
        ]

    @classmethod
    def from_description(cls, description: list[dict]) -> Layout:
        fields = [
            Field(item["group"], item["key"], np.dtype(item["dtype"]), tuple(item["shape"]), item["stack"])
            for item in description
        ]
        return cls(*([field for field in fields if field.group == group] for group in ("obs", "action", "extras")))


def _dotted(key: str | None, name: Any) -> str:
    return str(name) if key is None else f"{key}.{name}"


def _widest_first(parts: list[tuple]) -> list[tuple]:
    return sorted(parts, key=lambda part: -part[1].alignment)
