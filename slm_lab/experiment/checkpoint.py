"""The snapshots of a session: state trees, of which one that is whole is there at every moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slm_lab.errors import InputError, LabError
from slm_lab.experiment.folder import SessionFolder
from slm_lab.lib.tree_file import LastTwo, read, write

UNFIT = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RuntimeError),
    *(AssertionError, MemoryError),  # what envs say to actions that are none, and numpy to impossible lengths
)


class Checkpoints(LastTwo):
    """The snapshots of one session: the latest, the one before it, and the best kept apart."""

    def __init__(self, folder: SessionFolder):
        super().__init__(folder.latest, folder.previous)
        self.folder = folder

    def save_best(self, tree: Any) -> None:
        write(self.folder.best, tree)

    def load_best(self) -> Any:
        return read(self.folder.best)


@contextmanager
def taking_up(folder: SessionFolder) -> Iterator[None]:
    """While parts take up what a checkpoint holds for them: InputError where it is not what they can go on from, which
    checksums cannot tell if the file was written by somebody else, or for another spec."""
    try:
        yield
    except LabError as problem:
        raise InputError(f"{folder.checkpoint_folder}: {problem}") from problem
    except UNFIT as problem:
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise InputError(f"{folder.checkpoint_folder}: no state that this spec can go on from ({reason})") from problem
