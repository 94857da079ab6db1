"""A ring's rows in append-only files: what a save costs follows the rows that are new, not those that are held.

    rows_000007.bin      one segment, oldest first. Each save adds a part: packed rows as they are in the ring, and then
                         the final observations of those among them that have one, in the same order

What makes sense of them, the manifest, is the `ring` of the memory's state tree and is kept by whoever keeps the tree:
per segment the t of each env where it starts and stops, and a checksum; and whole, what may still change: the newest
row of each env. Bytes that a manifest tells of are never written again, so the one before it stays good; segments are
removed when the last two manifests that were confirmed do without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO

import numpy as np

from slm_lab.agent.memory.fields import Layout
from slm_lab.agent.memory.restore import Restoration
from slm_lab.agent.memory.ring import FLAG_BITS, Ring
from slm_lab.agent.memory.segment import (
    FLAGS,
    Segment,
    not_before,
    pieces_of,
    sum_words,
    table_of,
    table_part,
    write_all,
)
from slm_lab.errors import RunError
from slm_lab.lib.files import sync_folder

SEGMENTS = 8  # that a full ring is divided into, about
MOST_SEGMENTS = 64  # after which everything is written anew
ROWS, FINALS = 0, 1
CHUNK_BYTES = 1 << 20  # written at a time: summed while it is in the cache


class Store:
    """The folder of one memory's segments. One that `waits` has rows on the disk when `write` returns; else that takes
    a `wait`, and until then the manifest may not be counted on.

    `write` lays down what comes (`_coming`), `wait` makes it what there is (`segments`, `_written`), and `confirm`,
    when its manifest is kept, what must stay (`_confirmed`); `_there` are all that have a file.
    """

    def __init__(self, folder: Path, waits: bool = True):
        self.folder = Path(folder)
        self.waits = waits
        self.segments: list[Segment] = []  # those of the last manifest that was read or whose rows are on the disk
        self._coming: list[Segment] = []  # those of the last manifest written
        self._syncing: list[Future] = []  # when what is new in them will be on the disk
        # numbers of segments: with files here, of the last two manifests that are kept, of the last one written
        self._there = {int(file.stem[5:]) for file in self.folder.glob("rows_*.bin") if file.stem[5:].isdecimal()}
        self._confirmed = [self._there.copy()]
        self._written: set[int] = set()
        self._next = max(self._there, default=-1) + 1

    def write_anew(self) -> None:
        """The ring has come to hold other rows: none of these is to be counted on next time."""
        self.segments = []

    def taken_back(self, head: np.ndarray) -> None:
        """The ring took back the rows from these t (N,) on: there may be others in their places next time. The row
        before them is the newest now, and segments hold none that is."""
        until = np.maximum(head - 1, 0)
        self.segments = list(takewhile(lambda segment: (np.array(segment.stop) <= until).all(), self.segments))

    def write(self, ring: Ring) -> dict:
        """The manifest of the rows."""
        self._syncing = []
        disk = ThreadPoolExecutor(2)  # waits for it, while the next file, or the tree, is written
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                sync_folder(self.folder.parent)
            self._coming = self._segments_with_new_rows(ring, disk)
            if {segment.number for segment in self._coming} - self._written:
                self._syncing.append(_begin(disk, sync_folder, self.folder))
        except OSError as error:
            raise self._unwritten(error) from error
        finally:
            disk.shutdown(wait=False)
        if self.waits:
            self.wait()
        ids = (ring.head - 1) * ring.num_envs + np.arange(ring.num_envs)
        newest = ring.raw[ring.rows_of(ids)]
        links = newest.view(np.int32)[:, ring.link_word]
        links[ring.head <= ring.tail] &= FLAGS
        own = links >> FLAG_BITS > 0
        finals = ring.finals[(links[own] >> FLAG_BITS) - 1]
        links[own] = (np.arange(1, len(finals) + 1) << FLAG_BITS) | (links[own] & FLAGS)  # where they are in `finals`
        return {
            "segments": table_of(self._coming),
            "newest": newest,
            "newest_finals": finals,
            "pending": ring.pending_obs(),
            "head": ring.head.tolist(),
            "tail": ring.tail.tolist(),
            "seen": ring.seen,
            "row_bytes": ring.raw.shape[1],
            "final_bytes": ring.finals.shape[1],
        }

    def wait(self) -> None:
        """Until all rows that the last manifest tells of are on the disk."""
        try:
            for synced in self._syncing:
                synced.result()
        except OSError as error:
            raise self._unwritten(error) from error
        self._syncing = []
        self.segments, self._written = self._coming, {segment.number for segment in self._coming}

    def confirm(self) -> None:
        """The last manifest written is kept durably, in the place of the one before the last."""
        self._confirmed = [*self._confirmed[-1:], self._written]
        needed = set().union(*self._confirmed)
        if needed >= self._there:
            return
        self._there &= needed
        for file in self.folder.glob("rows_??????.bin"):
            if file.stem[5:].isdecimal() and int(file.stem[5:]) not in needed:
                with suppress(OSError):  # the next time is as good
                    file.unlink()

    def check(self, ring: Ring, layout: Layout, manifest: dict) -> None:
        """RunError where that manifest's rows, which have this layout, do not fit the ring, or their files are too
        short; nothing is changed."""
        with self._reading():
            Restoration(self.folder, ring, layout, manifest).check()

    def read(self, ring: Ring, manifest: dict) -> None:
        """Fill a ring with the rows of a manifest that was checked; RunError where they are not as they were."""
        with self._reading():
            plan = Restoration(self.folder, ring, ring.layout, manifest)
            plan.fill()
        self.segments = plan.segments
        self._written = {segment.number for segment in plan.segments}
        self._confirmed = [self._written]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self.folder}: rows cannot be read: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise RunError(f"{self.folder}: damaged or not a memory's manifest ({error})") from error

    def _unwritten(self, error: OSError) -> RunError:
        return RunError(f"{self.folder}: rows cannot be written: {error.strerror or error}")

    def _segments_with_new_rows(self, ring: Ring, disk: Executor) -> list[Segment]:
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
                self._there.add(self._next)
                self._next += 1
            until = np.minimum(start + most - (last.stop[0] - last.start[0] if last.even else 0), stop)
            if (stop - start).max() <= most:  # not the last few to this segment and the next few to a new one
                until = stop
            segments[-1] = self._append(ring, last, start, until, disk)
            start = until
        return segments

    def _append(self, ring: Ring, segment: Segment, start: np.ndarray, stop: np.ndarray, disk: Executor) -> Segment:
        part = Segment(segment.number, tuple(start.tolist()), tuple(stop.tolist()))
        part = replace(part, parts=((part.rows, 0),))
        file = self._open(segment, segment.nbytes(ring.layout))
        sums = [segment.row_sum, segment.final_sum]
        at = [segment.rows * ring.raw.shape[1] // 4, segment.finals * ring.finals.shape[1] // 4]

        def add_to_sums(what: int, chunk: np.ndarray) -> None:
            sums[what] = sum_words(chunk.reshape(-1).view(np.uint32), at[what], sums[what])
            at[what] += chunk.size // 4

        last = None
        try:
            for what, chunk in _contents(ring, part):
                write_all(file, chunk)
                if last is not None:
                    add_to_sums(*last)
                last = what, chunk
        finally:
            begun = Event()
            self._syncing.append(_begin(disk, _sync, file, begun))
            begun.wait()  # until the other thread is at it: else it may get to run only when this one next waits itself
        if last is not None:
            add_to_sums(*last)
        finals = at[FINALS] * 4 // ring.finals.shape[1] - segment.finals
        parts = (*segment.parts, (part.rows, finals))
        return replace(segment, stop=part.stop, parts=parts, row_sum=sums[ROWS], final_sum=sums[FINALS])

    def _open(self, segment: Segment, length: int) -> BinaryIO:
        """The segment's file, cut off where what is known of it ends."""
        file = open(segment.file(self.folder), "rb+" if length else "wb", buffering=0)  # noqa: SIM115 (_sync closes it)
        file.truncate(length)
        file.seek(length)
        return file


