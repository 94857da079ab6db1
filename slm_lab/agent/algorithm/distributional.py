"""Distributional Q-learning: the net learns how returns are spread and acts on their mean.

QRDQN learns quantiles (Dabney 2018), C51 the probabilities of fixed returns (Bellemare 2017). The rest is DQN: a target
net, replayed rows over any number of steps, weights and priorities where the memory has them, dueling nets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import Site
from slm_lab.agent.algorithm.dqn import DQN, VanillaDQNSettings
from slm_lab.agent.algorithm.recurrent import Carried, mean, next_outputs, outputs
from slm_lab.agent.learner import ERRORS
from slm_lab.agent.net.settings import NetSettings
from slm_lab.types import Batch


class DistributionalSettings(VanillaDQNSettings):
    name: Literal["Distributional"] = "Distributional"
    double: bool = Field(
        False, description="the net chooses the next action and the target net values it, as in DoubleDQN"
    )


class QRDQNSettings(DistributionalSettings):
    name: Literal["QRDQN"] = "QRDQN"
    num_quantiles: int = Field(50, ge=2, description="quantiles of each action's return")
    kappa: float = Field(1.0, ge=0, description="errors up to which the quantile loss is quadratic; 0: none")


class C51Settings(DistributionalSettings):
    name: Literal["C51"] = "C51"
    num_atoms: int = Field(51, ge=2, description="returns that have a probability, evenly spaced")
    v_min: float = Field(-10.0, description="least of these returns, in units of discounted reward")
    v_max: float = Field(10.0, description="greatest of them; what lies beyond counts as the nearest")

    @model_validator(mode="after")
    def _in_order(self) -> C51Settings:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min {self.v_min} must lie below v_max {self.v_max}")
        return self


class Distributional(DQN):
    """The net puts out `parts` numbers for each action; `mean` says what the action is worth.

    The spec's loss_spec is passed over: the loss compares distributions.
    """

    def spread(self, out: Tensor) -> Tensor:
        """(B, actions, parts) of the net's (B, actions * parts)."""
        return out.unflatten(-1, (self.num_actions, self.parts))

    def mean(self, spread: Any) -> Any:
        """(B, actions) of (B, actions, parts): arrays or tensors."""
        raise NotImplementedError

    def values(self, obs: Any, carried: Carried | None = None) -> np.ndarray:
        out = super().values(obs, carried)
        return self.mean(out.reshape(len(out), self.num_actions, self.parts))

    def taken(self, spread: Tensor, index: Tensor) -> Tensor:
        """(B, parts) of the actions with these indices."""
        return spread.gather(-2, index.view(-1, 1, 1).expand(-1, 1, self.parts)).squeeze(-2)

    def next_spread(self, net: Callable, target: Callable, batch: Batch) -> Tensor:
        """(B, parts) of the next action, as the target net sees it; the best by that net, or if `double` by the net."""
        spread = self.spread(next_outputs(target, batch))
        judge = self.spread(next_outputs(net, batch)) if self.settings.double else spread
        return self.taken(spread, self.mean(judge).argmax(-1))


class QRDQN(Distributional):
    """The parts are quantiles of the return at the middles of equal steps of probability."""

    Settings = QRDQNSettings

    def __init__(self, settings: QRDQNSettings, net_settings: NetSettings, site: Site):
        self.parts = settings.num_quantiles
        super().__init__(settings, net_settings, site)

    def mean(self, spread: Any) -> Any:
        return spread.mean(-1)

    def loss(self, net: Callable, target: Callable, batch: Batch, loss_function: Callable):
        """The weighted quantile loss; `errors` is (B,) how far apart the means are."""
        quantiles = self.taken(self.spread(outputs(net, batch)), self.index(batch))
        with torch.no_grad():
            following = self.next_spread(net, target, batch)
            wanted = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * following
        loss = mean(batch.weight * quantile_loss(quantiles, wanted, self.settings.kappa), batch)
        return loss, {ERRORS: (wanted.mean(-1) - quantiles.detach().mean(-1)).abs()}


def quantile_loss(quantiles: Tensor, wanted: Tensor, kappa: float) -> Tensor:
    """(B,) quantile Huber loss of (B, K) quantiles to (B, J) samples: summed over K, mean over J (Dabney 2018, eq. 10).

    With kappa 0 the plain quantile loss (eq. 8).
    """
    count = quantiles.shape[-1]
    middles = (torch.arange(count, device=quantiles.device) + 0.5) / count
    error = wanted.unsqueeze(-2) - quantiles.unsqueeze(-1)  # (B, K, J)
    size = error.abs()
    if kappa:
        size = torch.where(size <= kappa, 0.5 * error.square() / kappa, size - 0.5 * kappa)
    slope = (middles.unsqueeze(-1) - (error.detach() < 0).float()).abs()
    return (slope * size).mean(-1).sum(-1)


class C51(Distributional):
    """The parts are logits of the probabilities of fixed returns, the atoms."""

    Settings = C51Settings

    def __init__(self, settings: C51Settings, net_settings: NetSettings, site: Site):
        self.parts = settings.num_atoms
        self.atoms = torch.linspace(settings.v_min, settings.v_max, settings.num_atoms, device=site.device)
        self._atoms = self.atoms.cpu().numpy()
        super().__init__(settings, net_settings, site)

    def mean(self, spread: Any) -> Any:
        if isinstance(spread, Tensor):
            return (spread.softmax(-1) * self.atoms).sum(-1)
        chances = np.exp(spread - spread.max(-1, keepdims=True))
        return (chances @ self._atoms) / chances.sum(-1)

    def loss(self, net: Callable, target: Callable, batch: Batch, loss_function: Callable):
        """The weighted cross-entropy to the projected target; `errors` is (B,) its excess over the least there is, the
        divergence that Hessel 2018 draws rows by."""
        log_chances = self.taken(self.spread(outputs(net, batch)), self.index(batch)).log_softmax(-1)
        with torch.no_grad():
            following = self.next_spread(net, target, batch).softmax(-1)
            wanted = project(batch.reward, batch.discount, following, self.atoms)
            least = -torch.xlogy(wanted, wanted).sum(-1)
        cross_entropy = -(wanted * log_chances).sum(-1)
        return mean(batch.weight * cross_entropy, batch), {ERRORS: (cross_entropy.detach() - least).clamp(min=0)}


def project(reward: Tensor, discount: Tensor, chances: Tensor, atoms: Tensor) -> Tensor:
    """(B, K) probabilities of the atoms that stand for those of reward + discount * atoms: each is shared between its
    two neighbours by nearness (Bellemare 2017, eq. 7)."""
    step = atoms[1] - atoms[0]
    moved = torch.addcmul(reward.unsqueeze(-1), discount.unsqueeze(-1), atoms).clamp(atoms[0], atoms[-1])  # (B, K)
    nearness = (1 - (moved.unsqueeze(-2) - atoms.unsqueeze(-1)).abs() / step).clamp(min=0)  # (B, atoms, K)
    return (nearness * chances.unsqueeze(-2)).sum(-1)
