"""A segment: one of the files that a ring's rows are kept in. How it is laid out, and how that is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from slm_lab.agent.memory.fields import Layout
from slm_lab.agent.memory.ring import FLAG_BITS, Ring
from slm_lab.lib.jit import njit

FLAGS = (1 << FLAG_BITS) - 1
READ_BYTES = 1 << 19  # asked of the disk at a time: it goes on reading while these are copied


@dataclass(frozen=True)
class Segment:
    """Rows [start, stop) of each env: t by t where all envs have the same bounds, else env by env."""

    number: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    parts: tuple[tuple[int, int], ...] = ()  # how many rows, and how many finals
    row_sum: int = 0
    final_sum: int = 0

    @property
    def even(self) -> bool:
        return len(set(self.start)) == len(set(self.stop)) == 1

    @property
    def rows(self) -> int:
        return sum(self.stop) - sum(self.start)

    @property
    def finals(self) -> int:
        return sum(finals for _, finals in self.parts)

    def file(self, folder: Path) -> Path:
        return folder / f"rows_{self.number:06}.bin"

    def nbytes(self, layout: Layout) -> int:
        return self.rows * layout.row.itemsize + self.finals * layout.obs_row.itemsize


def table_of(segments: list[Segment]) -> dict[str, np.ndarray]:
    """The segments as few arrays, which a manifest holds: row by row what a segment is, and one row for each part."""
    parts = [(place, *part) for place, segment in enumerate(segments) for part in segment.parts]
    return {
        "number": np.array([segment.number for segment in segments], np.int64),
        "start": np.array([segment.start for segment in segments], np.int64),
        "stop": np.array([segment.stop for segment in segments], np.int64),
        "sums": np.array([(segment.row_sum, segment.final_sum) for segment in segments], np.uint64),
        "parts": np.array(parts, np.int64).reshape(-1, 3),  # place of the segment, rows, finals
    }


def segments_in(table: dict[str, np.ndarray]) -> list[Segment]:
    """The segments of a manifest; TypeError or ValueError where it is not one."""
    parts: list[list[tuple[int, int]]] = [[] for _ in table["number"]]
    for place, rows, finals in table["parts"].tolist():
        if not 0 <= place < len(parts):
            raise ValueError(f"a part of segment {place}, which there is not")
        parts[place].append((rows, finals))
    columns = (table[key].tolist() for key in ("number", "start", "stop", "sums"))
    return [
        Segment(int(number), tuple(start), tuple(stop), tuple(own), *sums)
        for number, start, stop, sums, own in zip(*columns, parts, strict=True)
    ]


def pieces_of(segment: Segment, ring: Ring, most_bytes: int) -> Iterator[tuple[int | None, int, int, int]]:
    """(env or None for all, first t, last t, first byte) in the order of the file; each lies in the table without a
    wrap."""
    at, t = 0, segment.start[0]
    for rows, finals in segment.parts:
        bounds: list[tuple[int | None, int, int]] = [(None, t, t + rows // ring.num_envs)]
        t += rows // ring.num_envs
        if not segment.even:
            bounds = list(zip(range(ring.num_envs), segment.start, segment.stop, strict=True))
        for env, first, stop in bounds:
            width = ring.raw.shape[1] * (ring.num_envs if env is None else 1)
            step = max(1, most_bytes // width)
            while first < stop:
                last = min(stop, first + step, first - first % ring.ring_slots + ring.ring_slots)
                yield env, first, last, at
                at += (last - first) * width
                first = last
        at += finals * ring.layout.obs_row.itemsize


def table_part(ring: Ring, env: int | None, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of those t in the table, and their links."""
    low, envs = first % ring.ring_slots, ring.num_envs
    table = slice(low * envs, (low + last - first) * envs)
    if env is not None:
        table = slice(table.start + env, table.stop, envs)
    return ring.raw[table], ring.links[table, ring.link_word]


def not_before(begin: np.ndarray, env: int | None, first: int, last: int) -> np.ndarray | None:
    """Which of those rows are not before `begin` (N,); None where none is."""
    begin = begin if env is None else begin[env : env + 1]
    return None if first >= begin.max() else (np.arange(first, last)[:, None] >= begin).ravel()


def write_all(file: BinaryIO, array: np.ndarray) -> None:
    view = memoryview(array.reshape(-1))
    while view:
        view = view[file.write(view) :]


def read_at(file: BinaryIO, start: int, array: np.ndarray) -> None:
    view = memoryview(array.reshape(-1))
    file.seek(start)
    while view:
        if not (count := file.readinto(view[:READ_BYTES])):
            raise ValueError("a file ended while it was read")
        view = view[count:]


def sum_words(words: np.ndarray, at: int, total: int) -> int:
    """A checksum that goes on from `total` with words from place `at` on: each counts by an odd number of its own, so
    that no changed, missing or exchanged word goes unnoticed."""
    return int(add_words(words, np.int64(at), np.uint64(total)))


@partial(njit, nogil=True)
def add_words(words, at, acc):
    factor = np.uint64(2 * at + 1) * np.uint64(0x9E3779B97F4A7C15)
    step = np.uint64(2) * np.uint64(0x9E3779B97F4A7C15)
    for index in range(words.size):
        acc += (np.uint64(words[index]) + np.uint64(0x9E3779B1)) * (factor + np.uint64(index) * step)
    return acc
