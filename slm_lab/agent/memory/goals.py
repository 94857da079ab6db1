"""Where goals are in an observation, and the functions that say what a step is worth with another goal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pydantic import Field

from slm_lab.agent.memory.fields import Layout
from slm_lab.errors import InvalidMemorySpec, InvalidRow, Mistake
from slm_lab.spec import registry
from slm_lab.spec.settings import Settings

GoalFunction = Callable[[Any, Any, Any], Any]  # (achieved (M, ...), desired (M, ...), infos) -> (M,)


class Indices(Settings):
    """Numbers of a flat observation, one by one."""

    indices: list[int] = Field(min_length=1, description="their places, from 0")


Place = str | tuple[int, int] | Indices  # a part of a Dict observation; [start, stop) or single numbers of a flat one


class GoalPlace:
    """One goal inside an observation: the bytes of a row that hold it, and how to write it into a batch."""

    def __init__(self, layout: Layout, place: Place, key: str):
        """`key` of the spec is named where the place does not exist."""
        self.key: str | None = place if isinstance(place, str) else None
        field = next((field for field in layout.obs if field.key == self.key), None)
        if field is None:
            parts = [field.key for field in layout.obs if field.key is not None]
            held = f"the observation has the parts {', '.join(parts)}" if parts else "the observation is flat"
            form = "name one of them" if parts else "give [start, stop] or {'indices': […]}"
            raise _misplaced(key, f"{place if self.key else _told(place)} is not there; {held}: {form}")
        if field.stack > 1:
            raise _misplaced(key, "frames of a stack are stored once, so a goal in them cannot be replaced")
        self.dtype = field.dtype
        offset, size = layout.offset(field.name), field.dtype.itemsize
        if self.key is not None:
            self.shape, self.columns = field.shape, None
            spans = [(offset, field.nbytes)]
        else:
            if len(field.shape) != 1:
                raise _misplaced(key, f"{_told(place)} needs a flat observation; this one has shape {field.shape}")
            self.columns = _columns(place)
            if not self.columns.size or self.columns.min() < 0 or self.columns.max() >= field.shape[0]:
                raise _misplaced(key, f"{_told(place)} does not fit an observation of {field.shape[0]} numbers")
            if np.unique(self.columns).size < self.columns.size:
                raise _misplaced(key, f"{_told(place)} names a number of the observation twice")
            self.shape = (self.columns.size,)
            spans = [(offset + size * column, size) for column in self.columns.tolist()]
        self.spans = np.array(spans, np.int64)  # (S, 2) offset and size in bytes
        self.nbytes = int(self.spans[:, 1].sum())

    def read(self, packed: np.ndarray) -> np.ndarray:
        """Goals in the env's dtype from packed bytes (..., nbytes)."""
        return packed.view(self.dtype).reshape(*packed.shape[:-1], *self.shape)

    def write(self, obs: torch.Tensor | dict[str, torch.Tensor], rows: np.ndarray, goals: np.ndarray) -> None:
        """Put a goal into each of these rows of a batch's observations."""
        if self.columns is None:
            obs[self.key].numpy()[rows] = goals
        else:
            obs.numpy()[rows[:, None], self.columns] = goals


def _columns(place: tuple[int, int] | Indices) -> np.ndarray:
    return np.array(place.indices) if isinstance(place, Indices) else np.arange(*place)


def _told(place: Place) -> str:
    return f"indices {place.indices}" if isinstance(place, Indices) else f"{list(place)}"


def _misplaced(key: str, problem: str) -> InvalidMemorySpec:
    return InvalidMemorySpec([Mistake(key, problem)])


def within(achieved: np.ndarray, desired: np.ndarray, threshold: float) -> np.ndarray:
    """(M,) bool: whether the goals are at most this far apart."""
    apart = achieved.astype(np.float64) - desired.astype(np.float64)
    return np.sqrt((apart * apart).reshape(len(apart), -1).sum(axis=1)) <= threshold


def reward_function(name: str, from_env: GoalFunction | None, threshold: float) -> GoalFunction:
    if name == "sparse":
        return lambda achieved, desired, infos: within(achieved, desired, threshold) - 1.0
    return _found("reward_fn", "compute_reward", name, from_env)


def done_function(name: str | None, from_env: GoalFunction | None, threshold: float) -> GoalFunction | None:
    if name == "sparse":
        return lambda achieved, desired, infos: within(achieved, desired, threshold)
    return None if name is None else _found("done_fn", "compute_terminated", name, from_env)


def _found(key: str, method: str, name: str, from_env: GoalFunction | None) -> GoalFunction:
    if name != "env":
        try:
            return registry.load(key, name)
        except registry.UnknownName as problem:
            raise InvalidMemorySpec([Mistake(key, str(problem))]) from problem
    if from_env is None:
        raise InvalidMemorySpec(
            [Mistake(key, f"'env' was given, but this env has no {method}; use 'sparse' or 'module:function'")]
        )
    return from_env


def ask(function: GoalFunction, key: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """(M,) its answers for M pairs of goals, all at once.

    A function that gives one number for many pairs was written for one pair; it is asked for each in turn.
    """
    count = len(achieved)
    answer = np.asarray(function(achieved, desired, [{}] * count))
    if answer.shape == () and count > 1:
        answer = np.array([function(*pair, {}) for pair in zip(achieved, desired, strict=True)])
    if answer.size != count:
        raise InvalidRow(f"{key}: gave {answer.shape} for {count} pairs of goals; one number for each is needed")
    answer = answer.reshape(count)
    if not np.isfinite(answer).all():
        raise InvalidRow(f"{key}: gave {answer[~np.isfinite(answer)][0]}; it must be finite")
    return answer
