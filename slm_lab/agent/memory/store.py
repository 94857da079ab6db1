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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import BinaryIO

import numpy as np

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
CHUNK_BYTES = 1 << 20  # written at a time: summed while it is in the cache


class Store:
    """The folder of one memory's segments. One that `waits` has rows on the disk when `write` returns; else that takes
    a `wait`, and until then the manifest may not be counted on."""

    def __init__(self, folder: Path, waits: bool = True):
        self.folder = Path(folder)
        self.waits = waits
        self.segments: list[Segment] = []  # those of the last manifest that was read or whose rows are on the disk
        self._coming: list[Segment] = []  # those of the last manifest written
        self._syncing: list[Future] = []  # when what is new in them will be on the disk
        self._disk = ThreadPoolExecutor(2)  # where is waited for that
        # numbers of segments: with files here, of the last two manifests that are kept, of the last one written
        self._there = {int(file.stem[5:]) for file in self.folder.glob("rows_*.bin") if file.stem[5:].isdecimal()}
        self._confirmed = [self._there.copy()]
        self._written: set[int] = set()
        self._next = max(self._there, default=-1) + 1

    def forget(self) -> None:
        """Write everything anew next time: the ring has come to hold other rows."""
        self.segments = []

    def write(self, ring: Ring) -> dict:
        """The manifest of the rows."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._syncing = []
            self._coming = self._segments_with_new_rows(ring)
            if {segment.number for segment in self._coming} - self._written:
                self._syncing.append(self._disk.submit(sync_folder, self.folder))
        except OSError as error:
            raise self._unwritten(error) from error
        if self.waits:
            self.wait()
        ids = (ring.head - 1) * ring.num_envs + np.arange(ring.num_envs)
        newest = ring.raw[ring.rows_of(ids)]
        links = newest.view(np.int32)[:, ring.link_word]
        links[ring.head <= ring.tail] &= FLAGS
        finals = ring.finals[(links[links >> FLAG_BITS > 0] >> FLAG_BITS) - 1]
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

    def read(self, ring: Ring, manifest: dict) -> None:
        """Fill a ring with the rows of that manifest; RunError where files or numbers are not as they were written."""
        try:
            plan = Restoration(self.folder, ring, manifest)
            plan.check()
            plan.fill()
        except OSError as error:
            raise RunError(f"{self.folder}: rows cannot be read: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise RunError(f"{self.folder}: damaged or not a memory's manifest ({error})") from error
        self.segments = plan.segments
        self._written = {segment.number for segment in plan.segments}
        self._confirmed = [self._written]

    def _unwritten(self, error: OSError) -> RunError:
        return RunError(f"{self.folder}: rows cannot be written: {error.strerror or error}")

    def _segments_with_new_rows(self, ring: Ring) -> list[Segment]:
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
            segments[-1] = self._append(ring, last, start, until)
            start = until
        return segments

    def _append(self, ring: Ring, segment: Segment, start: np.ndarray, stop: np.ndarray) -> Segment:
        row_sum, final_sum = segment.row_sum, segment.final_sum
        part = Segment(segment.number, tuple(start.tolist()), tuple(stop.tolist()))
        part = replace(part, parts=((part.rows, 0),))
        file = _open_at(segment.file(self.folder), segment.nbytes(ring))
        try:
            at = segment.rows * ring.raw.shape[1] // 4
            finals = []
            for env, first, last, _ in pieces_of(part, ring, CHUNK_BYTES):
                rows, links = table_part(ring, env, first, last)
                if (held := not_before(ring.tail, env, first, last)) is not None:
                    links[~held] &= FLAGS  # in the ring, to which it is all the same: forgotten rows have no finals
                rows = np.ascontiguousarray(rows)
                row_sum = sum_words(rows.reshape(-1).view(np.uint32), at, row_sum)
                at += rows.size // 4
                write_all(file, rows)
                places = links >> FLAG_BITS
                finals.append(places[np.flatnonzero(places)] - 1)
            own = np.concatenate(finals)
            step = max(1, CHUNK_BYTES // ring.finals.shape[1])
            at = segment.finals * ring.finals.shape[1] // 4
            for first in range(0, len(own), step):
                chunk = ring.finals[own[first : first + step]]
                final_sum = sum_words(chunk.reshape(-1).view(np.uint32), at, final_sum)
                at += chunk.size // 4
                write_all(file, chunk)
        finally:
            begun = Event()
            self._syncing.append(self._disk.submit(_sync, file, begun))  # while the next one, or the tree, is written
            begun.wait()  # or it would have to, until this thread next lets others run
        parts = (*segment.parts, (part.rows, len(own)))
        return replace(segment, stop=part.stop, parts=parts, row_sum=row_sum, final_sum=final_sum)


def _sync(file: BinaryIO, begun: Event) -> None:
    with file:
        begun.set()
        os.fsync(file.fileno())


def _open_at(file: Path, length: int) -> BinaryIO:
    """The file, cut off where what is known of it ends."""
    handle = open(file, "rb+" if length else "wb", buffering=0)  # noqa: SIM115 (closed by the caller)
    handle.truncate(length)
    handle.seek(length)
    return handle
