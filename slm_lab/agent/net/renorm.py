"""Batch renormalisation: a batch norm that in training comes to what it will be when acting (Ioffe 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slm_lab.agent.net.hidden import BatchNorm

MOST_SCALE, MOST_SHIFT = 3.0, 5.0  # by which a batch's statistics are corrected towards the running ones (section 4.1)


class BatchRenorm(BatchNorm):
    """Normalises by the running statistics, while gradients go through the batch's own (Ioffe 2017, algorithm 1).

    For the first `warmup` calls in training, in which the running ones are still far off, a plain batch norm. The
    defaults are those of SBX's CrossQ.
    """

    calls: Tensor

    def __init__(self, features: int, momentum: float = 0.01, eps: float = 1e-3, warmup: int = 100_000):
        super().__init__(features, momentum, eps)
        self.warmup = warmup
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return super().forward(values)
        axes = [axis for axis in range(values.dim()) if axis != 1]
        var, mean = torch.var_mean(values, axes, correction=0)
        deviation = (var + self.eps).sqrt()
        running = (self.running_var + self.eps).sqrt()
        warm = self.calls >= self.warmup
        scale = (deviation.detach() / running).clamp(1 / MOST_SCALE, MOST_SCALE)
        shift = ((mean.detach() - self.running_mean) / running).clamp(-MOST_SHIFT, MOST_SHIFT)
        scale, shift = torch.where(warm, scale, 1.0), torch.where(warm, shift, 0.0)
        self.running_mean = self.running_mean.lerp(mean.detach(), self.momentum)
        self.running_var = self.running_var.lerp(var.detach(), self.momentum)
        self.calls = self.calls + 1
        shape = (-1, *[1] * (values.dim() - 2))
        gain = self.weight * scale / deviation
        return values * gain.view(shape) + (self.bias + self.weight * shift - mean * gain).view(shape)


def renormalise(net: nn.Module) -> nn.Module:
    """The net with a batch renormalisation in the place of each batch norm."""
    for part in list(net.modules()):
        for name, child in part.named_children():
            if isinstance(child, BatchNorm):
                setattr(part, name, BatchRenorm(len(child.weight)))
    return net
