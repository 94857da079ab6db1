"""The learn steps of several agents as one call, with their parameters and batches along a leading axis.

Each session runs in a thread of its own, but only one at a time: a session that comes to a learn step waits there, and
lets the next go on, until all have come to one; then the last of them takes all steps at once. What each learns is what
it would have learned alone, but for the order in which floating-point numbers are added.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from slm_lab.agent.compiled import CompiledStep, Told, keep_buffers
from slm_lab.types import Batch


@dataclasses.dataclass
class Request:
    """A learn step that a session waits for."""

    name: str  # of the learner
    step: CompiledStep
    inputs: Any  # of its gradients
    alone: Callable[[], Told]  # the same step by itself
    told: Told | None = None
    error: BaseException | None = None

    def kind(self) -> Any:
        """Steps of one kind can be one: the same learner, inputs of the same shapes."""
        leaves, form = tree_flatten(self.inputs)
        shapes = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return self.name, str(form), shapes


class Stack:
    """What sessions in threads of one process have in common: whose turn it is, and the steps that wait."""

    def __init__(self, sessions: int, compiled: bool = False):
        self._turn = threading.Condition()
        self._sessions = sessions  # that have not ended
        self._waiting: list[Request] = []
        self._compiled = compiled
        self._functions: dict[Any, Callable | None] = {}  # by kind; None: such steps cannot be stacked

    @contextmanager
    def session(self) -> Iterator[None]:
        """While it lasts the session has its turns."""
        with self._turn:
            try:
                yield
            finally:
                self._sessions -= 1
                self._take_if_all_wait()

    def step(self, name: str, step: CompiledStep, batch: Batch, scalars: dict[str, Tensor], alone: Any) -> Told:
        """The loss, the gradients' norms and the info of a learn step, whose optimizers have been applied."""
        flats = [group.own for group in step.groups]
        targets = [group.target.data for group in step.groups if group.target is not None]
        columns = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        request = Request(name, step, (flats, targets, step.buffers(), columns, scalars), alone)
        self._waiting.append(request)
        self._take_if_all_wait()
        while request.told is None and request.error is None:
            self._turn.wait()
        if request.error is not None:
            raise request.error
        assert request.told is not None
        return request.told

    def _take_if_all_wait(self) -> None:
        if len(self._waiting) < self._sessions or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        kinds: dict[Any, list[Request]] = {}
        for request in waiting:
            kinds.setdefault(request.kind(), []).append(request)
        for kind, requests in kinds.items():
            self._take(kind, requests)
        self._turn.notify_all()

    def _take(self, kind: Any, requests: list[Request]) -> None:
        key = (kind, len(requests))
        if len(requests) > 1 and self._functions.get(key, True) is not None:
            try:
                self._take_stacked(key, requests)
                return
            except Exception:  # a loss that vmap cannot follow, such as one that looks at its numbers
                if key in self._functions:
                    raise
                self._functions[key] = None
        for request in requests:
            try:
                request.told = request.alone()
            except BaseException as error:
                request.error = error

    @torch.no_grad()
    def _take_stacked(self, key: Any, requests: list[Request]) -> None:
        first = requests[0]
        function = self._functions.get(key)
        if function is None:
            axes = tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, first.inputs)
            function = torch.vmap(first.step.gradients, in_dims=axes)
            if self._compiled:
                function = torch.compile(function, dynamic=False)
        stacked = _stack([request.inputs for request in requests])
        results = function(*stacked)
        self._functions[key] = function
        for place, request in enumerate(requests):
            grads, told, buffers = tree_map(lambda tensor, place=place: tensor[place], results)
            for group, grad in zip(request.step.groups, grads, strict=True):
                group.flat.grad.copy_(grad)
                group.step()
            keep_buffers(request.inputs[2][0], buffers)
            request.told = told


def _stack(trees: list[Any]) -> Any:
    """One tree of the tensors of all, along a new first axis."""
    leaves, form = zip(*map(tree_flatten, trees), strict=True)
    together = [torch.stack(same) if isinstance(same[0], Tensor) else same[0] for same in zip(*leaves, strict=True)]
    return tree_unflatten(together, form[0])
