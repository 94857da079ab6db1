"""The learn step as one compiled function: loss, gradients, clipping, and the optimizers where they are arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from slm_lab.agent.common import buffer_places
from slm_lab.agent.group import Group
from slm_lab.agent.net.optim import adam_state
from slm_lab.types import Batch

Loss = Callable[[Callable, Callable, Batch, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
Told = tuple[Tensor, list[Tensor], dict[str, Tensor]]  # of a step: the loss, the gradient's norm in each group, info


def clip(grad: Tensor, largest: float | None) -> Tensor:
    """Scale the gradient down to a norm of at most `largest`; its norm before that."""
    norm = torch.linalg.vector_norm(grad)
    if largest is not None:
        grad.div_((norm / largest).clamp(min=1.0))
    return norm


def call(net: nn.Module, tensors: dict[str, Tensor], *inputs: Any) -> Any:
    """What the net puts out with these tensors in place of its own; buffers that it would set go to `tensors`."""
    return functional_call(net, tensors, inputs)


@torch.no_grad()
def keep_buffers(held: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """In place, for others may share them."""
    for name, tensor in held.items():
        tensor.copy_(values[name])


def with_own_code(method: MethodType) -> MethodType:
    """The same method with a copy of its code: torch keeps what it has compiled with the code, and no more than a few
    versions of it, while a process may come to train any number of agents."""
    function = cast(FunctionType, method.__func__)
    copied = FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__
    )
    return MethodType(copied, method.__self__)


class CompiledStep:
    """The learn step as one compiled function, for batches of the size of the first one.

    Loss, gradients and clipping, and the optimizers too where all can be told as plain arithmetic.
    """

    def __init__(self, net: nn.Module, target: nn.Module, loss: Loss, groups: list[Group], clip_grad_val: float | None):
        self.net, self.target, self.loss, self.groups, self.clip_grad_val = net, target, loss, groups, clip_grad_val
        self.rows: int | None = None
        self._places = self._find_places()
        self._buffer_places = [list(buffer_places(one)) for one in (net, target)]
        self._optimizers = [group.arithmetic for group in groups if group.arithmetic is not None]
        self._with_optimizers = len(self._optimizers) == len(groups)
        function = self._whole_step if self._with_optimizers else self.gradients
        self._function = torch.compile(with_own_code(function), fullgraph=True, dynamic=False)

    def fits(self, batch: Batch) -> bool:
        """Whether the batch has the size that was compiled for; another, such as an epoch's rest, is left to eager."""
        rows = len(batch.reward)
        self.rows = self.rows or rows
        return rows == self.rows

    @torch.no_grad()
    def __call__(self, batch: Batch, scalars: dict[str, Tensor]) -> Told:
        flats = [group.own for group in self.groups]
        targets = [group.target.data for group in self.groups if group.target is not None]
        columns = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        held = self.buffers()
        if self._with_optimizers:
            states = [adam_state(group.optimizer, group.flat) for group in self.groups]
            rates = [group.lr for group in self.groups]
            originals = [group.flat.data for group in self.groups if group.is_copy]  # of copies: all are, or none
            told, buffers = self._function(flats, targets, held, columns, scalars, states, rates, originals)
            keep_buffers(held[0], buffers)
            return told
        grads, told, buffers = self._function(flats, targets, held, columns, scalars)
        for group, grad in zip(self.groups, grads, strict=True):
            group.flat.grad.copy_(grad)
            group.step()
        keep_buffers(held[0], buffers)
        return told

    def _whole_step(self, flats, targets, buffers, columns, scalars, states, rates, originals):
        """Changes the parameters (where they are copies, the originals) and the optimizers' states in place."""
        grads, told, buffers = self.gradients(flats, targets, buffers, columns, scalars)
        for optimizer, *values in zip(self._optimizers, originals or flats, grads, states, rates, strict=True):
            optimizer(*values)
        return told, buffers

    def gradients(self, flats, targets, buffers, columns: dict, scalars: dict[str, Tensor]):
        """Pure: the gradient for each flat tensor, what goes with them, and the net's new buffers."""
        batch = Batch(**columns)
        own, targets_own = buffers

        def loss_of(flats: list[Tensor]):
            views = self._views(flats) | own
            target_views = self._views(targets) | targets_own if targets else views
            loss, info = self.loss(
                partial(call, self.net, views),
                partial(call, self.target, target_views),
                batch,
                scalars,
            )
            return loss, (info, {name: views[name].detach() for name in own})  # calls put their new buffers in `views`

        grads, (loss, (info, new)) = grad_and_value(loss_of, has_aux=True)(flats)
        return grads, (loss, [clip(grad, self.clip_grad_val) for grad in grads], info), new

    def buffers(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        own, of_target = ({name: held[key] for name, held, key in places} for places in self._buffer_places)
        return own, of_target

    def _views(self, flats: list[Tensor]) -> dict[str, Tensor]:
        return {
            name: flats[group][start : start + shape.numel()].view(shape)
            for name, (group, start, shape) in self._places.items()
        }

    def _find_places(self) -> dict[str, tuple[int, int, torch.Size]]:
        """Name of each parameter -> (group, start, shape) in the flat tensors."""
        places = {}
        for name, parameter in self.net.named_parameters():
            for index, group in enumerate(self.groups):
                start = (parameter.data_ptr() - group.own.data_ptr()) // parameter.element_size()
                if 0 <= start < group.flat.numel():
                    places[name] = (index, start, parameter.shape)
        return places
