"""One process at a time: a lock that the system releases when its last holder ends, so that none is ever stale.

It is advisory, by `fcntl.flock`. Where there is no fcntl (Windows), or a file system without locks, there is no lock.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from slm_lab.errors import InputError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


class Lock:
    """Held as long as its handle is open in some process. Sent to a child process, it is held by that one too: it may
    outlive a parent that was killed, and still write."""

    def __init__(self, handle: int | None):
        self.handle = handle

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (None if self.handle is None else reduction.DupFd(self.handle),)


def _received(handle: Any) -> Lock:
    return Lock(None if handle is None else handle.detach())


@contextmanager
def locked(path: Path, what: str) -> Iterator[Lock]:
    """The lock on `path`, a file that is there as long as it is held; InputError names the holder if it is taken."""
    if fcntl is None:
        yield Lock(None)
        return
    handle = _take(path, what)
    try:
        yield Lock(handle)
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _take(path: Path, what: str) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 1000).decode(errors="replace").strip() or "another process"
            os.close(handle)
            if _has_ended(holder):
                raise InputError(f"{what} by what {holder} had started before it ended; wait a moment") from None
            raise InputError(f"{what} by {holder}; wait for it, or stop it first") from None
        except OSError:
            return handle  # a file system without locks
        if _is_still(path, handle):
            with suppress(OSError):  # a full disk: the lock counts, not its text
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            return handle
        os.close(handle)  # its last holder removed the file in between


def _has_ended(holder: str) -> bool:
    """Whether the process that wrote this was here and is gone: its children hold the lock then."""
    match = re.fullmatch(r"process (\d+) on (.+)", holder)
    if match is None or match[2] != socket.gethostname():
        return False
    try:
        os.kill(int(match[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    return False


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
