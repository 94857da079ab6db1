"""Distributions of actions: what the outputs of a policy net mean, for each kind of action space.

Drawing works on numpy arrays and a Generator; losses use the same distributions on torch tensors.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
LOG_STD_RANGE = (-20.0, 2.0)  # keeps a deviation between 2e-9 and 7.4 whatever the net puts out
CONCENTRATION_RANGE = (-20.0, 1000.0)  # of a Beta's outputs: keeps it from a point, and its mode from 0 / 0
BETA_MARGIN = 1e-6  # of the range: how close to a bound float32 can tell a Beta's action from it
IMPOSSIBLE = -1e9  # a logit of probability 0 whose product with 0 is not NaN


class ActionDistribution(Protocol):
    """What a policy net's output means, for one kind of action space."""

    units: int  # outputs that the net's policy head needs
    log_stds: int  # how many of them, the last ones, are logs of deviations that may be learned apart from the net

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(N, ...) actions drawn from the (N, units) outputs."""

    def mode(self, out: np.ndarray) -> np.ndarray:
        """(N, ...) the most probable actions."""

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """(B,)"""

    def entropy(self, out: Tensor) -> Tensor:
        """(B,)"""


class Categorical:
    """Discrete actions; the outputs are logits."""

    log_stds = 0

    def __init__(self, space: spaces.Discrete):
        self.units = int(space.n)
        self.start = int(space.start)

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return draw_category(out, rng) + self.start

    def mode(self, out: np.ndarray) -> np.ndarray:
        return out.argmax(-1) + self.start

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        return log_prob_of_category(out, action.long() - self.start)

    def entropy(self, out: Tensor) -> Tensor:
        return entropy_of_categories(out)


class MultiCategorical:
    """MultiDiscrete actions: several choices, each on its own; the outputs are the logits of one after the other."""

    log_stds = 0

    def __init__(self, space: spaces.MultiDiscrete):
        sizes = space.nvec.flatten()
        self.shape = space.nvec.shape
        self.units = int(sizes.sum())
        self.start = space.start
        self.first = torch.as_tensor(space.start.flatten().astype(np.int64))
        # (choices, most options): where each option's logit is; the place after the last one stands for no option
        options = np.arange(sizes.max())
        firsts = (sizes.cumsum() - sizes)[:, None]
        self.places = np.where(options < sizes[:, None], firsts + options, self.units)
        self.places_in_torch = torch.from_numpy(self.places)

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._as_action(draw_category(self._logits(out), rng))

    def mode(self, out: np.ndarray) -> np.ndarray:
        return self._as_action(self._logits(out).argmax(-1))

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        index = action.long().reshape(len(action), -1) - self.first.to(out.device)
        return log_prob_of_category(self._logits_in_torch(out), index).sum(-1)

    def entropy(self, out: Tensor) -> Tensor:
        return entropy_of_categories(self._logits_in_torch(out)).sum(-1)

    def _as_action(self, index: np.ndarray) -> np.ndarray:
        return index.reshape(-1, *self.shape) + self.start

    def _logits(self, out: np.ndarray) -> np.ndarray:
        """(N, choices, most options)"""
        nowhere = np.full((len(out), 1), IMPOSSIBLE, out.dtype)
        return np.concatenate([out, nowhere], -1)[:, self.places]

    def _logits_in_torch(self, out: Tensor) -> Tensor:
        return F.pad(out, (0, 1), value=IMPOSSIBLE)[:, self.places_in_torch.to(out.device)]


class Bernoulli:
    """MultiBinary actions, each bit on its own; the outputs are logits of a 1."""

    log_stds = 0

    def __init__(self, space: spaces.MultiBinary):
        self.shape = space.shape
        self.units = math.prod(space.shape)
        self.dtype = space.dtype

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        probability = 0.5 + 0.5 * np.tanh(0.5 * out)  # the logistic function, which never overflows in this form
        return self._as_action(rng.random(out.shape) < probability)

    def mode(self, out: np.ndarray) -> np.ndarray:
        return self._as_action(out > 0)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        return (action.reshape(out.shape).to(out.dtype) * out - F.softplus(out)).sum(-1)

    def entropy(self, out: Tensor) -> Tensor:
        return (F.softplus(out) - out * torch.sigmoid(out)).sum(-1)

    def _as_action(self, bits: np.ndarray) -> np.ndarray:
        return bits.reshape(-1, *self.shape).astype(self.dtype)


class Normal:
    """Box actions, each part on its own; the outputs are the means, then the logs of the deviations.

    Actions are not squashed: the env clips what lies beyond its bounds, the log-probability is of the action as drawn.
    """

    def __init__(self, space: spaces.Box):
        self.shape = space.shape
        self.size = int(np.prod(space.shape))
        self.units = 2 * self.size
        self.log_stds = self.size

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mean, log_std = out[:, : self.size], out[:, -self.size :].clip(*LOG_STD_RANGE)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return (mean + np.exp(log_std) * self.mixed(noise, out)).reshape(-1, *self.shape)

    def mode(self, out: np.ndarray) -> np.ndarray:
        return out[:, : self.size].reshape(-1, *self.shape)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        mean, log_std = out[:, : self.size], out[:, -self.size :].clamp(*LOG_STD_RANGE)
        scaled = (action.reshape(mean.shape) - mean) * torch.exp(-log_std)
        return (-0.5 * self.unmixed(scaled, out).square() - log_std - LOG_SQRT_2PI).sum(-1)

    def entropy(self, out: Tensor) -> Tensor:
        return (out[:, -self.size :].clamp(*LOG_STD_RANGE) + 0.5 + LOG_SQRT_2PI).sum(-1)

    def mixed(self, noise: np.ndarray, out: np.ndarray) -> np.ndarray:
        """(N, size) noise of deviation 1, with the dependence between parts that the outputs ask for."""
        return noise

    def unmixed(self, scaled: Tensor, out: Tensor) -> Tensor:
        """(B, size) the independent noise that `mixed` made this of."""
        return scaled


class MultivariateNormal(Normal):
    """Box actions whose parts depend on each other; between the means and the logs of the scales, the outputs are the
    entries below the diagonal of M, row by row: action = mean + diag(scale) M noise, and M has ones on its diagonal.

    diag(scale) M is the Cholesky factor of the covariance; its determinant, and so the entropy, is that of the scales.
    """

    def __init__(self, space: spaces.Box):
        super().__init__(space)
        self.below = self.size * (self.size - 1) // 2
        self.units += self.below
        # (size, size): where in (entries below, one, zero) each entry of M is
        self.places = np.full((self.size, self.size), self.below + 1)
        self.places[np.diag_indices(self.size)] = self.below
        self.places[np.tril_indices(self.size, -1)] = np.arange(self.below)
        self.places_in_torch = torch.from_numpy(self.places)

    def mixed(self, noise: np.ndarray, out: np.ndarray) -> np.ndarray:
        one_zero = np.broadcast_to(np.array([1, 0], out.dtype), (len(out), 2))
        mixing = np.concatenate([out[:, self.size : -self.size], one_zero], -1)[:, self.places]
        return np.einsum("nij,nj->ni", mixing, noise)

    def unmixed(self, scaled: Tensor, out: Tensor) -> Tensor:
        entries = F.pad(F.pad(out[:, self.size : -self.size], (0, 1), value=1.0), (0, 1))
        mixing = entries[:, self.places_in_torch.to(out.device)]
        solved = torch.linalg.solve_triangular(mixing, scaled.unsqueeze(-1), upper=False, unitriangular=True)
        return solved.squeeze(-1)


class Beta:
    """Bounded Box actions, each part on its own and always within the bounds (Chou 2017).

    A first and a second concentration for each part, 1 + softplus(output): at least 1, so that there is one mode.
    """

    log_stds = 0

    def __init__(self, space: spaces.Box):
        self.shape = space.shape
        self.size = int(np.prod(space.shape))
        self.units = 2 * self.size
        self.low = space.low.flatten().astype(np.float32)
        self.range = space.high.flatten().astype(np.float32) - self.low
        self.bounds_in_torch = torch.from_numpy(np.stack([self.low, self.range]))

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        more = np.logaddexp(0, out.clip(*CONCENTRATION_RANGE))  # softplus
        share = rng.beta(1 + more[:, : self.size], 1 + more[:, self.size :]).clip(BETA_MARGIN, 1 - BETA_MARGIN)
        return self._as_action(share)

    def mode(self, out: np.ndarray) -> np.ndarray:
        more = np.logaddexp(0, out.clip(*CONCENTRATION_RANGE))
        return self._as_action(more[:, : self.size] / (more[:, : self.size] + more[:, self.size :]))

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        low, scale = self.bounds_in_torch.to(out.device)
        share = ((action.reshape(len(action), -1) - low) / scale).clamp(BETA_MARGIN, 1 - BETA_MARGIN)
        first, second = self._concentrations(out)
        powers = (first - 1) * share.log() + (second - 1) * torch.log1p(-share)
        return (powers - log_beta(first, second) - scale.log()).sum(-1)

    def entropy(self, out: Tensor) -> Tensor:
        first, second = self._concentrations(out)
        slopes = (first - 1) * torch.digamma(first) + (second - 1) * torch.digamma(second)
        slopes = slopes - (first + second - 2) * torch.digamma(first + second)
        return (log_beta(first, second) - slopes + self.bounds_in_torch[1].to(out.device).log()).sum(-1)

    def _as_action(self, share: np.ndarray) -> np.ndarray:
        action = self.low + share.astype(np.float32) * self.range
        return action.clip(self.low, self.low + self.range).reshape(-1, *self.shape)

    def _concentrations(self, out: Tensor) -> tuple[Tensor, Tensor]:
        both = 1 + F.softplus(out.clamp(*CONCENTRATION_RANGE))
        return both[:, : self.size], both[:, self.size :]


# The first that draws from a kind of space is its default.
DISTRIBUTIONS = {
    "Categorical": (Categorical, spaces.Discrete),
    "MultiCategorical": (MultiCategorical, spaces.MultiDiscrete),
    "Bernoulli": (Bernoulli, spaces.MultiBinary),
    "Normal": (Normal, spaces.Box),
    "MultivariateNormal": (MultivariateNormal, spaces.Box),
    "Beta": (Beta, spaces.Box),
}


def fitting_distributions(action_space: spaces.Space) -> list[str]:
    """The names of those that draw from this space, the default first."""
    fitting = [name for name, (_, kind) in DISTRIBUTIONS.items() if isinstance(action_space, kind)]
    if isinstance(action_space, spaces.Box) and not action_space.is_bounded():
        fitting.remove("Beta")
    return fitting


def make_distribution(pdtype: str, action_space: spaces.Space) -> ActionDistribution:
    name = fitting_distributions(action_space)[0] if pdtype == "default" else pdtype
    return DISTRIBUTIONS[name][0](action_space)


def draw_category(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N, ...) indices along the last axis, drawn with probabilities softmax(logits).

    The Gumbel trick: one draw a category, no sums.
    """
    return (logits - np.log(rng.standard_exponential(logits.shape))).argmax(-1)


def log_prob_of_category(logits: Tensor, index: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def entropy_of_categories(logits: Tensor) -> Tensor:
    log_probs = torch.log_softmax(logits, -1)
    return -(log_probs.exp() * log_probs).sum(-1)


def log_beta(first: Tensor, second: Tensor) -> Tensor:
    """The logarithm of the Beta function."""
    return torch.lgamma(first) + torch.lgamma(second) - torch.lgamma(first + second)
