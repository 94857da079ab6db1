"""Fully connected nets: hidden layers, then one linear head for each thing that the algorithm asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from pydantic import Field, field_validator
from torch import Tensor, nn

from slm_lab.agent.net.optim import check_name
from slm_lab.agent.net.settings import Heads, NetSettings, Units
from slm_lab.errors import Mistake

ACTIVATIONS = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "selu": F.selu,
    "elu": F.elu,
    "leakyrelu": F.leaky_relu,
    "leaky_relu": F.leaky_relu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
}
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772  # Klambauer 2017, section 2

# The activations that acting in numpy knows; a net with another one acts through torch.
NUMPY_ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0, out=x),
    "tanh": lambda x: np.tanh(x, out=x),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0))),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "leakyrelu": lambda x: np.where(x > 0, x, 0.01 * x),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
}


class MLPNetSettings(NetSettings):
    type: Literal["MLPNet"] = "MLPNet"
    hid_layers: list[int] = Field([64, 64], description="units of each hidden layer, in order; [] for a linear net")
    hid_layers_activation: str = Field("relu", description=f"after each hidden layer: {', '.join(ACTIVATIONS)}")
    layer_norm: bool = Field(False, description="normalise each hidden layer's inputs to its activation")

    @field_validator("hid_layers")
    @classmethod
    def _positive(cls, sizes: list[int]) -> list[int]:
        if any(size < 1 for size in sizes):
            raise ValueError("each hidden layer needs at least 1 unit")
        return sizes

    @field_validator("hid_layers_activation")
    @classmethod
    def _known(cls, name: str) -> str:
        check_name("activation", name, list(ACTIVATIONS))
        return name


class MLPNet(nn.Module):
    """Hidden layers on a flat observation, then the heads.

    `heads` names what comes out and its width: {"policy": 2, "value": 1}; (actions, parts) is a width of their product,
    part after part of each action. One head: `forward` returns its tensor; several: a tuple in their order.
    """

    Settings = MLPNetSettings
    needs_head: ClassVar[str | None] = None  # the head that this net shapes in a way of its own

    def __init__(self, settings: MLPNetSettings, observation_space: spaces.Space, heads: Heads):
        super().__init__()
        self.settings = settings
        self.num_classes = int(observation_space.n) if isinstance(observation_space, spaces.Discrete) else None
        self.first_class = int(observation_space.start) if self.num_classes else 0
        width = self.num_classes or int(np.prod(observation_space.shape))
        self.body = nn.ModuleList()
        self.norms = nn.ModuleList()
        for units in settings.hid_layers:
            self.body.append(nn.Linear(width, units))
            if settings.layer_norm:
                self.norms.append(nn.LayerNorm(units))
            width = units
        self.activation = ACTIVATIONS[settings.hid_layers_activation]
        self.heads = nn.ModuleDict({name: self.make_head(name, width, units) for name, units in heads.items()})
        initialise(self.body, settings.init_fn, hidden_gain(settings.hid_layers_activation))
        for name, head in self.heads.items():
            initialise(head, settings.init_fn, HEAD_GAINS.get(name, 1.0))

    @staticmethod
    def make_head(name: str, width: int, units: Units) -> nn.Module:
        return nn.Linear(width, math.prod(units) if isinstance(units, tuple) else units)

    @classmethod
    def check(cls, observation_space: spaces.Space) -> list[Mistake]:
        """Why this net cannot take such observations; empty where it can."""
        shape = observation_space.shape
        if isinstance(observation_space, spaces.Dict | spaces.Tuple):
            problem = "takes one array; the env's observations have several parts"
        elif not isinstance(observation_space, spaces.Box | spaces.Discrete):
            problem = f"takes Box or Discrete observations; the env's are {type(observation_space).__name__}"
        elif observation_space.dtype == np.uint8 and len(shape) > 1:
            problem = f"takes flat observations; the env's are images of {shape}"
        else:
            return []
        return [Mistake("agent.net.type", f"{cls.__name__} {problem}")]

    def encode(self, obs: Tensor) -> Tensor:
        if self.num_classes:
            return F.one_hot(obs.long() - self.first_class, self.num_classes).float()
        return (obs if obs.dim() == 2 else obs.reshape(len(obs), -1)).float()

    def forward(self, obs: Tensor) -> Tensor | tuple[Tensor, ...]:
        hidden = self.encode(obs)
        for place, layer in enumerate(self.body):
            hidden = F.linear(hidden, layer.weight, layer.bias)  # calling the module takes a small net a third longer
            if self.settings.layer_norm:
                hidden = self.norms[place](hidden)
            hidden = self.activation(hidden)
        out = tuple(head(hidden) for head in self.heads.values())
        return out[0] if len(out) == 1 else out

    def numpy_forward(self, head: str) -> Callable[[np.ndarray], np.ndarray] | None:
        """A function (N, ...) -> (N, units) of numpy arrays that computes one head, or None where only torch can.

        It reads the parameters where they lie, so it follows every update; a small net acts several times faster so.
        """
        activation = NUMPY_ACTIVATIONS.get(self.settings.hid_layers_activation)
        if activation is None or self.settings.layer_norm or next(self.parameters()).device.type != "cpu":
            return None
        hidden = [numpy_linear(layer) for layer in self.body]
        last = self.numpy_head(self.heads[head])
        one_hot = np.eye(self.num_classes, dtype=np.float32) if self.num_classes else None

        def forward(obs: np.ndarray) -> np.ndarray:
            if one_hot is not None:
                x = one_hot[obs - self.first_class]
            else:
                x = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
            for linear in hidden:
                x = activation(linear(x))
            return last(x)

        return forward

    @staticmethod
    def numpy_head(head: nn.Module) -> Callable[[np.ndarray], np.ndarray]:
        return numpy_linear(head)


def numpy_linear(layer: nn.Linear) -> Callable[[np.ndarray], np.ndarray]:
    """The layer as a numpy function that shares its parameters."""
    weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
    return lambda x: x @ weight + bias


# With an initialiser named, a policy starts close to uniform and a value at unit scale (Andrychowicz 2021, choice C57).
HEAD_GAINS = {"policy": 0.01, "value": 1.0}


def hidden_gain(activation: str) -> float:
    if activation in ("tanh", "sigmoid", "selu", "leaky_relu"):
        return nn.init.calculate_gain(activation)
    return nn.init.calculate_gain("leaky_relu" if activation == "leakyrelu" else "relu")


def initialise(module: nn.Module, init_fn: str | None, gain: float) -> None:
    """Apply the named initialiser to every weight matrix and zero the biases; None leaves torch's default."""
    if init_fn is None:
        return
    function = getattr(nn.init, init_fn)
    takes_gain = init_fn in ("orthogonal_", "xavier_uniform_", "xavier_normal_")
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            function(layer.weight, gain=gain) if takes_gain else function(layer.weight)
            nn.init.zeros_(layer.bias)
