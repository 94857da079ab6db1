"""What nets are made of between observation and heads: activations, normalisation, fully connected layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field, field_validator, model_validator
from torch import Tensor, nn

from slm_lab.agent.net.optim import check_name
from slm_lab.agent.net.settings import NetSettings

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
NumpyFunction = Callable[[np.ndarray], np.ndarray]


class HiddenSettings(NetSettings):
    """Keys of the nets that have hidden layers."""

    hid_layers_activation: str = Field("relu", description=f"after each hidden layer: {', '.join(ACTIVATIONS)}")
    layer_norm: bool = Field(False, description="normalise each hidden layer's inputs to its activation, row by row")
    batch_norm: bool = Field(
        False,
        description="normalise them over the rows of the batch, when acting by running means; not both norms at once",
    )

    @field_validator("hid_layers_activation")
    @classmethod
    def _known(cls, name: str) -> str:
        check_name("activation", name, list(ACTIVATIONS))
        return name

    @model_validator(mode="after")
    def _one_norm(self) -> HiddenSettings:
        if self.layer_norm and self.batch_norm:
            raise ValueError("layer_norm and batch_norm are two ways to normalise: set one of them to false")
        return self

    @property
    def norm(self) -> str | None:
        return "layer" if self.layer_norm else "batch" if self.batch_norm else None


MOST_UNITS = 2**16  # of a layer; more are taken for a slip of the hand, and might not fit into memory


def positive(sizes: list[int]) -> list[int]:
    """Refuses sizes of layers that no layer can have."""
    if any(size < 1 for size in sizes):
        raise ValueError("each hidden layer needs at least 1 unit")
    if any(size > MOST_UNITS for size in sizes):
        raise ValueError(f"a hidden layer has at most {MOST_UNITS} units")
    return sizes


LayerSizes = Annotated[list[int], AfterValidator(positive)]  # units of each layer


class BatchNorm(nn.Module):
    """Each feature (axis 1) to zero mean and unit deviation over the others' axes (Ioffe 2015, algorithms 1 and 2).

    In training mode by the batch's own statistics, of which running means are kept; else by these. They are new tensors
    at each step, not changed in place, so that a compiled step can hand them out.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, momentum: float = 0.1, eps: float = 1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            axes = [axis for axis in range(values.dim()) if axis != 1]
            var, mean = torch.var_mean(values, axes, correction=0)
            count = values.numel() // values.shape[1]
            unbiased = var.detach() * (count / max(count - 1, 1))
            self.running_mean = self.running_mean.lerp(mean.detach(), self.momentum)
            self.running_var = self.running_var.lerp(unbiased, self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        scale = self.weight * (var + self.eps).rsqrt()
        shape = (-1, *[1] * (values.dim() - 2))
        return values * scale.view(shape) + (self.bias - mean * scale).view(shape)


class HiddenLayers(nn.Module):
    """Fully connected layers, each followed by its norm, if any, and the activation: (B, ...) to (B, width)."""

    def __init__(self, width: int, sizes: Sequence[int], settings: HiddenSettings):
        super().__init__()
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        for units in sizes:
            self.layers.append(nn.Linear(width, units, bias=settings.norm != "batch"))  # the norm has its own
            if settings.norm is not None:
                self.norms.append(nn.LayerNorm(units) if settings.norm == "layer" else BatchNorm(units))
            width = units
        self.width = width
        self.has_norms = settings.norm is not None
        self.activation = ACTIVATIONS[settings.hid_layers_activation]
        self.numpy_activation = NUMPY_ACTIVATIONS.get(settings.hid_layers_activation)

    def forward(self, hidden: Tensor) -> Tensor:
        activation, has_norms = self.activation, self.has_norms
        for place, layer in enumerate(self.layers):
            hidden = F.linear(hidden, layer.weight, layer.bias)  # calling the module takes a small net a third longer
            if has_norms:
                hidden = self.norms[place](hidden)
            hidden = activation(hidden)
        return hidden

    def numpy_forward(self) -> NumpyFunction | None:
        """The same on numpy arrays, or None where only torch can."""
        activation = self.numpy_activation
        if activation is None or self.has_norms:
            return None
        layers = [numpy_linear(layer) for layer in self.layers]

        def forward(hidden: np.ndarray) -> np.ndarray:
            for linear in layers:
                hidden = activation(linear(hidden))
            return hidden

        return forward


def numpy_linear(layer: nn.Linear) -> NumpyFunction:
    """The layer as a numpy function that shares its parameters."""
    weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
    return lambda x: x @ weight + bias


def hidden_gain(activation: str) -> float:
    if activation in ("tanh", "sigmoid", "selu", "leaky_relu"):
        return nn.init.calculate_gain(activation)
    return nn.init.calculate_gain("leaky_relu" if activation == "leakyrelu" else "relu")


def initialise(module: nn.Module, init_fn: str | None, gain: float) -> None:
    """Apply the named initialiser to every layer's weights and zero the biases; None leaves torch's default."""
    if init_fn is None:
        return
    keywords = {"gain": gain} if init_fn in ("orthogonal_", "xavier_uniform_", "xavier_normal_") else {}
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            name = "dirac_" if init_fn == "eye_" and isinstance(layer, nn.Conv2d) else init_fn
            getattr(nn.init, name)(layer.weight, **keywords)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
