"""Parameters that share an optimizer: one flat tensor, of which those of the net are views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slm_lab.agent.net.optim import Arithmetic, Lookahead, LRSchedule, bare_step


def flatten(module: nn.Module, *, trained: bool, common: Tensor | None = None) -> nn.Parameter:
    """All the module's parameters in one tensor, of which they, and if `trained` their gradients, become views.

    `common`: a flat tensor to be views of, whose values become theirs.
    """
    parameters = list(module.parameters())
    if common is None:
        common = torch.cat([parameter.detach().flatten() for parameter in parameters])
    flat = nn.Parameter(common, requires_grad=trained)
    make_views(module, flat.data)
    if trained:
        flat.grad = torch.zeros_like(flat)
        for parameter, grad in zip(parameters, _parts(parameters, flat.grad), strict=True):
            parameter.grad = grad
    return flat


def make_views(module: nn.Module, flat: Tensor) -> None:
    """Let the module's parameters be views of that tensor."""
    parameters = list(module.parameters())
    for parameter, values in zip(parameters, _parts(parameters, flat), strict=True):
        parameter.data = values


def _parts(parameters: list[nn.Parameter], flat: Tensor) -> list[Tensor]:
    sizes = [parameter.numel() for parameter in parameters]
    pairs = zip(parameters, flat.split(sizes), strict=True)
    return [values.view(parameter.shape) for parameter, values in pairs]


@dataclass
class Group:
    """Parameters that share an optimizer, its learning rate and its gradient clipping."""

    flat: nn.Parameter  # what the optimizer changes
    own: Tensor  # what the net's parameters are views of: the data of `flat`, or in a synced session a copy of it
    optimizer: torch.optim.Optimizer | Lookahead
    schedule: LRSchedule
    target: nn.Parameter | None  # the same parameters of the target net
    arithmetic: Arithmetic | None  # the optimizer's step, where it can be compiled

    def __post_init__(self):
        self.is_copy = self.own.data_ptr() != self.flat.data_ptr()
        self.step = bare_step(self.optimizer)
        self.lr = torch.tensor(self.schedule.base_lr, device=self.flat.device)

    def set_learning_rate(self, frame: int) -> None:
        if self.schedule.constant:
            return
        rate = self.schedule.at(frame)
        self.lr.fill_(rate)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate

    def pull(self) -> None:
        """Let the net be what the optimizer has made, where the net is a copy."""
        if self.is_copy:
            self.own.copy_(self.flat.data)
