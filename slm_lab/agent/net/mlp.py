"""Fully connected nets: hidden layers, then one linear head for each thing that the algorithm asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from pydantic import Field
from torch import Tensor, nn

from slm_lab.agent.net.encoder import ConvKeys, EncodedSettings, Encoders, check_encoders, make_encoder
from slm_lab.agent.net.hidden import HiddenLayers, LayerSizes, hidden_gain, initialise, numpy_linear
from slm_lab.agent.net.settings import Heads, Units
from slm_lab.errors import Mistake


class MLPNetSettings(EncodedSettings):
    type: Literal["MLPNet"] = "MLPNet"
    hid_layers: LayerSizes = Field([64, 64], description="units of each hidden layer, in order; [] for a linear net")


class MLPNet(nn.Module):
    """The parts of an observation encoded, side by side, through hidden layers to the heads.

    `heads` names what comes out and its width: {"policy": 2, "value": 1}; (actions, parts) is a width of their product,
    part after part of each action. One head: `forward` returns its tensor; several: a tuple in their order.
    Subclasses say in `encoding` and `hidden_sizes` how they read their settings.
    """

    Settings: ClassVar[Any] = MLPNetSettings
    needs_head: ClassVar[str | None] = None  # the head that this net shapes in a way of its own
    carries_state: ClassVar[bool] = False  # from step to step: it takes (B, T, ...) and a state, and gives one back
    state_size: int = 0  # numbers of that state

    def __init__(self, settings: Any, observation_space: spaces.Space, heads: Heads):
        super().__init__()
        self.settings = settings
        self.encoder = make_encoder(observation_space, *self.encoding(settings, observation_space), settings)
        self.body = HiddenLayers(self.encoder.width, self.hidden_sizes(settings), settings)
        self.heads = nn.ModuleDict(
            {name: self.make_head(name, self.body.width, units) for name, units in heads.items()}
        )
        gain = hidden_gain(settings.hid_layers_activation)
        initialise(self.encoder, settings.init_fn, gain)
        initialise(self.body, settings.init_fn, gain)
        for name, head in self.heads.items():
            initialise(head, settings.init_fn, HEAD_GAINS.get(name, 1.0))

    @classmethod
    def encoding(cls, settings: Any, observation_space: spaces.Space) -> tuple[Encoders, ConvKeys | None]:
        """The encoders of parts by name, and how to encode other images: None if not at all."""
        return settings.encoders, None

    @classmethod
    def hidden_sizes(cls, settings: Any) -> list[int]:
        return settings.hid_layers

    def make_head(self, name: str, width: int, units: Units) -> nn.Module:
        return nn.Linear(width, math.prod(units) if isinstance(units, tuple) else units)

    @classmethod
    def check(cls, settings: Any, observation_space: spaces.Space) -> list[Mistake]:
        """Why this net cannot take such observations; empty where it can."""
        return check_encoders(cls.__name__, observation_space, *cls.encoding(settings, observation_space))

    def forward(self, obs: Any) -> Tensor | tuple[Tensor, ...]:
        hidden = self.body.forward(self.encoder.forward(obs))  # without the hooks that calling a module looks for
        out = tuple(head(hidden) for head in self.heads.values())
        return out[0] if len(out) == 1 else out

    def numpy_forward(self, head: str) -> Callable[[Any], np.ndarray] | None:
        """A function (N, ...) -> (N, units) of numpy arrays that computes one head, or None where only torch can.

        It reads the parameters where they lie, so it follows every update; a small net acts several times faster so.
        """
        if next(self.parameters()).device.type != "cpu":
            return None
        encode, hidden, last = (
            self.encoder.numpy_forward(),
            self.body.numpy_forward(),
            self.numpy_head(self.heads[head]),
        )
        if encode is None or hidden is None or last is None:
            return None
        return lambda obs: last(hidden(encode(obs)))

    def numpy_head(self, head: nn.Module) -> Callable[[np.ndarray], np.ndarray] | None:
        return numpy_linear(head)


# With an initialiser named, a policy starts close to uniform and a value at unit scale (Andrychowicz 2021, choice C57).
HEAD_GAINS = {"policy": 0.01, "value": 1.0}
