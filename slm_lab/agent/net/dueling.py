"""Dueling heads: a state's value plus each action's advantage over the mean (Wang et al. 2016, eq. 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from torch import Tensor, nn

from slm_lab.agent.net.conv import ConvNet, ConvNetSettings
from slm_lab.agent.net.hidden import numpy_linear
from slm_lab.agent.net.mlp import MLPNet, MLPNetSettings
from slm_lab.agent.net.settings import Units


class DuelingHead(nn.Module):
    """(B, actions * parts): where an action's value has several parts, such as quantiles, the state's value has as many
    and the mean is taken part by part (Hessel 2018, section 3)."""

    def __init__(self, width: int, units: Units):
        super().__init__()
        num_actions, self.parts = units if isinstance(units, tuple) else (units, 1)
        self.value = nn.Linear(width, self.parts)
        self.advantage = nn.Linear(width, num_actions * self.parts)

    def forward(self, hidden: Tensor) -> Tensor:
        advantage = self.advantage(hidden)
        if self.parts == 1:
            return self.value(hidden) + advantage - advantage.mean(dim=-1, keepdim=True)
        advantage = advantage.unflatten(-1, (-1, self.parts))
        return (self.value(hidden).unsqueeze(-2) + advantage - advantage.mean(dim=-2, keepdim=True)).flatten(-2)


class DuelingHeads(MLPNet):
    """Makes the `q` head of an MLPNet, or of a net built on it, dueling."""

    needs_head = "q"

    def make_head(self, name: str, width: int, units: Units) -> nn.Module:
        return DuelingHead(width, units) if name == "q" else super().make_head(name, width, units)

    def numpy_head(self, head: nn.Module) -> Callable[[np.ndarray], np.ndarray] | None:
        if not isinstance(head, DuelingHead):
            return super().numpy_head(head)
        value, advantage = numpy_linear(head.value), numpy_linear(head.advantage)

        def forward(hidden: np.ndarray) -> np.ndarray:
            advantages = advantage(hidden)
            if head.parts == 1:
                return value(hidden) + advantages - advantages.mean(axis=-1, keepdims=True)
            advantages = advantages.reshape(len(hidden), -1, head.parts)
            out = value(hidden)[:, None] + advantages - advantages.mean(axis=-2, keepdims=True)
            return out.reshape(len(hidden), -1)

        return forward


class DuelingMLPNetSettings(MLPNetSettings):
    type: Literal["DuelingMLPNet"] = "DuelingMLPNet"


class DuelingMLPNet(DuelingHeads):
    Settings = DuelingMLPNetSettings


class DuelingConvNetSettings(ConvNetSettings):
    type: Literal["DuelingConvNet"] = "DuelingConvNet"


class DuelingConvNet(DuelingHeads, ConvNet):
    Settings = DuelingConvNetSettings
