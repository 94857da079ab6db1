"""A ring's rows in one memory-mapped file, for memories larger than RAM: the same table, kept by another owner.

    header   whole pages: what the file holds, a sequence number, the head of each env
    rows     (slots + 1) x N packed rows, from a page's beginning
    finals   room for the final observation of every row

The file has its full length from the start and is sparse: a page takes room on the disk once it is written. A mapped
page that the disk has no room for kills the process, so there has to be room for all rows at the start, and finals,
of which nobody knows how many there will be, are given theirs before they are written.

Other processes that map the file (readers.py) follow the writer through the header: the sequence number is odd while
rows are being written, and a head is moved on when the rows before it are whole.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np

from slm_lab.errors import RunError

PAGE = 4096
MAGIC = 0x534C4D52494E4731  # "SLMRING1"
KIND, ROWS, ROW_BYTES, FINAL_ROWS, FINAL_BYTES, ENVS, SEQUENCE, HEADS = range(8)  # int64 words of the header


class Disk:
    """The file of one memory in `folder`, or in a temporary folder. `close` removes it, as does the process's normal
    end; another memory's file that has taken its name stays."""

    def __init__(self, folder: Path | None = None):
        temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="slm_lab_memory_")) if folder is None else Path(folder)
        self.file = self.folder / "rows.ring"
        made = temporary or not self.folder.exists()
        self._own: list[int] = []  # inode of its present file
        self._finalizer = weakref.finalize(self, _remove, self.file, self._own, made, temporary)

    def allocate(
        self, rows: int, row_bytes: int, finals: int, final_bytes: int, num_envs: int, finals_held: int = 0
    ) -> np.ndarray:
        """(rows, row_bytes) zeros, in a new file that takes the place of the old one; its heads are 0. RunError where
        the disk has no room for them and the finals held.

        Arrays of the old file stay valid, so that its rows can be copied over.
        """
        words = np.array([MAGIC, rows, row_bytes, finals, final_bytes, num_envs], np.int64)
        temporary = self.file.with_suffix(".tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            self._check_room(rows * row_bytes + finals_held * final_bytes)
            with open(temporary, "wb+") as file:
                file.truncate(_places(words)[-1])
                file.write(words.tobytes())
            os.replace(temporary, self.file)
        except OSError as error:
            raise RunError(f"{self.file}: cannot be written: {error.strerror or error}") from error
        self._map = FileMap(self.file)
        self._own[:] = [os.fstat(self.descriptor).st_ino]
        self._finals_end = 0  # bytes of finals that have their room on the disk
        return self._map.rows

    @property
    def descriptor(self) -> int:
        """Of the open file, which its name may no longer lead to."""
        return self._map.descriptor

    def finals(self, count: int) -> np.ndarray:
        """(count, final_bytes) the first places for final observations; what they hold stays when there are more.
        RunError where the disk has no room for so many."""
        finals = self._map.finals[:count]
        if finals.nbytes > self._finals_end:
            self._reserve(finals.nbytes)
        return finals

    def _reserve(self, finals_end: int) -> None:
        """Room on the disk for the finals up to that byte, beside what rows will yet take."""
        more = finals_end - self._finals_end
        rows_written = max(0, os.fstat(self.descriptor).st_blocks * 512 - self._finals_end)
        rows_to_come = max(0, self._map.rows.nbytes - rows_written)
        free = shutil.disk_usage(self.descriptor).free
        try:
            if more + rows_to_come > free:
                raise OSError(errno.ENOSPC, f"{free / 1e9:.3g} GB are free, and rows take {rows_to_come / 1e9:.3g} yet")
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, self._map.finals_at + self._finals_end, more)
        except OSError as error:
            raise RunError(
                f"{self.file}: no room for another {more / 1e9:.3g} GB of episodes' final observations "
                f"({error.strerror}); lower max_size, or choose a folder on a larger disk"
            ) from error
        self._finals_end = finals_end

    def begin(self) -> None:
        """Tell readers that rows are about to be written."""
        self._map.words[SEQUENCE] += 1

    def publish(self, head: np.ndarray) -> None:
        """Tell readers that the rows before `head` are whole."""
        self._map.heads[:] = head
        self._map.words[SEQUENCE] += 1

    def close(self) -> None:
        """Remove the file; the arrays of it stay usable as long as they are held."""
        self._finalizer()

    def _check_room(self, needed: int) -> None:
        held = self.file.stat().st_blocks * 512 if self.file.exists() and not hasattr(self, "_map") else 0
        free = shutil.disk_usage(self.folder).free + held  # a file left by a run that was killed gives way
        if needed > free:
            raise RunError(
                f"agent.memory.storage: 'disk' needs {needed / 1e9:.3g} GB in {self.folder}, which has "
                f"{free / 1e9:.3g} GB free; lower max_size, or choose a folder on a larger disk"
            )


class FileMap:
    """The arrays of such a file, mapped into this process: by its name, or by a descriptor that this one then owns."""

    def __init__(self, file: Path | int):
        self.descriptor = file if isinstance(file, int) else os.open(file, os.O_RDWR)
        weakref.finalize(self, os.close, self.descriptor)
        mapped = mmap.mmap(self.descriptor, 0)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)  # rows are drawn at random: reading ahead would read in vain
        content = np.frombuffer(mapped, np.uint8)
        self.words = content[: 8 * HEADS].view(np.int64)
        heads_end, rows_at, self.finals_at, end = _places(self.words)
        if self.words[KIND] != MAGIC or content.size != end:
            raise RunError(f"{file}: not a memory's file, or not whole")
        _, _, row_bytes, finals, final_bytes, _ = self.words[:SEQUENCE].tolist()
        self.heads = content[8 * HEADS : heads_end].view(np.int64)
        self.rows = content[rows_at : rows_at + int(self.words[ROWS]) * row_bytes].reshape(-1, row_bytes)
        self.finals = content[self.finals_at : self.finals_at + finals * final_bytes].reshape(-1, final_bytes)


def _places(words: np.ndarray) -> tuple[int, int, int, int]:
    """Where the heads end, where rows and finals begin, and where the file ends."""
    _, rows, row_bytes, finals, final_bytes, num_envs = words[:SEQUENCE].tolist()
    heads_end = 8 * (HEADS + num_envs)
    rows_at = _whole_pages(heads_end)
    finals_at = rows_at + _whole_pages(rows * row_bytes)
    return heads_end, rows_at, finals_at, finals_at + _whole_pages(finals * final_bytes)


def _whole_pages(count: int) -> int:
    return -(-count // PAGE) * PAGE


def _remove(file: Path, own: list[int], made: bool, temporary: bool) -> None:
    """The file, if it is this memory's own, and the folder if it was made for it: with all that is in it, or only if
    nothing is."""
    with suppress(OSError):
        if file.exists() and [file.stat().st_ino] == own:
            file.unlink()
        if temporary:
            shutil.rmtree(file.parent)
        elif made:
            file.parent.rmdir()
