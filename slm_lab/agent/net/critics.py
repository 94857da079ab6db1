"""Nets that value actions for the algorithms that learn a policy beside them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from slm_lab.agent.net.make import make_net
from slm_lab.agent.net.settings import NetSettings


class Critics(nn.Module):
    """(B, count) values of (obs, action), each by a net of its own.

    For Discrete actions, obs alone gives the values of all of them: (B, count, actions).
    Box actions are brought from their bounds to [-1, 1], so that a net sees the same whatever their unit.
    """

    def __init__(self, settings: NetSettings, observation_space: spaces.Space, action_space: spaces.Space, count: int):
        super().__init__()
        self.values_all = isinstance(action_space, spaces.Discrete)
        if isinstance(action_space, spaces.Discrete):
            space, units = observation_space, int(action_space.n)
            self.first_action = int(action_space.start)
        else:
            low, high = (
                torch.tensor(bound.flatten(), dtype=torch.float32) for bound in (action_space.low, action_space.high)
            )
            self.middle, self.half = (low + high) / 2, (high - low) / 2
            self.classes = int(observation_space.n) if isinstance(observation_space, spaces.Discrete) else None
            self.first_class = int(observation_space.start) if self.classes else 0
            width = (self.classes or int(np.prod(observation_space.shape))) + len(low)
            space, units = spaces.Box(-np.inf, np.inf, (width,), np.float32), 1
        self.nets = nn.ModuleList(make_net(settings, space, {"value": units}) for _ in range(count))

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        if self.values_all:
            values = torch.stack([net(obs) for net in self.nets], 1)
            if action is None:
                return values
            index = (action.long() - self.first_action)[:, None, None].expand(-1, len(self.nets), 1)
            return values.gather(-1, index).squeeze(-1)
        joined = self._joined(obs, action)
        return torch.cat([net(joined) for net in self.nets], -1)

    def _joined(self, obs: Tensor, action: Tensor) -> Tensor:
        if self.classes:
            obs = F.one_hot(obs.long() - self.first_class, self.classes)
        share = (action.flatten(1).float() - self.middle.to(action.device)) / self.half.to(action.device)
        return torch.cat([obs.flatten(1).float(), share], -1)
