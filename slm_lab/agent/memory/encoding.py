"""Observations and actions as flat float vectors, as a model takes them; and the scale that they are brought to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from slm_lab.lib.trees import leaves

ROUNDING = float(np.finfo(np.float32).eps)  # of a number's size, at most, from one float32 to the next


class Encoding:
    """What a space's values look like as (B, width) float32: numbers as they are, classes one-hot."""

    def __init__(self, space: spaces.Space):
        self.leaves = list(leaves(space))
        self.width = sum(_width(leaf) for _, leaf in self.leaves)
        self.classes = torch.cat([torch.full((_width(leaf),), _is_class(leaf)) for _, leaf in self.leaves])
        self.numeric = not self.classes.any()
        steps = [np.finfo(leaf.dtype).eps if leaf.dtype.kind == "f" else 0.0 for _, leaf in self.leaves]
        widths = torch.tensor([_width(leaf) for _, leaf in self.leaves])
        self.rounding = torch.tensor(steps, dtype=torch.float64).repeat_interleave(widths)  # of a stored number's size
        fits = all(_is_class(leaf) or np.can_cast(leaf.dtype, np.float32) for _, leaf in self.leaves)
        self.dtype = torch.float32 if fits else torch.float64  # that stored numbers survive in

    def __call__(self, values: Tensor | dict[str, Tensor]) -> Tensor:
        """(B, width) float32 of values as a batch has them."""
        return self.exact(values).float()

    def exact(self, values: Tensor | dict[str, Tensor]) -> Tensor:
        """(B, width) the same before they are rounded to float32, where they are stored in more."""
        parts = [_encode(leaf, values if key is None else values[key], self.dtype) for key, leaf in self.leaves]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _is_class(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete)


def _width(space: spaces.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape))


def _encode(space: spaces.Space, values: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(space, spaces.Discrete):
        return torch.nn.functional.one_hot(values.long() - int(space.start), int(space.n)).to(dtype)
    if isinstance(space, spaces.MultiDiscrete):
        flat = values.reshape(len(values), -1).long() - torch.from_numpy(space.start.reshape(-1).astype(np.int64))
        columns = zip(flat.unbind(1), space.nvec.reshape(-1).tolist(), strict=True)
        return torch.cat([torch.nn.functional.one_hot(column, count) for column, count in columns], 1).to(dtype)
    return values.reshape(len(values), -1).to(dtype)


class Normalizer:
    """(value - mean) / std for each column; one that varies by no more than rounding keeps its scale, those that are
    `left` (D,) alone keep mean and scale."""

    def __init__(self, width: int, left: Tensor | None = None):
        self.mean = torch.zeros(width)
        self.std = torch.ones(width)
        self.left = torch.zeros(width, dtype=torch.bool) if left is None else left

    def fit(self, chunks: Iterable[Tensor], rounding: Tensor | float = 0.0) -> Tensor:
        """Mean and standard deviation of all rows (B, width) of the chunks, merged in float64 (Chan 1979). Returns the
        size (D,) of the largest value. `rounding` (D,): what values may be off by besides being float32."""
        count, mean, square, size = 0, *torch.zeros((3, len(self.mean)), dtype=torch.float64)
        for chunk in chunks:
            values = chunk.double()
            size = torch.maximum(size, values.abs().amax(0))
            total = count + len(values)
            apart = values.mean(0) - mean
            square += values.var(0, correction=0) * len(values) + apart**2 * (count * len(values) / total)
            mean += apart * (len(values) / total)
            count = total
        std = (square / max(count, 1)).sqrt()
        constant = std <= 2 * (ROUNDING * size + rounding)
        self.mean = torch.where(self.left, 0.0, mean).float()
        self.std = torch.where(constant | self.left, 1.0, std).float()
        return size

    def apply(self, values: Tensor) -> Tensor:
        return (values - self.mean.to(values.device)) / self.std.to(values.device)

    def undo(self, values: Tensor) -> Tensor:
        return values * self.std.to(values.device) + self.mean.to(values.device)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.numpy(), "std": self.std.numpy()}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        self.mean, self.std = torch.tensor(np.asarray(tree["mean"])), torch.tensor(np.asarray(tree["std"]))
