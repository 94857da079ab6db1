"""Nets that value actions for the algorithms that learn a policy beside them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from slm_lab.agent.net.encoder import parts_of
from slm_lab.agent.net.make import make_net
from slm_lab.agent.net.settings import NetSettings

OBS, ACTION = "@obs", "@action"  # names, in the critics' input, of an observation without parts, and of the action


class Critics(nn.Module):
    """(B, count) values of (obs, action), each by a net of its own.

    For Discrete actions, obs alone gives the values of all of them: (B, count, actions).
    Box actions are one more part of the observation; they are brought from their bounds to [-1, 1], so that a net sees
    the same whatever their unit.
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
            parts = {name or OBS: part for name, part in parts_of(observation_space).items()}
            parts[ACTION] = spaces.Box(-1, 1, (len(low),), np.float32)
            space, units = spaces.Dict(OrderedDict(parts)), 1  # which keeps the action last
        self.nets = nn.ModuleList(make_net(settings, space, {"value": units}) for _ in range(count))

    def forward(self, obs: Any, action: Tensor | None = None) -> Tensor:
        if self.values_all:
            values = torch.stack([net(obs) for net in self.nets], 1)
            return values if action is None else pick(values, action - self.first_action)
        parts = dict(obs) if isinstance(obs, dict) else {OBS: obs}
        flat = action.reshape(len(action), -1).float()
        parts[ACTION] = (flat - self.middle.to(action.device)) / self.half.to(action.device)
        return torch.cat([net(parts) for net in self.nets], -1)


def pick(values: Tensor, index: Tensor) -> Tensor:
    """(B, count) of (B, count, actions) the values of the actions with this (B,) index."""
    return values.gather(-1, index.long()[:, None, None].expand(-1, values.shape[1], 1)).squeeze(-1)
