"""A ring's rows in one memory-mapped file, for memories larger than RAM: the same table, kept by another owner.

    header   whole pages: what the file holds, a sequence number, the head of each env
    rows     (slots + 1) x N packed rows, from a page's beginning
    finals   room for the final observation of every row

The file has its full length from the start and is sparse: a page takes room on the disk once it is written. Other
processes that map the file (readers.py) follow the writer through the header: the sequence number is odd while rows
are being written, and a head is moved on when the rows before it are whole.
"""

from __future__ import annotations

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
    """The file of one memory in `folder`, or in a temporary folder; `close` removes it, as does the process's end."""

    def __init__(self, folder: Path | None = None):
        temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="slm_lab_memory_")) if folder is None else Path(folder)
        self.file = self.folder / "rows.ring"
        made = temporary or not self.folder.exists()
        self._finalizer = weakref.finalize(self, _remove, self.file, made, temporary)

    def allocate(self, rows: int, row_bytes: int, finals: int, final_bytes: int, num_envs: int) -> np.ndarray:
        """(rows, row_bytes) zeros, in a new file that takes the place of the old one; its heads are 0.

        Arrays of the old file stay valid, so that its rows can be copied over.
        """
        words = np.array([MAGIC, rows, row_bytes, finals, final_bytes, num_envs], np.int64)
        temporary = self.file.with_suffix(".tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            self._check_room(rows * row_bytes)
            with open(temporary, "wb+") as file:
                file.truncate(_places(words)[-1])
                file.write(words.tobytes())
            os.replace(temporary, self.file)
        except OSError as error:
            raise RunError(f"{self.file}: cannot be written: {error.strerror or error}") from error
        self._map = FileMap(self.file)
        return self._map.rows

    def finals(self, count: int) -> np.ndarray:
        """(count, final_bytes) the first places for final observations; what they hold stays when there are more."""
        return self._map.finals[:count]

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
    """The arrays of such a file, mapped into this process."""

    def __init__(self, file: Path):
        with open(file, "rb+") as handle:
            mapped = mmap.mmap(handle.fileno(), 0)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)  # rows are drawn at random: reading ahead would read in vain
        content = np.frombuffer(mapped, np.uint8)
        self.words = content[: 8 * HEADS].view(np.int64)
        heads_end, rows_at, finals_at, end = _places(self.words)
        if self.words[KIND] != MAGIC or content.size != end:
            raise RunError(f"{file}: not a memory's file, or not whole")
        _, _, row_bytes, finals, final_bytes, _ = self.words[:SEQUENCE].tolist()
        self.heads = content[8 * HEADS : heads_end].view(np.int64)
        self.rows = content[rows_at : rows_at + int(self.words[ROWS]) * row_bytes].reshape(-1, row_bytes)
        self.finals = content[finals_at : finals_at + finals * final_bytes].reshape(-1, final_bytes)


def _places(words: np.ndarray) -> tuple[int, int, int, int]:
    """Where the heads end, where rows and finals begin, and where the file ends."""
    _, rows, row_bytes, finals, final_bytes, num_envs = words[:SEQUENCE].tolist()
    heads_end = 8 * (HEADS + num_envs)
    rows_at = _whole_pages(heads_end)
    finals_at = rows_at + _whole_pages(rows * row_bytes)
    return heads_end, rows_at, finals_at, finals_at + _whole_pages(finals * final_bytes)


def _whole_pages(count: int) -> int:
    return -(-count // PAGE) * PAGE


def _remove(file: Path, made: bool, temporary: bool) -> None:
    """The file, and the folder if it was made for it: with all that is in it, or only if nothing is."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
        if temporary:
            shutil.rmtree(file.parent)
        elif made:
            file.parent.rmdir()
