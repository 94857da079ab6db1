"""Nets with layers of their own for each part of the observation and for each head, and common ones between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from pydantic import Field, field_validator
from torch import Tensor, nn

from slm_lab.agent.net.encoder import ConvKeys, Encoders, MLPEncoderSettings, parts_of
from slm_lab.agent.net.hidden import HiddenLayers, HiddenSettings, hidden_gain, initialise, numpy_linear, positive
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.settings import Heads, Units
from slm_lab.errors import Mistake

Sizes = list[int]


class HydraMLPNetSettings(HiddenSettings):
    type: Literal["HydraMLPNet"] = "HydraMLPNet"
    hid_layers: tuple[list[Sizes], Sizes, list[Sizes] | dict[str, Sizes]] = Field(
        ([], [64], []),
        description="units of each layer, three times: for each part of the observation in its order, or one list for "
        "all ([[32]]), or none ([]); the common layers; for each head by name ({'policy': [32], 'value': [64]}), or "
        "one list for all, or none",
    )

    @field_validator("hid_layers")
    @classmethod
    def _positive(cls, layers: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        inputs, common, tails = layers
        for sizes in (*inputs, common, *(tails.values() if isinstance(tails, dict) else tails)):
            positive(sizes)
        if isinstance(tails, list) and len(tails) > 1:
            raise ValueError("the last of the three has several lists: name the head of each, as {'policy': [32]}")
        return layers

    @property
    def own_heads(self) -> list[str]:
        """Heads that the spec names."""
        return list(self.hid_layers[2]) if isinstance(self.hid_layers[2], dict) else []


class Tail(nn.Module):
    """Layers of one head's own, and the head."""

    def __init__(self, hidden: HiddenLayers, last: nn.Module):
        super().__init__()
        self.hidden, self.last = hidden, last

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.hidden.forward(values))


class HydraMLPNet(MLPNet):
    """Parts of the observation through their own layers, side by side through common ones, to heads with tails."""

    Settings: ClassVar[Any] = HydraMLPNetSettings

    def __init__(self, settings: HydraMLPNetSettings, observation_space: spaces.Space, heads: Heads):
        super().__init__(settings, observation_space, heads)
        for tail in self.heads.values():
            initialise(tail.hidden, settings.init_fn, hidden_gain(settings.hid_layers_activation))

    @classmethod
    def encoding(cls, settings: Any, observation_space: spaces.Space) -> tuple[Encoders, ConvKeys | None]:
        inputs, names = settings.hid_layers[0], list(parts_of(observation_space))
        each = inputs * len(names) if len(inputs) == 1 else inputs
        return {name: MLPEncoderSettings(hid_layers=sizes) for name, sizes in zip(names, each, strict=False)}, None

    @classmethod
    def hidden_sizes(cls, settings: Any) -> list[int]:
        return settings.hid_layers[1]

    @classmethod
    def check(cls, settings: Any, observation_space: spaces.Space) -> list[Mistake]:
        given, parts = len(settings.hid_layers[0]), len(parts_of(observation_space))
        if given not in (0, 1, parts):
            problem = f"layers for {given} parts of the observation, which has {parts}; give as many lists, 1 or 0"
            return [Mistake("agent.net.hid_layers", problem)]
        return super().check(settings, observation_space)

    def make_head(self, name: str, width: int, units: Units) -> nn.Module:
        tails = self.settings.hid_layers[2]
        sizes = tails.get(name, []) if isinstance(tails, dict) else tails[0] if tails else []
        hidden = HiddenLayers(width, sizes, self.settings)
        return Tail(hidden, super().make_head(name, hidden.width, units))

    def numpy_head(self, head: nn.Module) -> Callable[[np.ndarray], np.ndarray] | None:
        hidden, last = head.hidden.numpy_forward(), numpy_linear(head.last)
        return None if hidden is None else lambda values: last(hidden(values))
