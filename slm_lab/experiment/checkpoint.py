"""The snapshots of a session: state trees, of which one that is whole is there at every moment."""

from __future__ import annotations

from typing import Any

from slm_lab.experiment.folder import SessionFolder
from slm_lab.lib.tree_file import LastTwo, read, write


class Checkpoints(LastTwo):
    """The snapshots of one session: the latest, the one before it, and the best kept apart."""

    def __init__(self, folder: SessionFolder):
        super().__init__(folder.latest, folder.previous)
        self.folder = folder

    def save_best(self, tree: Any) -> None:
        write(self.folder.best, tree)

    def load_best(self) -> Any:
        return read(self.folder.best)
