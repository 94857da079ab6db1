"""A memory outside of the process: saved whole and exactly, or its rows given to others and taken from them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slm_lab.agent.memory.ring import CUT, TERMINATED, TRUNCATED
from slm_lab.agent.memory.store import Store
from slm_lab.agent.memory.view import Transitions
from slm_lab.errors import EmptyMemory, InvalidRow, RunError
from slm_lab.lib import tree_file
from slm_lab.lib.files import replacing

if TYPE_CHECKING:
    from slm_lab.agent.memory.memory import Memory

CHUNK = 4096  # rows exported at a time: a memory on disk may not fit into RAM
FLAGS = {"terminated": TERMINATED, "truncated": TRUNCATED, "cut": CUT}


class Saved:
    """The folder that a memory was saved to or loaded from: its rows in files that only grow (store.py), the rest as a
    tree that tells of them, the last two of which are kept."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.store = Store(folder, waits=False)
        self.trees = tree_file.TurnAndTurn((folder / "tree_a.safetensors", folder / "tree_b.safetensors"))
        self.left: dict[str, tuple[int, ...]] = {}

    def leave(self) -> None:
        """Remember the files as they are now, to find out whether somebody else changes them."""
        self.left = _files(self.folder)

    def is_as_left(self) -> bool:
        return self.left == _files(self.folder)


def _files(folder: Path) -> dict[str, tuple[int, ...]]:
    """What tells each of the saved files from what may come in its place."""
    told: dict[str, tuple[int, ...]] = {}
    for file in (*folder.glob("rows_*.bin"), *folder.glob("tree_?.safetensors")):
        with suppress(FileNotFoundError):
            status = file.stat()
            told[file.name] = status.st_ino, status.st_size, status.st_mtime_ns
    return told


def save(memory: Memory, folder: Path) -> None:
    """The save before stays good until this one is whole. Rows and tree go to the disk at the same time: a tree whose
    rows have not arrived is told by their checksums. Where the files are not those of the save before, all is written.
    """
    if memory.saved is None or memory.saved.folder != folder or not memory.saved.is_as_left():
        memory.saved = Saved(folder)
    saved = memory.saved
    try:
        with rows_in(memory, saved.store):
            tree = memory.state_dict()
        saved.trees.save(tree, also=saved.store.wait)
        saved.store.confirm()
    finally:
        saved.leave()


def load(memory: Memory, folder: Path) -> None:
    """The last save, or the one before it where the last one is damaged or does not fit. Where neither can be loaded,
    the memory is as it was if that showed before rows were read, and else it is empty."""
    saved = Saved(folder)
    found, troubles = saved.trees.load_newest_first()
    for file, tree in found:
        saved.store = Store(folder, waits=False)
        try:
            with rows_in(memory, saved.store):
                memory.load_state_dict(tree)
            saved.leave()
            memory.saved = saved
            return
        except RunError as error:
            troubles.append(str(error))
        except (KeyError, TypeError, ValueError, AttributeError, MemoryError, OverflowError) as error:
            troubles.append(f"{file}: not a memory's state ({type(error).__name__}: {error})")
        saved.trees.damaged(file)
    raise RunError("no memory could be loaded:\n  " + "\n  ".join(troubles))


@contextmanager
def rows_in(memory: Memory, store: Store) -> Iterator[None]:
    """`state_dict` leaves the rows in this store, and `load_state_dict` finds them there."""
    before, memory.ring.store = memory.ring.store, store
    try:
        yield
    finally:
        memory.ring.store = before


def export(memory: Memory, path: str | Path) -> None:
    """One array a field, env by env in time order; `order` is a row's write id, `env` the env that it is from, `cut`
    tells that the next row does not continue it though its episode did not end."""
    if str(path).startswith("minari:"):
        from slm_lab.agent.memory import minari_io

        return minari_io.export(memory, str(path).removeprefix("minari:"))
    path = Path(path)
    ids = memory.ring.ids()
    if not ids.size:
        raise EmptyMemory("export: the memory holds 0 rows")
    rows = Rows(memory)
    with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, (dtype, shape) in rows.arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                header = {"descr": dtype.str, "fortran_order": False, "shape": (ids.size, *shape)}
                np.lib.format.write_array_header_2_0(entry, header)
                for start in range(0, ids.size, CHUNK):
                    entry.write(rows.read(name, ids[start : start + CHUNK]).tobytes())


