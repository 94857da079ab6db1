"""The actions of the last vector steps, from which episodes under way can be played again."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from slm_lab.lib.trees import leaves
from slm_lab.types import Arrays

FIRST = 256  # steps that there is room for at the beginning


class ActionLog:
    """(T, N, ...) in one table for each part of an action. Thousands of small arrays would do, but they would lie about
    between the large ones that learning makes and frees, and memory in pieces cannot be given back."""

    def __init__(self, space: spaces.Space, num_envs: int):
        self.steps = 0
        self._tables = {
            key or "": np.zeros((FIRST, num_envs, *(part.shape or ())), part.dtype) for key, part in leaves(space)
        }

    def clear(self) -> None:
        self.steps = 0

    def append(self, action: Arrays) -> None:
        """One of every sub-env: (N, ...)"""
        for key, part in (action if isinstance(action, dict) else {"": action}).items():
            table = self._tables[key]
            if self.steps == len(table) or part.dtype != table.dtype:
                table = self._room(key, part.dtype)
            table[self.steps] = part
        self.steps += 1

    def since(self, start: int, index: int) -> Arrays:
        """(T, ...) those of one sub-env, of the steps from `start` on."""
        return self._joined({key: table[start : self.steps, index].copy() for key, table in self._tables.items()})

    def forget(self, steps: int) -> None:
        """The oldest ones."""
        for table in self._tables.values():
            table[: self.steps - steps] = table[steps : self.steps]
        self.steps -= steps

    def take_up(self, actions: list[Arrays]) -> list[int]:
        """Hold what `since` gave of each sub-env; the steps from which on each of them has its own."""
        parts = [taken if isinstance(taken, dict) else {"": taken} for taken in actions]
        lengths = [len(next(iter(part.values()))) for part in parts]
        self.steps = 0
        for key, table in self._tables.items():
            own = [part[key] for part in parts]
            kind = table.dtype if not max(lengths) else np.result_type(*(rows for rows in own if len(rows)))
            room = np.zeros((max(FIRST, *lengths), *table.shape[1:]), kind)
            for index, rows in enumerate(own):
                room[max(lengths) - len(rows) : max(lengths), index] = rows
            self._tables[key] = room
        self.steps = max(lengths)
        return [self.steps - length for length in lengths]

    def _room(self, key: str, dtype: np.dtype) -> np.ndarray:
        held = self._tables[key]
        steps = 2 * len(held) if self.steps == len(held) else len(held)
        table = np.zeros((steps, *held.shape[1:]), np.result_type(held, dtype) if self.steps else dtype)
        table[: self.steps] = held[: self.steps]
        self._tables[key] = table
        return table

    def _joined(self, parts: dict[str, np.ndarray]) -> Arrays:
        return parts.get("", parts)
