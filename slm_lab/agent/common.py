"""What the sessions of a distributed trial have in common: one set of parameters, in memory that all of them see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Common:
    """The tensors of one learner that every session trains, without locks (Hogwild: Recht 2011; A3C: Mnih 2016).

    They lie in shared memory, so that to send this to another process is to let it work on the same ones.
    """

    synced: bool  # each session computes on a copy of the net, which its learn steps bring up to date
    parameters: list[Tensor]  # a flat one for each optimizer
    targets: list[Tensor]  # likewise, of the target net
    buffers: list[Tensor]
    target_buffers: list[Tensor]
    optimizers: list[dict[str, Tensor]]  # state of each optimizer; {} where it is every session's own
    target_frame: Tensor  # ()  at which the target net was last brought up to date


def in_shared_memory(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies that processes share when they are sent to them."""
    return [tensor.detach().clone().share_memory_() for tensor in tensors]


@torch.no_grad()
def copy_all(tensors: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Each of the `values` into its tensor."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def buffer_places(net: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(name, dict that holds it, key there) of each buffer, whose tensor may be exchanged for another one."""
    for name, _ in net.named_buffers():
        owner, _, key = name.rpartition(".")
        yield name, net.get_submodule(owner)._buffers, key


def set_buffers(net: nn.Module, tensors: list[Tensor]) -> None:
    """Let these be the net's buffers, in the place of its own."""
    for (_, held, key), tensor in zip(list(buffer_places(net)), tensors, strict=True):
        held[key] = tensor
