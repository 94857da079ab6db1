"""Observations and actions as flat float vectors, as a model takes them; and the scale that they are brought to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from slm_lab.lib.trees import leaves


class Encoding:
    """What a space's values look like as (B, width) float32: numbers as they are, classes one-hot."""

    def __init__(self, space: spaces.Space):
        self.leaves = list(leaves(space))
        self.width = sum(_width(leaf) for _, leaf in self.leaves)
        self.numeric = not any(isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for _, leaf in self.leaves)

    def __call__(self, values: Tensor | dict[str, Tensor]) -> Tensor:
        """(B, width) of values as a batch has them."""
        parts = [_encode(leaf, values if key is None else values[key]) for key, leaf in self.leaves]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _width(space: spaces.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape))


def _encode(space: spaces.Space, values: Tensor) -> Tensor:
    if isinstance(space, spaces.Discrete):
        return torch.nn.functional.one_hot(values.long() - int(space.start), int(space.n)).float()
    if isinstance(space, spaces.MultiDiscrete):
        flat = values.reshape(len(values), -1).long() - torch.from_numpy(space.start.reshape(-1).astype(np.int64))
        columns = zip(flat.unbind(1), space.nvec.reshape(-1).tolist(), strict=True)
        return torch.cat([torch.nn.functional.one_hot(column, count) for column, count in columns], 1).float()
    return values.reshape(len(values), -1).float()


class Normalizer:
    """(value - mean) / std for each column; a column that hardly varies keeps its scale."""

    def __init__(self, width: int):
        self.mean = torch.zeros(width)
        self.std = torch.ones(width)

    def fit(self, chunks: Iterable[Tensor]) -> None:
        """Mean and standard deviation of all rows (B, width) of the chunks, merged in float64 (Chan 1979)."""
        count, mean, square = 0, torch.zeros(len(self.mean)).double(), torch.zeros(len(self.mean)).double()
        for chunk in chunks:
            values = chunk.double()
            total = count + len(values)
            apart = values.mean(0) - mean
            square += values.var(0, correction=0) * len(values) + apart**2 * (count * len(values) / total)
            mean += apart * (len(values) / total)
            count = total
        std = (square / max(count, 1)).sqrt()
        constant = std < 1e-6 * mean.abs().clamp(min=1.0)
        self.mean, self.std = mean.float(), torch.where(constant, 1.0, std).float()

    def apply(self, values: Tensor) -> Tensor:
        return (values - self.mean.to(values.device)) / self.std.to(values.device)

    def undo(self, values: Tensor) -> Tensor:
        return values * self.std.to(values.device) + self.mean.to(values.device)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.numpy(), "std": self.std.numpy()}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        self.mean, self.std = torch.tensor(np.asarray(tree["mean"])), torch.tensor(np.asarray(tree["std"]))
