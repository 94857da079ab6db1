"""A ring's rows in append-only files: what a save costs follows the rows that are new, not those that are held.

    rows_000007.bin      packed rows of one segment, oldest first, as they are in the ring
    finals_000007.bin    the final observations of those among them that have one, in the same order

What makes sense of them, the manifest, is the `ring` of the memory's state tree and is kept by whoever keeps the tree:
per segment the t of each env where it starts and stops, and a checksum; and whole, what may still change: the newest
row of each env. Bytes that a manifest tells of are never written again, so the one before it stays good; segments are
removed when the last two manifests that were confirmed do without them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from slm_lab.agent.memory.ring import ENDED, FLAG_BITS, Ring
from slm_lab.errors import RunError
from slm_lab.lib.files import sync_folder
from slm_lab.lib.jit import njit

SEGMENTS = 8  # that a full ring is divided into, about
MOST_SEGMENTS = 64  # after which everything is written anew
CHUNK_BYTES = 1 << 20  # written or read at a time: summed while it is in the cache
FLAGS = (1 << FLAG_BITS) - 1


@dataclass(frozen=True)
class Segment:
    """Rows [start, stop) of each env: t by t where all envs have the same bounds, else env by env."""

    number: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    row_sum: int = 0
    finals: int = 0
    final_sum: int = 0

    @property
    def even(self) -> bool:
        return len(set(self.start)) == len(set(self.stop)) == 1

    @property
    def rows(self) -> int:
        return sum(self.stop) - sum(self.start)

    def rows_file(self, folder: Path) -> Path:
        return folder / f"rows_{self.number:06}.bin"

    def finals_file(self, folder: Path) -> Path:
        return folder / f"finals_{self.number:06}.bin"


class Store:
    """The folder of one memory's segments."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.segments: list[Segment] = []  # those of the last manifest written or read
        there = {int(file.stem[5:]) for file in self.folder.glob("rows_*.bin") if file.stem[5:].isdecimal()}
        self._confirmed = [there]  # segments of the last two manifests that are kept
        self._written: set[int] = set()
        self._next = max(there, default=-1) + 1

    def forget(self) -> None:
        """Write everything anew next time: the ring has come to hold other rows."""
        self.segments = []

    def write(self, ring: Ring) -> dict:
        """The manifest, once all rows that it tells of are on the disk."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(2) as disk:  # a segment goes to the disk while the next one is written
                segments, syncing = self._segments_with_new_rows(ring, disk)
            for file in syncing:
                file.result()
            if {segment.number for segment in segments} - self._written:
                sync_folder(self.folder)
        except OSError as error:
            raise RunError(f"{self.folder}: rows cannot be written: {error.strerror or error}") from error
        self.segments = segments
        self._written = {segment.number for segment in segments}
        ids = (ring.head - 1) * ring.num_envs + np.arange(ring.num_envs)
        newest = ring.raw[ring.rows_of(ids)]
        links = newest.view(np.int32)[:, ring.link_word]
        links[ring.head <= ring.tail] &= FLAGS
        finals = ring.finals[(links[links >> FLAG_BITS > 0] >> FLAG_BITS) - 1]
        return {
            "segments": [asdict(segment) for segment in segments],
            "newest": newest,
            "newest_finals": finals,
            "pending": ring.pending_obs(),
            "head": ring.head.tolist(),
            "tail": ring.tail.tolist(),
            "seen": ring.seen,
            "row_bytes": ring.raw.shape[1],
            "final_bytes": ring.finals.shape[1],
        }

    def confirm(self) -> None:
        """The last manifest written is kept durably, in the place of the one before the last."""
        self._confirmed = [*self._confirmed[-1:], self._written]
        needed = set().union(*self._confirmed)
        for kind in ("rows", "finals"):
            for file in self.folder.glob(f"{kind}_??????.bin"):
                number = file.stem.partition("_")[2]
                if number.isdecimal() and int(number) not in needed:
                    with suppress(OSError):  # the next time is as good
                        file.unlink()

    def read(self, ring: Ring, manifest: dict) -> None:
        """Fill a ring with the rows of that manifest; RunError where files or numbers are not as they were written."""
        try:
            plan = _Plan(self.folder, ring, manifest)
            plan.check()
            plan.fill()
        except OSError as error:
            raise RunError(f"{self.folder}: rows cannot be read: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise RunError(f"{self.folder}: damaged or not a memory's manifest ({error})") from error
        self.segments = plan.segments
        self._written = {segment.number for segment in plan.segments}
        self._confirmed = [self._written]

    def _segments_with_new_rows(self, ring: Ring, disk: Executor) -> tuple[list[Segment], list[Future]]:
        """The segments, and when what was added to them will be on the disk."""
        syncing: list[Future] = []
        kept = np.maximum(ring.tail - ring.history, 0)
        segments = [segment for segment in self.segments if (np.array(segment.stop) > kept).any()]
        stored = np.array(self.segments[-1].stop) if self.segments else np.zeros_like(kept)
        if len(segments) >= MOST_SEGMENTS or (stored > ring.head).any():
            segments, stored = [], np.zeros_like(kept)
        stop = np.maximum(ring.head - 1, 0)
        start = np.minimum(np.maximum(stored, kept), stop)
        if np.ptp(stop) == 0:
            start[:] = start.min()  # forgotten rows of some envs are no harm
        most = max(ring.slots // SEGMENTS, CHUNK_BYTES // ring.raw.shape[1] // ring.num_envs, 1)
        while (start < stop).any():
            last = segments[-1] if segments else None
            full = last is None or not last.even or last.stop != tuple(start.tolist()) or np.ptp(stop) > 0
            if last is None or full or last.stop[0] - last.start[0] >= most:
                last = Segment(self._next, tuple(start.tolist()), tuple(start.tolist()))
                segments.append(last)
                self._next += 1
            until = np.minimum(start + most - (last.stop[0] - last.start[0] if last.even else 0), stop)
            if (stop - start).max() <= most:  # not the last few to this segment and the next few to a new one
                until = stop
            segments[-1] = self._append(ring, last, start, until, disk, syncing)
            start = until
        return segments, syncing

    def _append(
        self, ring: Ring, segment: Segment, start: np.ndarray, stop: np.ndarray, disk: Executor, syncing: list[Future]
    ) -> Segment:
        row_bytes, final_bytes = ring.raw.shape[1], ring.finals.shape[1]
        row_sum, finals, final_sum = segment.row_sum, segment.finals, segment.final_sum
        grown = replace(segment, stop=tuple(stop.tolist()))
        piece = Segment(segment.number, tuple(start.tolist()), grown.stop)
        rows_file = _open_at(segment.rows_file(self.folder), segment.rows * row_bytes)
        finals_file = _open_at(segment.finals_file(self.folder), segment.finals * final_bytes)
        try:
            at = segment.rows * row_bytes // 4
            for env, first, last in pieces_of(piece, ring):
                rows, links = _table_part(ring, env, first, last)
                if (held := _from(ring.tail, env, first, last)) is not None:
                    links[~held] &= FLAGS  # in the ring, to which it is all the same: forgotten rows have no finals
                rows = np.ascontiguousarray(rows)
                row_sum = sum_words(rows.reshape(-1).view(np.uint32), at, row_sum)
                at += rows.size // 4
                _write_all(rows_file, rows)
                places = links >> FLAG_BITS
                own = ring.finals[places[np.flatnonzero(places)] - 1]
                final_sum = sum_words(own.reshape(-1).view(np.uint32), finals * final_bytes // 4, final_sum)
                finals += len(own)
                _write_all(finals_file, own)
        finally:
            syncing += [disk.submit(_sync, rows_file), disk.submit(_sync, finals_file)]
        return replace(grown, row_sum=row_sum, finals=finals, final_sum=final_sum)


class _Plan:
    """One reading of a manifest: all is checked that can be before any room is made for it."""

    def __init__(self, folder: Path, ring: Ring, manifest: dict):
        self.folder = folder
        self.ring = ring
        self.head = np.array(manifest["head"], np.int64)
        self.tail = np.array(manifest["tail"], np.int64)
        self.segments = [
            Segment(**{key: tuple(value) if isinstance(value, list) else int(value) for key, value in entry.items()})
            for entry in manifest["segments"]
        ]
        self.manifest = manifest

    def check(self) -> None:
        ring, manifest = self.ring, self.manifest
        if self.head.shape != (ring.num_envs,) or self.tail.shape != self.head.shape:
            raise RunError(f"the saved memory has rows of {self.head.size} envs, this one is for {ring.num_envs}")
        row_bytes, final_bytes = ring.layout.row.itemsize, ring.layout.obs_row.itemsize
        if (manifest["row_bytes"], manifest["final_bytes"]) != (row_bytes, final_bytes):
            raise ValueError(f"rows of {manifest['row_bytes']} bytes, {row_bytes} are expected")
        if (self.tail < 0).any() or (self.head < self.tail).any() or int(manifest["seen"]) < 0:
            raise ValueError("its counts contradict each other")
        covered = np.maximum(self.tail - ring.history, 0)
        for segment in self.segments:
            start, stop = np.array(segment.start, np.int64), np.array(segment.stop, np.int64)
            if start.shape != covered.shape or stop.shape != covered.shape or (start < 0).any() or (stop < start).any():
                raise ValueError(f"segment {segment.number} has impossible bounds")
            for file, needed in (
                (segment.rows_file(self.folder), segment.rows * row_bytes),
                (segment.finals_file(self.folder), segment.finals * final_bytes),
            ):
                if not 0 <= needed <= file.stat().st_size:
                    raise ValueError(f"{file.name} has {file.stat().st_size} bytes, {needed} are expected")
            covered = np.where((start <= covered) & (covered < stop), stop, covered)
        if (covered < self.head - 1).any():
            raise ValueError("some rows are in none of its segments")
        longest = int((self.head - self.tail).max())
        if longest > ring.slots and not ring.grows:
            raise RunError(f"the saved memory holds {longest} rows an env, this one has room for {ring.slots}")
        _of_shape(manifest["newest"], (ring.num_envs, row_bytes))
        _of_shape(manifest["pending"], (ring.num_envs, ring.layout.obs_nbytes))

    def fill(self) -> None:
        ring, manifest = self.ring, self.manifest
        ring.begin_at(self.head, self.tail)
        finals = 0  # places given so far
        self.ended = 0  # episodes whose last row is held
        self.covered = np.maximum(self.tail - ring.history, 0)  # (N,) rows before this t are there, or are not needed
        wanted = []
        for segment in self.segments:
            order, finals = self._rows(segment, finals)
            wanted.append(order)
        newest = np.array(manifest["newest"])
        links = newest.view(np.int32)[:, ring.link_word]
        self.ended += np.count_nonzero(links[self.head > self.tail] & ENDED)
        own = links >> FLAG_BITS > 0
        last = _of_shape(manifest["newest_finals"], (int(own.sum()), ring.layout.obs_row.itemsize))
        links[own] = (finals + np.arange(1, len(last) + 1) << FLAG_BITS) | (links[own] & FLAGS)
        there = self.head > 0
        ids = (self.head - 1) * ring.num_envs + np.arange(ring.num_envs)
        ring.raw[ring.rows_of(ids[there])] = newest[there]
        room = ring.use_finals(finals + len(last))
        room[finals:] = last
        at = 0
        for segment, order in zip(self.segments, wanted, strict=True):
            self._finals(segment, order, room[at : at + len(order)])
            at += len(order)
        ring.settle(np.asarray(manifest["pending"]), int(manifest["seen"]), self.ended)

    def _rows(self, segment: Segment, finals: int) -> tuple[np.ndarray, int]:
        """Which of the segment's finals are of rows that are held; these get places from `finals` on."""
        ring = self.ring
        total, at, found = 0, 0, 0
        orders = []
        with open(segment.rows_file(self.folder), "rb", buffering=0) as file:
            for env, first, last in pieces_of(segment, ring):
                rows, _ = _table_part(ring, env, first, last)
                needed = _from(self.covered, env, first, last)
                held = _from(np.maximum(self.covered, ring.tail), env, first, last)
                target = rows if needed is None and rows.flags.c_contiguous else np.empty(rows.shape, np.uint8)
                _read_all(file, target)
                total = sum_words(target.reshape(-1).view(np.uint32), at, total)
                at += target.size // 4
                links = target.view(np.int32)[:, ring.link_word]
                own = np.flatnonzero(links)
                own = own[links[own] >> FLAG_BITS > 0]
                order = np.arange(own.size) if held is None else np.flatnonzero(held[own])
                orders.append(found + order)
                found += own.size
                alive = own[order]
                links[own] &= FLAGS
                self.ended += np.count_nonzero(links[alive] & ENDED)
                links[alive] |= (finals + 1 + np.arange(alive.size)) << FLAG_BITS
                finals += alive.size
                if target is not rows:
                    needed = slice(None) if needed is None else needed
                    rows[needed] = target[needed]
        self.covered = np.maximum(self.covered, segment.stop)
        if total != segment.row_sum or found != segment.finals:
            raise ValueError(f"{segment.rows_file(self.folder).name} does not match its checksum")
        return np.concatenate([np.empty(0, np.int64), *orders]), finals

    def _finals(self, segment: Segment, order: np.ndarray, room: np.ndarray) -> None:
        """Copy the finals that are wanted, in their order; all are summed."""
        total, width = 0, room.shape[1]
        step = max(1, CHUNK_BYTES // width)
        with open(segment.finals_file(self.folder), "rb", buffering=0) as file:
            for first in range(0, segment.finals, step):
                chunk = np.empty((min(step, segment.finals - first), width), np.uint8)
                _read_all(file, chunk)
                total = sum_words(chunk.reshape(-1).view(np.uint32), first * width // 4, total)
                low, high = np.searchsorted(order, (first, first + len(chunk)))
                room[low:high] = chunk[order[low:high] - first]
        if total != segment.final_sum:
            raise ValueError(f"{segment.finals_file(self.folder).name} does not match its checksum")


def pieces_of(segment: Segment, ring: Ring) -> Iterator[tuple[int | None, int, int]]:
    """(env or None for all, first t, last t) in the order of the file; each lies in the table without a wrap."""
    envs: list[int | None] = [None] if segment.even else list(range(ring.num_envs))
    for env in envs:
        width = ring.raw.shape[1] * (ring.num_envs if env is None else 1)
        step = max(1, CHUNK_BYTES // width)
        first, stop = segment.start[env or 0], segment.stop[env or 0]
        while first < stop:
            last = min(stop, first + step, first - first % ring.ring_slots + ring.ring_slots)
            yield env, first, last
            first = last


def _table_part(ring: Ring, env: int | None, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of those t in the table, and their links."""
    low, envs = first % ring.ring_slots, ring.num_envs
    table = slice(low * envs, (low + last - first) * envs)
    if env is not None:
        table = slice(table.start + env, table.stop, envs)
    return ring.raw[table], ring.links[table, ring.link_word]


def _from(begin: np.ndarray, env: int | None, first: int, last: int) -> np.ndarray | None:
    """Which of those rows are not before `begin` (N,); None where none is."""
    begin = begin if env is None else begin[env : env + 1]
    return None if first >= begin.max() else (np.arange(first, last)[:, None] >= begin).ravel()


def _sync(file: BinaryIO) -> None:
    with file:
        os.fsync(file.fileno())


def _open_at(file: Path, length: int) -> BinaryIO:
    """The file, cut off where what is known of it ends."""
    handle = open(file, "rb+" if length else "wb", buffering=0)  # noqa: SIM115 (closed by the caller)
    handle.truncate(length)
    handle.seek(length)
    return handle


def _write_all(file: BinaryIO, array: np.ndarray) -> None:
    view = memoryview(array.reshape(-1))
    while view:
        view = view[file.write(view) :]


def _read_all(file: BinaryIO, array: np.ndarray) -> None:
    view = memoryview(array.reshape(-1))
    while view:
        if not (count := file.readinto(view)):
            raise ValueError("a file ended while it was read")
        view = view[count:]


def _of_shape(array: Any, shape: tuple[int, ...]) -> np.ndarray:
    if array.dtype != np.uint8 or array.shape != shape:
        raise ValueError(f"{array.dtype} {array.shape} where bytes {shape} are expected")
    return array


def sum_words(words: np.ndarray, at: int, total: int) -> int:
    """A checksum that goes on from `total` with words from place `at` on: each counts by an odd number of its own, so
    that no changed, missing or exchanged word goes unnoticed."""
    return int(add_words(words, np.int64(at), np.uint64(total)))


@njit
def add_words(words, at, acc):
    factor = np.uint64(2 * at + 1) * np.uint64(0x9E3779B97F4A7C15)
    step = np.uint64(2) * np.uint64(0x9E3779B97F4A7C15)
    for index in range(words.size):
        acc += (np.uint64(words[index]) + np.uint64(0x9E3779B1)) * (factor + np.uint64(index) * step)
    return acc
