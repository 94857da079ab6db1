"""One gradient step: a pure loss in, new parameters out.

The parameters of each optimizer lie in one flat tensor and the nets are views of it, so that clipping, the optimizer
and the target update are single operations whatever the number of layers. A loss is a function
``loss(net, target, batch, scalars) -> (loss, info)`` of callables and tensors alone, the same one eager or compiled.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from slm_lab.agent.net.optim import Lookahead, LRSchedule, OptimSpec, make_optimizer
from slm_lab.agent.net.settings import NetSettings
from slm_lab.types import Batch

ERRORS = "errors"  # the one entry of a loss's info that has a row for each of the batch: (B,) TD errors for the memory
Loss = Callable[[Callable, Callable, Batch, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


class FlatParameters:
    """Parameters as one tensor `values` with one gradient `grad`; the modules they belong to become views of it."""

    def __init__(self, parameters: list[nn.Parameter], device: torch.device):
        sizes = [parameter.numel() for parameter in parameters]
        self.values = nn.Parameter(torch.empty(sum(sizes), device=device))
        self.grad = torch.zeros_like(self.values.data)
        self.values.grad = self.grad
        start = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            view = self.values.data[start : start + size].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.grad[start : start + size].view(parameter.shape)
            start += size


@dataclasses.dataclass
class Group:
    """Parameters that share an optimizer, its learning rate and its gradient clipping."""

    flat: FlatParameters
    optimizer: Any
    schedule: LRSchedule


class Learner:
    """Trains `net` on a loss; keeps the target net and the running means of what the loss reports."""

    def __init__(
        self,
        net: nn.Module,
        loss: Loss,
        settings: NetSettings,
        *,
        optim_specs: dict[str, OptimSpec] | None = None,
        has_target: bool = False,
        device: str = "cpu",
        compiled: bool = False,
    ):
        """`optim_specs` gives an optimizer to each named child of `net`; without it, one trains all (`optim_spec`)."""
        self.device = torch.device(device)
        self.net = net.to(self.device)
        self.loss = loss
        self.settings = settings
        if optim_specs is None:
            self.groups = [self._make_group(settings.optim_spec, list(net.parameters()))]
        else:
            children = {name: getattr(net, name) for name in optim_specs}
            self.groups = [
                self._make_group(optim_specs[name], list(child.parameters())) for name, child in children.items()
            ]
        self.target = copy.deepcopy(self.net).requires_grad_(False) if has_target else None
        self._target_flats = self._flatten_target(optim_specs) if has_target else []
        self.opt_step = 0
        self._target_frame = 0
        self._totals: Tensor | None = None
        self._names: list[str] = []
        self._count = 0
        self._compiled_step = torch.compile(self._gradients, fullgraph=True, dynamic=False) if compiled else None
        self._compiled_rows: int | None = None
        self._slots = self._layout() if compiled else {}

    def step(self, batch: Batch, frame: int, **scalars: float) -> Tensor | None:
        """One update at this frame; returns the (B,) errors of the batch's rows if the loss reports them."""
        batch = self.to_device(batch)
        numbers = {name: torch.tensor(value, device=self.device) for name, value in scalars.items()}
        for group in self.groups:
            if not group.schedule.constant:
                for parameters in group.optimizer.param_groups:
                    parameters["lr"] = group.schedule.at(frame)
        if self._compiled_step is not None and self._same_rows(batch):
            loss, info = self._compiled_gradients(batch, numbers)
        else:
            loss, info = self._eager_gradients(batch, numbers)
        norms = [self._clip(group.flat.grad) for group in self.groups]
        for group in self.groups:
            group.optimizer.step()
        self.opt_step += 1
        errors = info.pop(ERRORS, None)
        self._record({"loss": loss, "grad_norm": norms[0] if len(norms) == 1 else torch.stack(norms).norm(), **info})
        if self.target is not None:
            self._follow(frame)
        return errors

    def to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cpu":
            return batch
        return map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def learning_rate(self, frame: int) -> float:
        return self.groups[0].schedule.at(frame)

    def report(self) -> dict[str, float]:
        """Means since the last call of loss, gradient norm and what the loss reports; {} if no step was taken."""
        if not self._count:
            return {}
        means = (self._totals / self._count).tolist()
        self._totals.zero_()
        self._count = 0
        return dict(zip(self._names, means, strict=True))

    def _make_group(self, spec: OptimSpec, parameters: list[nn.Parameter]) -> Group:
        flat = FlatParameters(parameters, self.device)
        return Group(flat, make_optimizer(spec, flat.values), LRSchedule(self.settings.lr_scheduler_spec, spec.lr))

    def _flatten_target(self, optim_specs: dict[str, OptimSpec] | None) -> list[FlatParameters]:
        modules = [self.target] if optim_specs is None else [getattr(self.target, name) for name in optim_specs]
        return [FlatParameters(list(module.parameters()), self.device) for module in modules]

    def _eager_gradients(self, batch: Batch, scalars: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        for group in self.groups:
            group.flat.grad.zero_()
        loss, info = self.loss(self.net, self.target, batch, scalars)
        loss.backward()
        return loss.detach(), {name: value.detach() for name, value in info.items()}

    def _clip(self, grad: Tensor) -> Tensor:
        """The gradient's norm before it is scaled down to at most clip_grad_val."""
        norm = torch.linalg.vector_norm(grad)
        if self.settings.clip_grad_val is not None:
            grad.mul_((self.settings.clip_grad_val / (norm + 1e-6)).clamp_(max=1.0))
        return norm

    def _record(self, values: dict[str, Tensor]) -> None:
        stacked = torch.stack(list(values.values()))
        if self._totals is None:
            self._totals, self._names = torch.zeros_like(stacked, dtype=torch.float64), list(values)
        self._totals += stacked
        self._count += 1

    @torch.no_grad()
    def _follow(self, frame: int) -> None:
        """Bring the target net up to date when `update_frequency` frames have passed (1: after each learn step)."""
        every = self.settings.update_frequency
        if every > 1:
            if frame // every == self._target_frame // every:
                return
            self._target_frame = frame
        weight = self.settings.polyak_coef if self.settings.update_type == "polyak" else 1.0
        for group, target in zip(self.groups, self._target_flats, strict=True):
            if weight == 1.0:
                target.values.data.copy_(group.flat.values.data)
            else:
                target.values.data.lerp_(group.flat.values.data, weight)

    # the compiled step

    def _same_rows(self, batch: Batch) -> bool:
        """Whether the batch has the size that was compiled for; another, such as an epoch's rest, is left to eager."""
        rows = len(batch.reward)
        self._compiled_rows = self._compiled_rows or rows
        return rows == self._compiled_rows

    def _layout(self) -> dict[str, tuple[int, int, torch.Size]]:
        """Name of each parameter -> (group, start, shape) in the flat tensors."""
        by_pointer = {parameter.data_ptr(): name for name, parameter in self.net.named_parameters()}
        shapes = dict(self.net.named_parameters())
        layout = {}
        for index, group in enumerate(self.groups):
            start, base = 0, group.flat.values
            while start < base.numel():
                name = by_pointer[base.data_ptr() + start * base.element_size()]
                layout[name] = (index, start, shapes[name].shape)
                start += shapes[name].numel()
        return layout

    def _views(self, flats: list[Tensor]) -> dict[str, Tensor]:
        return {
            name: flats[group][start : start + shape.numel()].view(shape)
            for name, (group, start, shape) in self._slots.items()
        }

    def _gradients(self, flats: list[Tensor], target_flats: list[Tensor], columns: dict, scalars: dict[str, Tensor]):
        """Pure: the gradient for each flat tensor, the loss and its info."""
        batch = Batch(**columns)

        def loss_of(flats: list[Tensor]):
            views = self._views(flats)
            target_views = self._views(target_flats) if target_flats else None
            return self.loss(
                lambda obs: functional_call(self.net, views, (obs,)),
                target_views and (lambda obs: functional_call(self.target, target_views, (obs,))),
                batch,
                scalars,
            )

        grads, (loss, info) = grad_and_value(loss_of, has_aux=True)(flats)
        return grads, loss, info

    @torch.no_grad()
    def _compiled_gradients(self, batch: Batch, scalars: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        flats = [group.flat.values.data for group in self.groups]
        targets = [flat.values.data for flat in self._target_flats]
        columns = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        grads, loss, info = self._compiled_step(flats, targets, columns, scalars)
        for group, grad in zip(self.groups, grads, strict=True):
            group.flat.grad.copy_(grad)
        return loss, info

    def state_dict(self) -> dict:
        return {
            "parameters": [group.flat.values.detach() for group in self.groups],
            "optimizers": [optimizer_state(group.optimizer) for group in self.groups],
            "targets": [flat.values.detach() for flat in self._target_flats],
            "opt_step": self.opt_step,
            "target_frame": self._target_frame,
            "report": {"names": self._names, "totals": self._totals, "count": self._count},
        }

    def load_state_dict(self, tree: dict) -> None:
        self.load_parameters(tree["parameters"])
        for group, state in zip(self.groups, tree["optimizers"], strict=True):
            load_optimizer_state(group.optimizer, state)
        for flat, values in zip(self._target_flats, tree["targets"], strict=True):
            flat.values.data.copy_(values)
        self.opt_step = tree["opt_step"]
        self._target_frame = tree["target_frame"]
        self._names, self._totals, self._count = (tree["report"][key] for key in ("names", "totals", "count"))

    def load_parameters(self, parameters: list[Tensor]) -> None:
        """One flat tensor for each optimizer, as `state_dict` gives them: enough to act."""
        for group, values in zip(self.groups, parameters, strict=True):
            group.flat.values.data.copy_(values)


def map_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with `function` applied to every tensor."""

    def apply(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if isinstance(value, dict):
            return {key: apply(inner) for key, inner in value.items()}
        return value

    return Batch(**{field.name: apply(getattr(batch, field.name)) for field in dataclasses.fields(batch)})


def optimizer_state(optimizer: torch.optim.Optimizer | Lookahead) -> dict:
    """The state with string keys, so that it can be written as JSON values and tensors."""
    if isinstance(optimizer, Lookahead):
        return {"inner": optimizer_state(optimizer.inner), "slow": optimizer.slow, "count": optimizer.count}
    return {str(key): value for key, value in optimizer.state_dict()["state"].get(0, {}).items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer | Lookahead, tree: dict) -> None:
    if isinstance(optimizer, Lookahead):
        load_optimizer_state(optimizer.inner, tree["inner"])
        optimizer.slow.copy_(tree["slow"])
        optimizer.count = tree["count"]
    else:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: tree} if tree else {}})
