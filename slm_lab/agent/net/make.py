"""A net from the spec's block."""

from __future__ import annotations

from gymnasium import spaces
from torch import nn

from slm_lab.agent.net.settings import Heads, NetSettings
from slm_lab.spec import registry


def make_net(settings: NetSettings, observation_space: spaces.Space, heads: Heads) -> nn.Module:
    """The net that the block names, with a head of so many units for each name."""
    return registry.find("net", settings.type)(settings, observation_space, heads)
