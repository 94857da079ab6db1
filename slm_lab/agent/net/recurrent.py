"""Recurrent nets: a state goes along with the observations, so that what is out of sight can still count."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from gymnasium import spaces
from pydantic import Field, field_validator
from torch import Tensor, nn

from slm_lab.agent.net.encoder import EncodedSettings
from slm_lab.agent.net.hidden import MOST_UNITS, LayerSizes
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.settings import Heads, Units
from slm_lab.lib.trees import mapped

# torch's cell, what runs it, and how many tensors its state is made of
CELLS = {"RNN": (nn.RNN, torch.rnn_tanh, 1), "GRU": (nn.GRU, torch.gru, 1), "LSTM": (nn.LSTM, torch.lstm, 2)}


class RecurrentNetSettings(EncodedSettings):
    type: Literal["RecurrentNet"] = "RecurrentNet"
    cell_type: Literal["RNN", "GRU", "LSTM"] = Field("GRU", description="recurrent cell, by its torch name")
    fc_hid_layers: LayerSizes = Field([], description="units of each fully connected layer before the recurrent ones")
    rnn_hidden_size: int = Field(64, ge=1, le=MOST_UNITS, description="units of each recurrent layer")
    rnn_num_layers: int = Field(1, ge=1, description="recurrent layers, one on top of the other")
    bidirectional: bool = Field(False, description="SLM Lab's key: false, as who acts does not know what is to come")
    seq_len: int = Field(
        16, ge=1, description="steps that gradients go back through, on-policy; off-policy the memory's sequence_length"
    )

    @field_validator("bidirectional")
    @classmethod
    def _forward_only(cls, bidirectional: bool) -> bool:
        if bidirectional:
            raise ValueError(
                "true would read episodes from their ends too, which are not known while acting: use false"
            )
        return bidirectional

    @field_validator("batch_norm")
    @classmethod
    def _no_batch_norm(cls, batch_norm: bool) -> bool:
        if batch_norm:
            raise ValueError("true would count the places that pad sequences: use layer_norm with RecurrentNet")
        return batch_norm


class RecurrentNet(MLPNet):
    """Windows of observations (B, T, ...) and a state (B, state_size) to the heads (B, T, units) and the state after.

    A state is one flat row, whatever the cell, so that a memory can keep it with a row; zeros begin an episode.
    """

    Settings: ClassVar[Any] = RecurrentNetSettings
    carries_state = True

    def __init__(self, settings: RecurrentNetSettings, observation_space: spaces.Space, heads: Heads):
        super().__init__(settings, observation_space, heads)
        cell, self._function, self.tensors = CELLS[settings.cell_type]
        self.layers, self.units = settings.rnn_num_layers, settings.rnn_hidden_size
        self.cell = cell(self.body.width, self.units, self.layers, batch_first=True)  # starts as torch does, always
        self.state_size = self.tensors * self.layers * self.units

    @classmethod
    def hidden_sizes(cls, settings: Any) -> list[int]:
        return settings.fc_hid_layers

    def make_head(self, name: str, width: int, units: Units) -> nn.Module:
        return super().make_head(name, self.settings.rnn_hidden_size, units)

    def first_state(self, rows: int) -> Tensor:
        """(B, state_size) the state in which episodes begin."""
        return next(self.cell.parameters()).new_zeros(rows, self.state_size)

    def forward(
        self, obs: Any, state: Tensor | None = None, earlier: Any = None, counts: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """The heads' outputs, and the state after the last step.

        `state`: before the first step; None: that of an episode's beginning. `earlier`: (B, K, ...) observations, of
        which the first `counts` (B,) come between that state and `obs`. They bring the state up to date, and no
        gradient goes back to them (burn-in: Kapturowski 2019, section 3).
        """
        rows = len(first_of(obs))
        state = self.first_state(rows) if state is None else state
        if earlier is not None and counts is not None:
            with torch.no_grad():
                state = self._burn_in(earlier, state, counts)
        hidden, state = self._run(self._features(obs), state)
        out = tuple(head(hidden) for head in self.heads.values())
        return (out[0] if len(out) == 1 else out), state

    def _features(self, obs: Any) -> Tensor:
        """(B, T, units) what the cells take."""
        return self.body.forward(self.encoder.forward(joined(obs))).unflatten(0, first_of(obs).shape[:2])

    def _burn_in(self, obs: Any, state: Tensor, counts: Tensor) -> Tensor:
        features = self._features(obs)
        for step in range(features.shape[1]):
            _, after = self._run(features[:, step : step + 1], state)
            state = torch.where((step < counts).unsqueeze(-1), after, state)
        return state

    def _run(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, units) what the last layer puts out, and the state after.

        The parameters are asked for by name: the list of them that torch's module keeps is not followed by a
        functional call.
        """
        parameters = [getattr(self.cell, name) for name in self.cell._flat_weights_names]
        parts = state.unflatten(-1, (self.tensors, self.layers, self.units)).permute(1, 2, 0, 3).contiguous()
        first = parts.unbind(0) if self.tensors > 1 else parts[0]
        hidden, *after = self._function(features, first, parameters, True, self.layers, 0.0, False, False, True)
        return hidden, torch.stack(after).permute(2, 0, 1, 3).flatten(1)

    def numpy_forward(self, head: str) -> None:
        """Never: only torch runs the cells."""
        return None


def first_of(obs: Any) -> Tensor:
    return next(iter(obs.values())) if isinstance(obs, dict) else obs


def joined(obs: Any) -> Any:
    """(B * T, ...) all steps of all windows."""
    return mapped(lambda part: part.flatten(0, 1), obs)
