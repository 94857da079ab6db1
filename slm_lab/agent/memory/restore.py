"""A ring filled from the files of a store, once it is sure that they and the manifest fit each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from slm_lab.agent.memory.fields import Layout
from slm_lab.agent.memory.ring import ENDED, FLAG_BITS, Ring, check_links
from slm_lab.agent.memory.segment import (
    FLAGS,
    Segment,
    not_before,
    pieces_of,
    read_at,
    segments_in,
    sum_words,
    table_part,
)
from slm_lab.errors import RunError

PIECE_BYTES = 1 << 22  # of a file that are looked at as one
READ_AHEAD = 5  # pieces


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of a segment, (rows, row bytes), on their way from the file to the table."""

    number: int  # of the file
    file: BinaryIO
    start: int  # byte of the file
    rows: np.ndarray  # their place in the table
    target: np.ndarray  # where they are read to: that place, or beside it where not all are needed
    needed: np.ndarray | None  # which of them the table needs; None: all
    held: np.ndarray | None  # which of them the ring holds, and not only their frames; None: all


class Restoration:
    """One reading of a manifest: all is checked that can be before any room is made for it. To `fill` the ring, it has
    to have the layout of the saved rows; to `check`, not yet."""

    def __init__(self, folder: Path, ring: Ring, layout: Layout, manifest: dict):
        self.folder = folder
        self.ring = ring
        self.layout = layout
        self.head = np.array(manifest["head"], np.int64)
        self.tail = np.array(manifest["tail"], np.int64)
        self.segments = segments_in(manifest["segments"])
        self.manifest = manifest

    def check(self) -> None:
        ring, manifest = self.ring, self.manifest
        if self.head.shape != (ring.num_envs,) or self.tail.shape != self.head.shape:
            raise RunError(f"the saved memory has rows of {self.head.size} envs, this one is for {ring.num_envs}")
        row_bytes, final_bytes = self.layout.row.itemsize, self.layout.obs_row.itemsize
        if (manifest["row_bytes"], manifest["final_bytes"]) != (row_bytes, final_bytes):
            raise ValueError(f"rows of {manifest['row_bytes']} bytes, {row_bytes} are expected")
        if (self.tail < 0).any() or (self.head < self.tail).any() or int(manifest["seen"]) < 0:
            raise ValueError("its counts contradict each other")
        covered = np.maximum(self.tail - ring.history, 0)
        for segment in self.segments:
            start, stop = np.array(segment.start, np.int64), np.array(segment.stop, np.int64)
            if start.shape != covered.shape or stop.shape != covered.shape or (start < 0).any() or (stop < start).any():
                raise ValueError(f"segment {segment.number} has impossible bounds")
            if any(rows < 0 or finals < 0 for rows, finals in segment.parts):
                raise ValueError(f"segment {segment.number} has impossible parts")
            if sum(rows for rows, _ in segment.parts) != segment.rows or (len(segment.parts) > 1 and not segment.even):
                raise ValueError(f"segment {segment.number} has parts that are not its rows")
            file, needed = segment.file(self.folder), segment.nbytes(self.layout)
            if needed > file.stat().st_size:
                raise ValueError(f"{file.name} has {file.stat().st_size} bytes, {needed} are expected")
            covered = np.where((start <= covered) & (covered < stop), stop, covered)
        if (covered < self.head - 1).any():
            raise ValueError("some rows are in none of its segments")
        longest = int((self.head - self.tail).max())
        if longest > ring.slots and not ring.grows:
            raise RunError(f"the saved memory holds {longest} rows an env, this one has room for {ring.slots}")
        _of_shape(manifest["newest"], (ring.num_envs, row_bytes))
        _of_shape(manifest["pending"], (ring.num_envs, self.layout.obs_nbytes))

    def fill(self) -> None:
        ring, manifest = self.ring, self.manifest
        ring.begin_at(self.head, self.tail)
        finals = 0  # places given so far
        self.ended = 0  # episodes whose last row is held
        wanted = []
        pieces = self._pieces()
        try:
            for segment in self.segments:
                order, finals = self._rows(segment, pieces, finals)
                wanted.append(order)
        finally:
            pieces.close()
        newest = np.array(manifest["newest"])
        links = newest.view(np.int32)[:, ring.link_word]
        check_links(links, self.head > self.tail)
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

    def _rows(self, segment: Segment, pieces: Iterator[Piece], finals: int) -> tuple[np.ndarray, int]:
        """Which of the segment's finals are of rows that are held; these get places from `finals` on."""
        total, at, found = 0, 0, 0
        orders = []
        for _ in pieces_of(segment, self.ring, PIECE_BYTES):
            piece = next(pieces)
            target = piece.target
            total = sum_words(target.reshape(-1).view(np.uint32), at, total)
            at += target.size // 4
            links = target.view(np.int32)[:, self.ring.link_word]
            check_links(links, piece.held)
            own = np.flatnonzero(links)
            own = own[links[own] >> FLAG_BITS > 0]
            order = np.arange(own.size) if piece.held is None else np.flatnonzero(piece.held[own])
            orders.append(found + order)
            found += own.size
            alive = own[order]
            links[own] &= FLAGS
            self.ended += np.count_nonzero(links[alive] & ENDED)
            links[alive] |= (finals + 1 + np.arange(alive.size)) << FLAG_BITS
            finals += alive.size
            if target is not piece.rows:
                needed = slice(None) if piece.needed is None else piece.needed
                piece.rows[needed] = target[needed]
        if total != segment.row_sum or found != segment.finals:
            raise ValueError(f"{segment.file(self.folder).name} does not match its checksum")
        return np.concatenate([np.empty(0, np.int64), *orders]), finals

    def _pieces(self) -> Generator[Piece]:
        """All segments' pieces in the order of the files; the next ones are read while one is looked at, from two files
        at a time, since a file's first bytes are long in coming."""
        with ExitStack() as files, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
            reading: deque[tuple[Piece, Future]] = deque()
            for piece in self._unread(files):
                disk = other if piece.number % 2 else one
                reading.append((piece, disk.submit(read_at, piece.file, piece.start, piece.target)))
                if len(reading) > READ_AHEAD:
                    yield _once_read(*reading.popleft())
            while reading:
                yield _once_read(*reading.popleft())

    def _unread(self, files: ExitStack) -> Iterator[Piece]:
        ring = self.ring
        covered = np.maximum(self.tail - ring.history, 0)  # (N,) rows before this t are there, or are not needed
        for number, segment in enumerate(self.segments):
            file = files.enter_context(segment.file(self.folder).open("rb", buffering=0))
            begin = np.maximum(covered, ring.tail)
            for env, first, last, start in pieces_of(segment, ring, PIECE_BYTES):
                rows, _ = table_part(ring, env, first, last)
                needed = not_before(covered, env, first, last)
                target = rows if needed is None and rows.flags.c_contiguous else np.empty(rows.shape, np.uint8)
                yield Piece(number, file, start, rows, target, needed, not_before(begin, env, first, last))
            covered = np.maximum(covered, segment.stop)

    def _finals(self, segment: Segment, order: np.ndarray, room: np.ndarray) -> None:
        """Copy the finals that are wanted, in their order; all are summed."""
        total, done, start, width = 0, 0, 0, room.shape[1]
        step = max(1, PIECE_BYTES // width)
        with open(segment.file(self.folder), "rb", buffering=0) as file:
            for rows, finals in segment.parts:
                start += rows * self.ring.layout.row.itemsize
                for first in range(0, finals, step):
                    chunk = np.empty((min(step, finals - first), width), np.uint8)
                    read_at(file, start, chunk)
                    total = sum_words(chunk.reshape(-1).view(np.uint32), done * width // 4, total)
                    low, high = np.searchsorted(order, (done, done + len(chunk)))
                    room[low:high] = chunk[order[low:high] - done]
                    done += len(chunk)
                    start += chunk.nbytes
        if total != segment.final_sum:
            raise ValueError(f"{segment.file(self.folder).name} does not match its checksum")


def _once_read(piece: Piece, reading: Future) -> Piece:
    reading.result()
    return piece


def _of_shape(array: Any, shape: tuple[int, ...]) -> np.ndarray:
    if array.dtype != np.uint8 or array.shape != shape:
        raise ValueError(f"{array.dtype} {array.shape} where bytes {shape} are expected")
    return array
