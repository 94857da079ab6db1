"""Running means of tensors that are told step by step, at next to no cost a step."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_WAITING = 1000  # values that wait for their mean to be taken


class Means:
    """Of scalars under the same names at each step, in the same order."""

    def __init__(self, device: torch.device):
        self.device = device
        self._forget()

    def _forget(self) -> None:
        self._names: list[str] = []
        self._recent: list[Tensor] = []  # what the last steps told, one after the other
        self._means: Tensor | None = None  # over the steps before them
        self._count = 0

    def add(self, values: dict[str, Tensor]) -> None:
        self._names = list(values)
        self._recent += values.values()
        if len(self._recent) > MOST_WAITING:
            self._fold()

    def take(self) -> dict[str, float]:
        """The means since this was last asked; {} if nothing was told."""
        self._fold()
        if self._means is None:
            return {}
        means = dict(zip(self._names, self._means.tolist(), strict=True))
        self._forget()
        return means

    def _fold(self) -> None:
        """Bring the means up to date: the values wait as they are, for stacking them step by step takes longer."""
        if not self._recent:
            return
        rows = torch.stack(self._recent).view(-1, len(self._names))
        self._recent = []
        self._count += len(rows)
        mean = rows.mean(0)
        if self._means is None:
            self._means = mean
        else:
            self._means.lerp_(mean, len(rows) / self._count)

    def state_dict(self) -> dict:
        return {
            "names": self._names,
            "means": self._means,
            "count": self._count,
            "recent": torch.stack(self._recent) if self._recent else None,
        }

    def load_state_dict(self, tree: dict) -> None:
        self._names, self._count = tree["names"], int(tree["count"])
        self._means = None if tree["means"] is None else tree["means"].to(self.device, copy=True)
        self._recent = [] if tree["recent"] is None else list(tree["recent"].to(self.device, copy=True).unbind())
