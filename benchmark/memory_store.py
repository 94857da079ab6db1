"""Saving and loading a memory, beside numpy writing and reading as many bytes on the same disk.

    python benchmark/memory_store.py [--rows 1000000] [--folder FOLDER]

Each figure is a median; both sides end with fsync, and reads begin with the file dropped from the page cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gymnasium import spaces

from slm_lab.agent.memory import make_memory

OBS, ACTION, NEW = 17, 6, 10_000
INCREMENTS = 5  # saves of new rows after each full one: now and then one begins a new file
CHUNK = 10_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--repeats", type=int, default=7)
    chosen = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="memory_store_", dir=chosen.folder))
    try:
        measure(chosen.rows, folder, chosen.repeats)
    finally:
        shutil.rmtree(folder)


def measure(rows: int, folder: Path, repeats: int) -> None:
    rng = np.random.default_rng(0)
    memory, copy = make(rows), make(rows)
    for _ in range(rows // CHUNK):
        add(memory, rng)
    content = rng.integers(0, 255, rows * memory.describe()["bytes_per_row"], np.uint8)
    plain, saved = folder / "plain", folder / "saved"
    memory.save(folder / "warm")
    copy.load(folder / "warm")
    shutil.rmtree(folder / "warm")

    few = content[: NEW * content.nbytes // rows]
    times: dict[str, list[float]] = {}
    for _ in range(repeats):  # in turns, so that what else the disk does falls on all alike
        note(times, "write", lambda: write(plain, content))
        memory.saved = None
        shutil.rmtree(saved, ignore_errors=True)
        os.sync()
        note(times, "save", lambda: memory.save(saved))
        drop([plain, *saved.iterdir()])
        note(times, "read", lambda: np.fromfile(plain, np.uint8))
        note(times, "load", lambda: copy.load(saved))
        note(times, "read again", lambda: np.fromfile(plain, np.uint8))
        note(times, "load again", lambda: copy.load(saved))
        memory.load(saved)
        for _ in range(INCREMENTS):
            add(memory, rng)
            note(times, "write as few", lambda: write(folder / "few", few))
            note(times, "a bare sync", lambda: write(folder / "byte", few[:1]))
            before = bytes_in(saved)
            note(times, "save new rows", lambda: memory.save(saved))
            written = bytes_in(saved) - before
    middle = {what: statistics.median(each) for what, each in times.items()}
    print(f"{rows} rows of {OBS}+{ACTION} float32, {content.nbytes / 1e6:.0f} MB; medians of {repeats}")
    for what, seconds in middle.items():
        speed = (
            ""
            if what in ("save new rows", "write as few", "a bare sync")
            else f"  {content.nbytes / 1e9 / seconds:6.2f} GB/s"
        )
        print(f"  {what:<14} {seconds * 1e3:8.1f} ms{speed}")
    for ours, theirs in (("save", "write"), ("load", "read"), ("load again", "read again")):
        print(f"{ours}: {middle[theirs] / middle[ours]:.0%} of numpy's speed")
    print(f"save of {NEW} new rows: {written / content.nbytes:.1%} of the bytes of a full one,", end=" ")
    print(f"{middle['save new rows'] / middle['save']:.1%} of its time", end=" ")
    print(f"(as many bytes by numpy: {middle['write as few'] / middle['write']:.1%} of a whole)")
    print(f"one byte and its sync: {middle['a bare sync'] / middle['save']:.1%} of a full save;", end=" ")
    print("a save of new rows waits for two at once: the rows, and the tree that tells of them")


def make(rows: int):
    block = {"name": "Replay", "max_size": rows, "batch_size": 256}
    return make_memory(block, spaces.Box(-9, 9, (OBS,), np.float32), spaces.Box(-1, 1, (ACTION,), np.float32))


def add(memory, rng: np.random.Generator) -> None:
    obs = rng.standard_normal((CHUNK + 1, OBS), np.float32)
    ends = np.arange(CHUNK) % 1000 == 999
    memory.add_rows(
        {
            "obs": obs[:-1],
            "action": rng.standard_normal((CHUNK, ACTION), np.float32),
            "reward": rng.standard_normal(CHUNK),
            "terminated": np.zeros(CHUNK, bool),
            "truncated": ends,
            "next_obs": obs[1:],
        }
    )


def write(file: Path, content: np.ndarray) -> None:
    with open(file, "wb") as handle:
        content.tofile(handle)
        handle.flush()
        os.fsync(handle.fileno())


def drop(files: list[Path]) -> None:
    for file in files:
        with open(file, "rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.bin"))


def note(times: dict[str, list[float]], what: str, call: Callable) -> None:
    start = time.perf_counter()
    call()
    times.setdefault(what, []).append(time.perf_counter() - start)


if __name__ == "__main__":
    main()
