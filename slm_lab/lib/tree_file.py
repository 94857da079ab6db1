"""A state tree as one safetensors file: exact, atomic, pickle-free.

A state tree is made of dicts with str keys, lists, numpy arrays, torch tensors and JSON values. The arrays become the
file's tensors, named by their place in the tree; the rest is JSON in the file's metadata, beside a format version and
a checksum over everything. Reading one executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save, save_file

from slm_lab.errors import InputError, RunError
from slm_lab.lib.files import sync_folder

FORMAT = 1
UNREADABLE = (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError)
_NUMPY_KINDS = "biuf"  # bool, signed, unsigned, float
_MARK = "$array"  # {"$array": [name, torch dtype or null]} stands for an array
_PLAIN = "$dict"  # {"$dict": {...}} stands for a dict that happens to have one of these two keys


def write(path: Path, tree: Any) -> None:
    """`tree` durably in the place of whatever was there; on any failure the old file stays."""
    replace(write_beside(path, tree), path)


def read(path: Path) -> Any:
    """The tree that was written, arrays as arrays, tensors as tensors on the CPU, tuples as lists."""
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format", "").isdecimal() and int(metadata["format"]) > FORMAT:
                raise InputError(f"{path}: checkpoint format {metadata['format']} is newer than this lab's ({FORMAT})")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if metadata.pop("checksum", "") != _checksum(metadata, arrays):
            raise InputError(f"{path}: damaged: its contents do not match its checksum")
        return _unpack(json.loads(metadata["tree"]), arrays)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such checkpoint") from error
    except UNREADABLE as error:
        raise InputError(f"{path}: damaged or not a checkpoint ({error})") from error


class LastTwo:
    """The latest tree and the one before it, each in a file."""

    def __init__(self, latest: Path, previous: Path):
        self.latest = latest
        self.previous = previous
        self._latest_is_good: bool | None = None  # None: not looked at yet

    def save(self, tree: Any) -> None:
        """Write the latest; the one that it replaces becomes the previous. One of the two is whole at every moment."""
        temporary = write_beside(self.latest, tree)
        if self._latest_is_good is None:
            self._latest_is_good = _readable(self.latest)
        if self._latest_is_good:  # a damaged one must not push out the good one before it
            self._latest_is_good = False  # until the new one is in its place
            _rename(self.latest, self.previous)  # one sync is enough: each name alone, too, is of a whole file
        replace(temporary, self.latest)
        self._latest_is_good = True

    def load(self) -> tuple[Any, str | None]:
        """The latest tree and None, or the previous one and a warning if the latest cannot be read."""
        self._latest_is_good = False
        try:
            tree = read(self.latest)
            self._latest_is_good = True
            return tree, None
        except RunError as error:
            trouble = error
        try:
            return read(self.previous), f"{trouble}; going on from the one before it"
        except RunError as error:
            raise InputError(f"no checkpoint to go on from:\n  {trouble}\n  {error}") from error


class TurnAndTurn:
    """Two files that are written over in turn, which takes one sync where giving a file another's name takes two.

    Each tells how many trees were written before it; the one that tells of more is the latest. While one is written
    over the other is whole.
    """

    def __init__(self, files: tuple[Path, Path]):
        self.files = files
        self._looked = False  # at what is there
        self._count, self._next = 0, files[0]  # of the next tree

    def save(self, tree: Any, also: Callable[[], None] = lambda: None) -> None:
        """In the place of the older one; then `also`, what must be done for the tree to count. Where either fails, the
        next tree goes there too."""
        if not self._looked:
            self.load_newest_first()
        write_over(self._next, {"count": self._count, "tree": tree})
        also()
        self._count, self._next = self._count + 1, self._other(self._next)

    def load_newest_first(self) -> tuple[list[tuple[Path, Any]], list[str]]:
        """The whole ones, at most two of them, each with its file; and what is wrong with the others."""
        found, troubles = [], []
        for file in self.files:
            try:
                entry = read(file)
                found.append((int(entry["count"]), file, entry["tree"]))
            except RunError as error:
                troubles.append(str(error))
            except (KeyError, TypeError, ValueError) as error:
                troubles.append(f"{file}: not one of these trees ({error})")
        found.sort(key=lambda entry: entry[0], reverse=True)
        self._looked = True
        if found:
            self._count, self._next = found[0][0] + 1, self._other(found[0][1])
        return [(file, tree) for _, file, tree in found], troubles

    def damaged(self, file: Path) -> None:
        """What the tree in that file tells of is not there: it is the next one to be written over."""
        self._next = file

    def _other(self, file: Path) -> Path:
        return self.files[file == self.files[0]]


def _readable(path: Path) -> bool:
    try:
        read(path)
    except RunError:
        return False
    return True


def write_over(path: Path, tree: Any) -> None:
    """`tree` durably in the file itself, which is damaged until this returns."""
    content = save(*_encoded(tree))
    try:
        new = not path.exists()
        with open(path, "wb" if new else "rb+", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
            file.truncate()
            os.fsync(file.fileno())
        if new:
            _sync_new(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def _sync_new(path: Path) -> None:
    try:
        sync_folder(path.parent)
    except OSError:
        path.unlink(missing_ok=True)  # so that it is new again next time
        raise


def _encoded(tree: Any) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The file's tensors and its metadata."""
    arrays: dict[str, np.ndarray] = {}
    skeleton = json.dumps(_pack(tree, "", arrays), separators=(",", ":"))
    metadata = {"format": str(FORMAT), "tree": skeleton}
    metadata["checksum"] = _checksum(metadata, arrays)
    return arrays, metadata


