"""One gradient step: a pure loss in, new parameters out.

The parameters of each optimizer lie in one flat tensor and the nets are views of it, so that clipping, the optimizer
and the target update are single operations whatever the number of layers. A loss is a function
``loss(net, target, batch, scalars) -> (loss, info)`` of callables and tensors alone, the same one eager or compiled.
Where several nets learn, each has a learner, and sees the others through `frozen`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from slm_lab.agent.common import Common, copy_all, in_shared_memory, set_buffers
from slm_lab.agent.compiled import CompiledStep, Loss, Told, call, clip, keep_buffers
from slm_lab.agent.group import Group, flatten, make_views
from slm_lab.agent.net.optim import (
    LRSchedule,
    OptimSpec,
    arithmetic,
    common_state,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
)
from slm_lab.agent.net.settings import NetSettings
from slm_lab.agent.stack import Stack
from slm_lab.lib.means import Means
from slm_lab.types import Batch

ENGINE = torch.autograd.Variable._execution_engine
ERRORS = "errors"  # the one entry of a loss's info that has a row for each of the batch: (B,) TD errors for the memory
WHOLE = ""  # in place of a child's name: the whole net


def frozen(net: nn.Module) -> nn.Module:
    """The same net over the same parameters, which gradients pass by; only after a learner has made views of them."""
    other = copy.deepcopy(net).requires_grad_(False).eval()
    for own, shared in zip(other.parameters(), net.parameters(), strict=True):
        own.data = shared.data
    for part, shared_part in zip(other.modules(), net.modules(), strict=True):
        part._buffers = shared_part._buffers  # the dict itself: its tensors may be exchanged for others
    return other


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
        common: Common | None = None,
    ):
        """`optim_specs` names the children of `net` that have an optimizer of their own; by default one trains all.

        Without a target net, the loss is handed the net itself in its place. `common`: what other sessions train too,
        to be trained in the place of the net's own parameters.
        """
        self.device = torch.device(device)
        self.common = common
        self._original = common if common is not None and common.synced else None  # what the net is a copy of
        self.net = net.to(self.device)
        self.has_buffers = any(True for _ in net.buffers())  # such as a batch norm's running means
        if self.has_buffers:
            self.net.eval()  # all but the learn step uses what it has learned, and changes nothing
        self.loss = loss
        self.settings = settings
        self.target = copy.deepcopy(self.net).requires_grad_(False) if has_target else self.net
        self.optim_specs = optim_specs or {WHOLE: settings.optim_spec}
        self.groups = [self._make_group(place, *named) for place, named in enumerate(self.optim_specs.items())]
        if common is not None:
            self._join_buffers(common)
        self._one: Tensor | None = None  # the gradient of the loss by itself
        self._clip = clip_at_sight if self.device.type == "cpu" else clip
        self.opt_step = 0
        self._target_frame = torch.tensor(0) if common is None else common.target_frame
        self.means = Means(self.device)  # of what the steps reported
        self._compiled = self._functional() if compiled else None
        self._stacked: tuple[str, Stack, CompiledStep] | None = None

    def stack_with(self, stack: Stack, name: str) -> None:
        """Take its steps together with those of the learners of that name in other sessions."""
        self._stacked = name, stack, self._functional()

    def _functional(self) -> CompiledStep:
        return CompiledStep(self.net, self.target, self.loss, self.groups, self.settings.clip_grad_val)

    def _make_group(self, place: int, name: str, spec: OptimSpec) -> Group:
        part, common = self.net.get_submodule(name), self.common
        flat = flatten(part, trained=True, common=None if common is None else common.parameters[place])
        own, target = flat.data, None
        if self._original is not None:
            own = flat.detach().clone()
            make_views(part, own)
        if self.target is not self.net:
            of_target = None if common is None else common.targets[place]
            target = flatten(self.target.get_submodule(name), trained=False, common=of_target)
        optimizer = make_optimizer(spec, flat)
        if common is not None and common.optimizers[place]:
            optimizer.state[flat] = common.optimizers[place]
        schedule = LRSchedule(self.settings.lr_scheduler_spec, spec.lr)
        return Group(flat, own, optimizer, schedule, target, arithmetic(spec))

    def _join_buffers(self, common: Common) -> None:
        if not common.synced:
            set_buffers(self.net, common.buffers)
        if self.target is not self.net:
            set_buffers(self.target, common.target_buffers)
        copy_all(self.net.buffers(), common.buffers)

    def share(self, *, synced: bool) -> Common:
        """Copies of what is learned, for sessions in other processes to train together."""
        states = [
            common_state(spec, group.flat, group.optimizer)
            for spec, group in zip(self.optim_specs.values(), self.groups, strict=True)
        ]
        return Common(
            synced,
            in_shared_memory(group.flat for group in self.groups),
            in_shared_memory(group.target for group in self.groups if group.target is not None),
            in_shared_memory(self.net.buffers()),
            in_shared_memory([] if self.target is self.net else self.target.buffers()),
            [dict(zip(state, in_shared_memory(state.values()), strict=True)) for state in states],
            self._target_frame.clone().share_memory_(),
        )

    def step(self, batch: Batch, frame: int, *, follow: bool = True, **scalars: float) -> Tensor | None:
        """One update at this frame; returns the (B,) errors of the batch's rows if the loss reports them.

        `follow`: the target net may be brought up to date, if it is time.
        """
        batch = self.to_device(batch)
        numbers = {name: torch.tensor(value, device=self.device) for name, value in scalars.items()}
        for group in self.groups:
            group.set_learning_rate(frame)
        if self.has_buffers:
            if self._original is not None:
                copy_all(self.net.buffers(), self._original.buffers)
            self.net.train()
        if self._stacked is not None:
            name, stack, step = self._stacked
            loss, norms, info = stack.step(name, step, batch, numbers, partial(self._eager_step, batch, numbers))
        elif self._compiled is not None and self._compiled.fits(batch):
            loss, norms, info = self._compiled(batch, numbers)
        else:
            loss, norms, info = self._eager_step(batch, numbers)
        if self.has_buffers:
            self.net.eval()
        if self._original is not None:
            self._sync(self._original)
        self.opt_step += 1
        errors = info.pop(ERRORS, None)
        self.means.add({"loss": loss, "grad_norm": norms[0] if len(norms) == 1 else torch.stack(norms).norm(), **info})
        if follow and self.target is not self.net:
            self._follow(frame)
        return errors

    def sharing(self, loss: Loss) -> Learner:
        """A learner of the same parameters by the same optimizers, with another loss; counts and report are its own."""
        other = copy.copy(self)
        other.loss, other.opt_step, other.means = loss, 0, Means(self.device)
        if self._compiled is not None:
            other._compiled = other._functional()
        if self._stacked is not None:
            other.stack_with(self._stacked[1], f"{self._stacked[0]}.{getattr(loss, '__name__', 'other')}")
        return other

    def to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cpu":
            return batch
        return map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def learning_rate(self, frame: int) -> float:
        """Of the first optimizer, which is the actor's where there are two."""
        return self.groups[0].schedule.at(frame)

    def report(self) -> dict[str, float]:
        """Means since the last call of loss, gradient norm and what the loss reports; {} if no step was taken."""
        return self.means.take()

    @torch.no_grad()
    def _sync(self, original: Common) -> None:
        """After a step: the net becomes what all sessions have made of the parameters, this step's change included."""
        copy_all(original.buffers, self.net.buffers())
        for group in self.groups:
            group.pull()

    def _eager_step(self, batch: Batch, scalars: dict[str, Tensor]) -> Told:
        for group in self.groups:
            group.flat.grad.zero_()
        held = dict(self.net.named_buffers()) if self.has_buffers else {}
        buffers = held.copy()
        net = partial(call, self.net, buffers) if buffers else self.net
        loss, info = self.loss(net, net if self.target is self.net else self.target, batch, scalars)
        self._backward(loss)
        keep_buffers(held, buffers)
        norms = [self._clip(group.flat.grad, self.settings.clip_grad_val) for group in self.groups]
        for group in self.groups:
            group.step()
        return loss.detach(), norms, {name: value.detach() for name, value in info.items()}

    def _backward(self, loss: Tensor) -> None:
        """`loss.backward()`, without what torch looks at in Python before it calls its engine, which takes 30 of the
        450 µs of a small DQN's learn step."""
        if self._one is None:
            self._one = torch.ones_like(loss)
        ENGINE.run_backward((loss,), (self._one,), False, False, (), allow_unreachable=True, accumulate_grad=True)

    @torch.no_grad()
    def _follow(self, frame: int) -> None:
        """Bring the target net up to date when `update_frequency` frames have passed (1: after each learn step)."""
        every = self.settings.update_frequency
        if every > 1:
            if frame // every <= self._target_frame.item() // every:  # another session may be ahead of this one
                return
            self._target_frame.fill_(frame)
        pairs = [(group.target, group.flat) for group in self.groups]
        if self.has_buffers:
            pairs += zip(self.target.buffers(), self.net.buffers(), strict=True)
        for target, values in pairs:
            if self.settings.update_type == "replace" or not values.is_floating_point():
                target.copy_(values)
            else:
                target.lerp_(values, self.settings.polyak_coef)

    def state_dict(self) -> dict:
        tree = {
            "parameters": [group.own for group in self.groups],
            "targets": [group.target.detach() for group in self.groups if group.target is not None],
            "buffers": list(self.net.buffers()),
            "target_buffers": [] if self.target is self.net else list(self.target.buffers()),
            "optimizers": [optimizer_state(group.optimizer) for group in self.groups],
            "opt_step": self.opt_step,
            "target_frame": int(self._target_frame),
            "report": self.means.state_dict(),
        }
        return tree if self.common is None else copy.deepcopy(tree)  # others go on while it is written

    @torch.no_grad()
    def load_state_dict(self, tree: dict) -> None:
        """Of what sessions have in common nothing is taken on: it is as they all were given it."""
        if self.common is None:
            self.load_parameters(tree["parameters"], tree["buffers"])
            targets = [group.target for group in self.groups if group.target is not None]
            if self.target is not self.net:
                targets += self.target.buffers()
            copy_all(targets, tree["targets"] + tree["target_buffers"])
            self._target_frame.fill_(tree["target_frame"])
        for place, (group, state) in enumerate(zip(self.groups, tree["optimizers"], strict=True)):
            if self.common is None or not self.common.optimizers[place]:
                load_optimizer_state(group.optimizer, state)
        self.opt_step = int(tree["opt_step"])
        self.means.load_state_dict(tree["report"])

    def load_parameters(self, parameters: list[Tensor], buffers: list[Tensor]) -> None:
        """One flat tensor for each optimizer and the net's buffers, as `state_dict` gives them: enough to act."""
        copy_all((group.flat for group in self.groups), parameters)
        copy_all(self.net.buffers(), buffers)


def clip_at_sight(grad: Tensor, largest: float | None) -> Tensor:
    """`clip`, for the CPU: there to look at the norm takes less than to scale by one."""
    norm = torch.linalg.vector_norm(grad)
    if largest is not None and (seen := norm.item()) > largest:
        grad.mul_(largest / seen)
    return norm


def map_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with `function` applied to every tensor."""

    def apply(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if isinstance(value, dict):
            return {key: apply(inner) for key, inner in value.items()}
        return value

    return Batch(**{field.name: apply(getattr(batch, field.name)) for field in dataclasses.fields(batch)})
