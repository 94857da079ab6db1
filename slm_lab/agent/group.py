"""Parameters that share an optimizer: one flat tensor, of which those of the net are views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from slm_lab.agent.net.optim import Arithmetic, Lookahead, LRSchedule, bare_step


def flatten(module: nn.Module, *, trained: bool) -> nn.Parameter:
    """All the module's parameters in one tensor, of which they, and if `trained` their gradients, become views."""
    parameters = list(module.parameters())
    flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]), requires_grad=trained)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values in zip(parameters, flat.data.split(sizes), strict=True):
        parameter.data = values.view(parameter.shape)
    if trained:
        flat.grad = torch.zeros_like(flat)
        for parameter, grad in zip(parameters, flat.grad.split(sizes), strict=True):
            parameter.grad = grad.view(parameter.shape)
    return flat


@dataclass
class Group:
    """Parameters that share an optimizer, its learning rate and its gradient clipping."""

    flat: nn.Parameter
    optimizer: torch.optim.Optimizer | Lookahead
    schedule: LRSchedule
    target: nn.Parameter | None  # the same parameters of the target net
    arithmetic: Arithmetic | None  # the optimizer's step, where it can be compiled

    def __post_init__(self):
        self.step = bare_step(self.optimizer)
        self.lr = torch.tensor(self.schedule.base_lr, device=self.flat.device)

    def set_learning_rate(self, frame: int) -> None:
        if self.schedule.constant:
            return
        rate = self.schedule.at(frame)
        self.lr.fill_(rate)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
