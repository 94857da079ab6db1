"""What a session counts and writes down: `Table`, a CSV that grows, and `Tally`, the episodes that have ended."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from slm_lab.analysis.tables import split_table
from slm_lab.errors import RunError

Number = float | int | None


class Table:
    """A CSV with fixed columns, one row at a time, each on its way to disk before `append` returns.

    An existing file is taken up where its last whole line ends.
    """

    def __init__(self, path: str | Path, columns: Sequence[str]):
        self.path = Path(path)
        self.columns = tuple(columns)
        self.rows: list[dict[str, Number]] = []
        self._header = ",".join(self.columns) + "\n"
        self._sum = blake2b(digest_size=16)  # over all that was written
        self._file = open(self.path, "a+b")  # noqa: SIM115 (open as long as the session runs)
        self._file.seek(0)
        content = self._file.read()
        if content and b"\n" not in content:
            self._file.close()
            raise RunError(f"{self.path}: damaged: it has no whole line")
        whole = content.rfind(b"\n") + 1
        self._cut_at = None if whole == len(content) else whole  # before anything more is written
        content = content[:whole]
        if content:
            self.rows = self._parse(content.decode(errors="replace"))
            self._sum.update(content)
        else:
            self._write(self._header)

    def append(self, row: dict[str, Any]) -> None:
        """Write one row; columns that it lacks stay empty."""
        unknown = [key for key in row if key not in self.columns]
        if unknown:
            raise ValueError(f"{self.path.name} has no column {unknown[0]!r}; it has {', '.join(self.columns)}")
        numbers = {column: _number(row.get(column)) for column in self.columns}
        self.rows.append(numbers)  # first: where the disk is full, the row waits in the file's buffer
        self._write(",".join(map(_cell, numbers.values())) + "\n")

    def _write(self, line: str) -> None:
        if self._cut_at is not None:
            self._file.truncate(self._cut_at)
            self._cut_at = None
        self._sum.update(line.encode())
        self._file.write(line.encode())
        self._file.flush()

    def state_dict(self) -> dict[str, Any]:
        """How much has been written, durably: a checkpoint that counts on these rows finds them after a power cut."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"rows": len(self.rows), "bytes": self._file.seek(0, os.SEEK_END), "sum": self._sum.hexdigest()}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Go back to that checkpoint: what was written after it vanishes from the file."""
        length = self._file.seek(0, os.SEEK_END)
        if not 0 <= tree["rows"] <= tree["bytes"]:
            raise RunError(f"{self.path}: its checkpoint tells of {tree['rows']} rows in {tree['bytes']} bytes")
        if length < tree["bytes"]:
            raise RunError(f"{self.path}: shorter than its checkpoint says ({length} of {tree['bytes']} bytes)")
        self._file.seek(0)
        content = self._file.read(tree["bytes"])
        if not content.endswith(b"\n") or content.count(b"\n") != tree["rows"] + 1:
            raise RunError(f"{self.path}: not the table of this checkpoint, which has {tree['rows']} rows here")
        written = blake2b(content, digest_size=16)
        if written.hexdigest() != tree["sum"]:
            raise RunError(f"{self.path}: damaged: it does not match the checksum in its checkpoint")
        self._sum = written
        self._cut_at = None
        self._file.truncate(tree["bytes"])  # the file is open for appending: the next write goes to the new end
        del self.rows[tree["rows"] :]

    def close(self) -> None:
        self._file.close()

    def _parse(self, content: str) -> list[dict[str, Number]]:
        columns, cells = split_table(content, self.path)
        if tuple(columns) != self.columns:
            raise RunError(f"{self.path}: its columns are '{','.join(columns)}', not '{self._header.strip()}'")
        rows = []
        for number, row in enumerate(cells, start=2):
            try:
                rows.append(dict(zip(self.columns, map(_parse_cell, row), strict=True)))
            except ValueError as error:
                raise RunError(f"{self.path}: line {number} is not a row of this table") from error
        return rows


def _number(value: Any) -> Number:
    """`value` as Python's own number, None where there is nothing to tell."""
    if value is None:
        return None
    if hasattr(value, "item"):  # numpy scalars and one-element arrays and tensors
        value = value.item()
    if isinstance(value, int):  # bool included
        return int(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    raise TypeError(f"a table holds numbers, not {type(value).__name__}")


def _cell(value: Number) -> str:
    return "" if value is None else repr(value)


def _parse_cell(text: str) -> Number:
    if not text:
        return None
    return int(text) if text.removeprefix("-").isdigit() else float(text)


class Tally:
    """Counts the episodes of N envs as their steps go by; none is lost between two looks."""

    def __init__(self, num_envs: int, window: int = 100):
        self.episodes = 0
        self._returns = np.zeros(num_envs)  # (N,) of the episodes under way
        self._steps = 0
        self._started = np.zeros(num_envs, np.int64)  # (N,) `_steps` when the episode under way began
        self._recent: deque[float] = deque(maxlen=window)
        self._unseen: list[tuple[float, int]] = []

    def add(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """One step of every env: reward (N,), ended (N,) bool."""
        self._steps += 1
        self._returns = self._returns + reward  # numpy adds a single element in place three times more slowly
        if np.count_nonzero(ended):
            self._finish(np.flatnonzero(ended))

    def count(self, episodes: list[tuple[float, int]]) -> None:
        """(return, length) of episodes whose steps went by elsewhere."""
        self.episodes += len(episodes)
        self._recent.extend(total for total, _ in episodes)
        self._unseen.extend(episodes)

    def forget(self, env: int) -> None:
        """The episode under way there does not count; the next begins with the next step."""
        self._returns[env] = 0
        self._started[env] = self._steps

    def since(self) -> list[tuple[float, int]]:
        """(return, length) of each episode that has ended since the last call, oldest first."""
        unseen, self._unseen = self._unseen, []
        return unseen

    @property
    def moving_average(self) -> float | None:
        """Mean return of the last `window` episodes."""
        return math.fsum(self._recent) / len(self._recent) if self._recent else None

    def _finish(self, envs: np.ndarray) -> None:
        returns = self._returns[envs].tolist()
        lengths = (self._steps - self._started[envs]).tolist()
        self.episodes += len(returns)
        self._recent.extend(returns)
        self._unseen.extend(zip(returns, lengths, strict=True))
        self._returns[envs] = 0
        self._started[envs] = self._steps

    def state_dict(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes,
            "returns": self._returns.copy(),
            "lengths": self._steps - self._started,
            "recent": list(self._recent),
            "unseen": [list(episode) for episode in self._unseen],
        }

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        self.episodes = int(tree["episodes"])
        self._returns[:] = tree["returns"]
        self._steps = 0
        self._started[:] = -tree["lengths"]
        self._recent = deque(map(float, tree["recent"]), maxlen=self._recent.maxlen)
        math.fsum(self._recent)  # ValueError or OverflowError where they have no mean
        self._unseen = [(float(total), int(length)) for total, length in tree["unseen"]]
