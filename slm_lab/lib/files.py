"""Writing files so that a crash leaves either the old one or the new one, never half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from slm_lab.errors import RunError


def can_name_a_folder(name: str) -> bool:
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write under a temporary name; when the block ends it is flushed to disk and takes the place of the old
    one. RunError where that fails."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # a full disk needs the room
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def write_json(path: Path, tree: Any) -> None:
    write_bytes(path, (json.dumps(tree, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # neither UTF-8 nor JSON
        raise RunError(f"{path}: damaged: {error}") from error
