"""Policies over bounded Box actions that a tanh keeps within the bounds: one that draws, one that does not.

The net speaks of actions scaled to [-1, 1]; what goes out, and its probability, is in the env's own units.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from slm_lab.agent.algorithm.distribution import LOG_SQRT_2PI, LOG_STD_RANGE
from slm_lab.errors import Mistake

INSIDE = 1 - 1e-6  # how close to a bound float32 can tell an action from it


class TanhPoint:
    """The one action low + (tanh(out) + 1) (high - low) / 2."""

    log_stds = 0

    def __init__(self, space: spaces.Box):
        self.shape = space.shape
        self.size = self.units = int(np.prod(space.shape))
        self.low, self.high = (bound.flatten().astype(np.float32) for bound in (space.low, space.high))
        self.middle, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2
        self.in_torch = torch.from_numpy(np.stack([self.middle, self.half]))

    def sample(self, out: np.ndarray, rng: np.random.Generator, deviation: float = 0.0) -> np.ndarray:
        """(N, ...) actions with Gaussian noise; `deviation` is in units of half the range."""
        noise = deviation * rng.standard_normal((len(out), self.size), dtype=np.float32)
        return self._as_action((np.tanh(out[:, : self.size]) + noise).clip(-1, 1))

    def mode(self, out: np.ndarray) -> np.ndarray:
        return self._as_action(np.tanh(out[:, : self.size]))

    def action(self, out: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """(B, size) actions; `noise` is in units of half the range."""
        return self.scaled((torch.tanh(out[:, : self.size]) + noise).clamp(-1, 1))

    def scaled(self, share: Tensor) -> Tensor:
        """(B, size) actions from their places between the bounds, which are -1 and 1."""
        middle, half = self.in_torch.to(share.device)
        return middle + half * share

    def _as_action(self, share: np.ndarray) -> np.ndarray:
        action = self.middle + self.half * share.astype(np.float32)
        return action.clip(self.low, self.high).reshape(-1, *self.shape)


class TanhNormal(TanhPoint):
    """A Gaussian squashed by tanh (Haarnoja 2018b, appendix C); the outputs are means, then logs of deviations."""

    def __init__(self, space: spaces.Box):
        super().__init__(space)
        self.units = 2 * self.size
        self.log_stds = self.size
        self.log_half = float(np.log(self.half.astype(np.float64)).sum())  # the change of units in a log-probability

    def sample(self, out: np.ndarray, rng: np.random.Generator, deviation: float = 1.0) -> np.ndarray:
        """(N, ...) actions; `deviation` 1: as the policy draws them."""
        log_std = out[:, self.size :].clip(*LOG_STD_RANGE)
        noise = deviation * rng.standard_normal(log_std.shape, dtype=np.float32)
        return self._as_action(np.tanh(out[:, : self.size] + np.exp(log_std) * noise))

    def draw(self, out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B, size) actions made of standard normal `noise`, so that gradients reach the net, and (B,) log-probs."""
        mean, log_std = self._parts(out)
        before = mean + log_std.exp() * noise
        return self.scaled(torch.tanh(before)), self._log_prob(before, noise, log_std)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """(B,) of actions given; a bound itself counts as what lies just inside."""
        mean, log_std = self._parts(out)
        middle, half = self.in_torch.to(out.device)
        before = torch.atanh(((action.reshape(mean.shape) - middle) / half).clamp(-INSIDE, INSIDE))
        return self._log_prob(before, (before - mean) * torch.exp(-log_std), log_std)

    def _parts(self, out: Tensor) -> tuple[Tensor, Tensor]:
        return out[:, : self.size], out[:, self.size :].clamp(*LOG_STD_RANGE)

    def _log_prob(self, before: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
        """The Gaussian's, less the log of how much tanh and scale stretch (Haarnoja 2018b, eq. 21)."""
        log_slope = 2 * (math.log(2) - before - F.softplus(-2 * before))  # log(1 - tanh^2), exact far out too
        return (-0.5 * noise.square() - log_std - LOG_SQRT_2PI - log_slope).sum(-1) - self.log_half


def check_bounded_box(algorithm: str, action_space: spaces.Space, needs: str = "Box") -> list[Mistake]:
    """Why no squashed policy can act there; empty where it can."""
    if not isinstance(action_space, spaces.Box):
        problem = f"{algorithm} needs {needs} actions; the env's are {type(action_space).__name__}"
    elif action_space.dtype.kind != "f":
        problem = f"{algorithm} draws real numbers; the env's Box actions are {action_space.dtype}"
    elif not action_space.is_bounded():
        problem = f"{algorithm} needs actions with bounds; some of the env's Box actions have none"
    else:
        return []
    return [Mistake("agent.algorithm.name", problem)]