def _contents(ring: Ring, part: Segment) -> Iterator[tuple[int, np.ndarray]]:
    """What is to be written, a chunk at a time: rows, and then the final observations of those that have one."""
    places = []
    for env, first, last, _ in pieces_of(part, ring, CHUNK_BYTES):
        rows, links = table_part(ring, env, first, last)
        if (held := not_before(ring.tail, env, first, last)) is not None:
            links[~held] &= FLAGS  # in the ring, to which it is all the same: forgotten rows have no finals
        yield ROWS, np.ascontiguousarray(rows)
        place = links >> FLAG_BITS
        places.append(place[np.flatnonzero(place)] - 1)
    own = np.concatenate(places)
    step = max(1, CHUNK_BYTES // ring.finals.shape[1])
    for begin in range(0, len(own), step):
        yield FINALS, ring.finals[own[begin : begin + step]]


def _begin(disk: Executor, call: Callable[..., None], *arguments: Any) -> Future:
    try:
        return disk.submit(call, *arguments)
    except RuntimeError:  # the interpreter is about to end, and begins no threads any more
        call(*arguments)
        done: Future = Future()
        done.set_result(None)
        return done


def _sync(file: BinaryIO, begun: Event) -> None:
    with file:
        begun.set()
        os.fsync(file.fileno())
