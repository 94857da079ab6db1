"""Several nets of one shape, computed in one call: their parameters are stacked along a leading axis of members (M)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from gymnasium import spaces
from pydantic import Field, model_validator
from torch import Tensor, nn

from slm_lab.agent.net.encoder import Flat, check_encoders
from slm_lab.agent.net.hidden import ACTIVATIONS, HiddenSettings, LayerSizes, hidden_gain, initialise
from slm_lab.agent.net.mlp import HEAD_GAINS
from slm_lab.agent.net.settings import Heads
from slm_lab.errors import Mistake

FEW = 16  # outputs: computed the other way round, with rows as columns, so few take a quarter of the time on a CPU


class EnsembleMLPSettings(HiddenSettings):
    type: Literal["EnsembleMLP"] = Field("EnsembleMLP", description="the kind of net")
    hid_layers: LayerSizes = Field([64, 64], description="units of each hidden layer of a member, in order")
    members: int = Field(5, ge=1, le=1024, description="nets of the ensemble, each with initial parameters of its own")

    @model_validator(mode="after")
    def _no_batch_norm(self) -> EnsembleMLPSettings:
        if self.batch_norm:
            raise ValueError("the members of an ensemble have no batch_norm: use layer_norm")
        return self


class MemberLinear(nn.Module):
    """(M, B, inputs) to (M, B, outputs): a linear layer for each member."""

    def __init__(self, members: int, inputs: int, outputs: int, init_fn: str | None, gain: float):
        super().__init__()
        layers = [nn.Linear(inputs, outputs) for _ in range(members)]
        for layer in layers:
            initialise(layer, init_fn, gain)
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))  # (M, inputs, outputs)
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))  # (M, 1, outputs)

    def forward(self, values: Tensor) -> Tensor:
        if (
            self.weight.shape[-1] <= FEW and not torch.is_grad_enabled()
        ):  # gradients would be of mixed layouts, and slow
            return torch.baddbmm(self.bias.mT, self.weight.mT, values.mT).mT
        return torch.baddbmm(self.bias, values, self.weight)


class MemberNorm(nn.Module):
    """Layer normalisation, with a scale and a shift for each member (Ba 2016, eq. 4)."""

    def __init__(self, members: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, values: Tensor) -> Tensor:
        return F.layer_norm(values, values.shape[-1:]) * self.weight + self.bias


class EnsembleMLP(nn.Module):
    """(B, ...) the same rows for all members, or (M, B, ...) rows for each, to (M, B, units) of every head.

    One head: `forward` returns its tensor; several: a tuple in their order.
    """

    Settings: ClassVar[Any] = EnsembleMLPSettings
    needs_head: ClassVar[str | None] = "model"

    def __init__(self, settings: EnsembleMLPSettings, observation_space: spaces.Space, heads: Heads):
        super().__init__()
        members, init_fn = settings.members, settings.init_fn
        self.members = members
        self.encoder = Flat(observation_space)
        self.dims = len(observation_space.shape or ())
        width, gain = self.encoder.width, hidden_gain(settings.hid_layers_activation)
        self.body, self.norms = nn.ModuleList(), nn.ModuleList()
        for units in settings.hid_layers:
            self.body.append(MemberLinear(members, width, units, init_fn, gain))
            if settings.layer_norm:
                self.norms.append(MemberNorm(members, units))
            width = units
        self.activation = ACTIVATIONS[settings.hid_layers_activation]
        self.heads = nn.ModuleDict()
        for name, units in heads.items():
            outputs = math.prod(units) if isinstance(units, tuple) else units
            self.heads[name] = MemberLinear(members, width, outputs, init_fn, HEAD_GAINS.get(name, 1.0))

    @classmethod
    def check(cls, settings: Any, observation_space: spaces.Space) -> list[Mistake]:
        """Why this net cannot take such observations; empty where it can."""
        if isinstance(observation_space, spaces.Dict | spaces.Tuple):
            problem = f"{cls.__name__} takes one array; the env's observations have several parts"
            return [Mistake("agent.net.type", problem)]
        return check_encoders(cls.__name__, observation_space, {}, None)

    def forward(self, obs: Tensor) -> Tensor | tuple[Tensor, ...]:
        if obs.dim() == self.dims + 2:
            hidden = self.encoder.forward(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        else:
            hidden = self.encoder.forward(obs).expand(self.members, -1, -1)
        for place, layer in enumerate(self.body):
            hidden = layer(hidden)
            if self.norms:
                hidden = self.norms[place](hidden)
            hidden = self.activation(hidden)
        out = tuple(head(hidden) for head in self.heads.values())
        return out[0] if len(out) == 1 else out

    def numpy_forward(self, head: str) -> None:
        """Never: batched products are as fast in torch."""
        return None
