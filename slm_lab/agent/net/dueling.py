"""Dueling heads: a state's value plus each action's advantage over the mean (Wang et al. 2016, eq. 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from torch import Tensor, nn

from slm_lab.agent.net.mlp import MLPNet, MLPNetSettings, numpy_linear


class DuelingHead(nn.Module):
    def __init__(self, width: int, num_actions: int):
        super().__init__()
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, num_actions)

    def forward(self, hidden: Tensor) -> Tensor:
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(dim=-1, keepdim=True)


class DuelingMLPNetSettings(MLPNetSettings):
    type: Literal["DuelingMLPNet"] = "DuelingMLPNet"


class DuelingMLPNet(MLPNet):
    """An MLPNet whose `q` head is dueling."""

    Settings = DuelingMLPNetSettings
    needs_head = "q"

    @staticmethod
    def make_head(name: str, width: int, units: int) -> nn.Module:
        return DuelingHead(width, units) if name == "q" else nn.Linear(width, units)

    @staticmethod
    def numpy_head(head: nn.Module) -> Callable[[np.ndarray], np.ndarray]:
        if not isinstance(head, DuelingHead):
            return numpy_linear(head)
        value, advantage = numpy_linear(head.value), numpy_linear(head.advantage)

        def forward(hidden: np.ndarray) -> np.ndarray:
            advantages = advantage(hidden)
            return value(hidden) + advantages - advantages.mean(axis=-1, keepdims=True)

        return forward