def import_(memory: Memory, path: str | Path) -> None:
    """Add rows env by env in their order; all are checked before the first is written."""
    if str(path).startswith("minari:"):
        from slm_lab.agent.memory import minari_io

        return minari_io.import_(memory, str(path).removeprefix("minari:"))
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise RunError(f"{path}: no such file") from error
    except (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile, MemoryError) as error:
        raise RunError(f"{path}: damaged or not an .npz file of plain arrays ({error})") from error
    add_arrays(memory, arrays)


def add_arrays(memory: Memory, arrays: dict[str, np.ndarray]) -> None:
    """Arrays as in the file; without `env` all rows are env 0's, without `order` they are in order, and without `cut`
    only those are cut off whose next_obs is not what follows."""
    if "reward" not in arrays or not arrays["reward"].ndim:
        raise InvalidRow("reward: missing; needed are obs, action, reward, terminated, truncated and next_obs")
    count = len(arrays["reward"])
    short = [name for name, array in arrays.items() if array.shape[:1] != (count,)]
    if short:
        raise InvalidRow(f"{short[0]}: shape {arrays[short[0]].shape}, but there are {count} rewards")
    env = arrays.pop("env", np.zeros(count, np.int64))
    order = arrays.pop("order", np.arange(count))
    cut = arrays.pop("cut", np.zeros(count, np.bool_))
    places = np.lexsort((order, env))
    envs = np.unique(env)
    if envs.dtype.kind not in "iu" or (envs < 0).any() or (envs >= memory.num_envs).any():
        raise InvalidRow(f"env: {envs.tolist()} are given, this memory holds rows of envs 0 to {memory.num_envs - 1}")
    of_envs = [places[env[places] == one] for one in envs]
    parts = [(int(one), _as_rows(arrays, own), cut[own]) for one, own in zip(envs, of_envs, strict=True)]
    for _, rows, _ in parts:
        memory.validate(rows)
    for one, rows, own_cut in parts:
        memory.add_rows(rows, one, cut=own_cut)


class Rows:
    """Rows as they were added, field by field: the env's dtypes, whole stacks, one step."""

    def __init__(self, memory: Memory):
        self.ring = memory.ring
        self._view = Transitions(memory.ring, memory.gamma, as_stored=True)
        self.arrays: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for part in self._view._parts:
            name = part.group if part.key is None else f"{part.group}.{part.key}"
            self.arrays[name] = part.dtype, part.shape
        self.arrays |= {"reward": (np.dtype(np.float32), ()), "terminated": (np.dtype(bool), ())}
        self.arrays |= {"truncated": (np.dtype(bool), ()), "env": (np.dtype(np.int64), ())}
        self.arrays |= {"order": (np.dtype(np.int64), ()), "cut": (np.dtype(bool), ())}

    def read(self, name: str, ids: np.ndarray) -> np.ndarray:
        ring = self.ring
        if name in FLAGS:
            return ring.links[ring.rows_of(ids), ring.link_word] & FLAGS[name] > 0
        if name in ("env", "order"):
            return ids % ring.num_envs if name == "env" else ids
        value: Any = self._view.read(ids)
        for part in name.split(".", 1):
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        return value.numpy()


def _as_rows(arrays: dict[str, np.ndarray], places: np.ndarray) -> dict[str, Any]:
    """What `add_rows` takes."""
    rows: dict[str, Any] = {}
    for name, array in arrays.items():
        group, _, key = name.partition(".")
        if group == "extras":
            rows[key] = array[places]
        elif key:
            rows.setdefault(group, {})[key] = array[places]
        else:
            rows[name] = array[places]
    return rows