def write_beside(path: Path, tree: Any) -> Path:
    """`tree` in a file with a temporary name beside `path`, flushed to disk."""
    arrays, metadata = _encoded(tree)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        save_file(arrays, temporary, metadata)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)  # a full disk needs the room
        raise RunError(f"{path}: cannot be written: {error}") from error
    return temporary


def replace(temporary: Path, path: Path) -> None:
    """Give a file its name, durably."""
    _rename(temporary, path)
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error}") from error


def _rename(path: Path, to: Path) -> None:
    try:
        os.replace(path, to)
    except OSError as error:
        raise RunError(f"{to}: cannot be written: {error}") from error


def _checksum(metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=32)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _pack(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """`node` as JSON; its arrays go into `arrays`, without a copy where they are contiguous and on the CPU."""
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, dict):
        for key in node:
            if not isinstance(key, str):
                raise TypeError(f"state tree: {path or 'the root'} has the key {key!r}; keys are strings")
        packed = {key: _pack(value, f"{path}.{key}" if path else key, arrays) for key, value in node.items()}
        return {_PLAIN: packed} if _MARK in packed or _PLAIN in packed else packed
    if isinstance(node, list | tuple):
        return [_pack(value, f"{path}.{place}" if path else str(place), arrays) for place, value in enumerate(node)]
    if isinstance(node, torch.Tensor):
        array, kind = _as_array(node), str(node.dtype).removeprefix("torch.")
    elif isinstance(node, np.ndarray):
        array, kind = node, None
    else:
        array = None
    if array is None or array.dtype.kind not in _NUMPY_KINDS or array.dtype.itemsize > 8:
        dtype = f" ({node.dtype})" if hasattr(node, "dtype") else ""
        raise TypeError(f"state tree: {path or 'the root'} is of type {type(node).__name__}{dtype}; cannot be saved")
    name = path
    while name in arrays or name in ("", "__metadata__"):  # {"a.b": x, "a": {"b": y}}; the format's own key
        name += "'"
    arrays[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    return {_MARK: [name, kind]}


def _unpack(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(node, list):
        return [_unpack(value, arrays) for value in node]
    if not isinstance(node, dict):
        return node
    if _MARK in node:
        name, kind = node[_MARK]
        return arrays[name] if kind is None else _as_tensor(arrays[name], kind)
    return {key: _unpack(value, arrays) for key, value in node.get(_PLAIN, node).items()}


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's bytes in a dtype that numpy has: bfloat16 and the like as unsigned integers of their size."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.view({1: torch.uint8, 2: torch.uint16}[tensor.itemsize])
    return tensor.numpy()


def _as_tensor(array: np.ndarray, kind: str) -> torch.Tensor:
    dtype = vars(torch).get(kind)  # not getattr, which would import whatever torch module the file names
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != array.itemsize:
        raise ValueError(f"{kind!r} is not a dtype of {array.itemsize} bytes")
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
