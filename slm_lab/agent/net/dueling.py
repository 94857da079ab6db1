"""Dueling heads: a state's value plus each action's advantage over the mean (Wang et al. 2016, eq. 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from torch import Tensor, nn

from slm_lab.agent.net.mlp import MLPNet, MLPNetSettings, numpy_linear
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


class DuelingMLPNetSettings(MLPNetSettings):
    type: Literal["DuelingMLPNet"] = "DuelingMLPNet"


class DuelingMLPNet(MLPNet):
    """An MLPNet whose `q` head is dueling."""

    Settings = DuelingMLPNetSettings
    needs_head = "q"

    @staticmethod
    def make_head(name: str, width: int, units: Units) -> nn.Module:
        return DuelingHead(width, units) if name == "q" else MLPNet.make_head(name, width, units)

    @staticmethod
    def numpy_head(head: nn.Module) -> Callable[[np.ndarray], np.ndarray]:
        if not isinstance(head, DuelingHead):
            return numpy_linear(head)
        value, advantage = numpy_linear(head.value), numpy_linear(head.advantage)

        def forward(hidden: np.ndarray) -> np.ndarray:
            advantages = advantage(hidden)
            if head.parts == 1:
                return value(hidden) + advantages - advantages.mean(axis=-1, keepdims=True)
            advantages = advantages.reshape(len(hidden), -1, head.parts)
            out = value(hidden)[:, None] + advantages - advantages.mean(axis=-2, keepdims=True)
            return out.reshape(len(hidden), -1)

        return forward
