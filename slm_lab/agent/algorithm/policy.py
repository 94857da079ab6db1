"""From what a net puts out to actions: distributions for policy nets, exploration for value nets.

Acting works on numpy arrays and draws from a Generator; losses use the same distributions on torch tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import AlgorithmSettings
from slm_lab.agent.algorithm.schedule import ScheduleSpec, constant
from slm_lab.errors import Mistake

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
LOG_STD_RANGE = (-20.0, 2.0)  # keeps a deviation between 2e-9 and 7.4 whatever the net puts out


class PolicySettings(AlgorithmSettings):
    """Keys of the algorithms that learn a policy."""

    action_pdtype: Literal["default", "Categorical", "Normal"] = Field(
        "default", description="distribution of actions: Categorical for Discrete, Normal for Box; default: by the env"
    )
    action_policy: Literal["default"] = Field("default", description="actions are drawn from the distribution itself")
    explore_var_spec: ScheduleSpec | None = Field(
        None, description="SLM Lab's key, read and passed over: a policy explores by its own spread"
    )
    entropy_coef_spec: ScheduleSpec = Field(constant(0.01), description="weight of the entropy bonus")


class ActionDistribution(Protocol):
    """What a policy net's output means, for one kind of action space."""

    units: int  # outputs that the net's policy head needs

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

    def __init__(self, space: spaces.Discrete):
        self.units = int(space.n)
        self.start = int(space.start)

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return draw_category(out, rng) + self.start

    def mode(self, out: np.ndarray) -> np.ndarray:
        return out.argmax(-1) + self.start

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        index = action.long() - self.start
        return torch.log_softmax(out, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)

    def entropy(self, out: Tensor) -> Tensor:
        log_probs = torch.log_softmax(out, -1)
        return -(log_probs.exp() * log_probs).sum(-1)


class Normal:
    """Box actions, each part on its own; the outputs are the means, then the logs of the deviations.

    Actions are not squashed: the env clips what lies beyond its bounds, the log-probability is of the action as drawn.
    """

    def __init__(self, space: spaces.Box):
        self.shape = space.shape
        self.size = int(np.prod(space.shape))
        self.units = 2 * self.size

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mean, log_std = out[:, : self.size], out[:, self.size :].clip(*LOG_STD_RANGE)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return (mean + np.exp(log_std) * noise).reshape(-1, *self.shape)

    def mode(self, out: np.ndarray) -> np.ndarray:
        return out[:, : self.size].reshape(-1, *self.shape)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        mean, log_std = out[:, : self.size], out[:, self.size :].clamp(*LOG_STD_RANGE)
        scaled = (action.reshape(mean.shape) - mean) * torch.exp(-log_std)
        return (-0.5 * scaled.square() - log_std - LOG_SQRT_2PI).sum(-1)

    def entropy(self, out: Tensor) -> Tensor:
        return (out[:, self.size :].clamp(*LOG_STD_RANGE) + 0.5 + LOG_SQRT_2PI).sum(-1)


DISTRIBUTIONS = {"Categorical": (Categorical, spaces.Discrete), "Normal": (Normal, spaces.Box)}


def distribution_name(pdtype: str, action_space: spaces.Space) -> str | None:
    """The name of the distribution that this action space takes, or None where `pdtype` does not fit it."""
    fitting = [name for name, (_, kind) in DISTRIBUTIONS.items() if isinstance(action_space, kind)]
    if pdtype == "default":
        return fitting[0] if fitting else None
    return pdtype if pdtype in fitting else None


def make_distribution(pdtype: str, action_space: spaces.Space) -> ActionDistribution:
    return DISTRIBUTIONS[distribution_name(pdtype, action_space)][0](action_space)


class Policy:
    """A distribution over the outputs of a net: what a policy algorithm acts with."""

    def __init__(
        self,
        distribution: ActionDistribution,
        forward: Callable[[np.ndarray], np.ndarray],
        rng: np.random.Generator,
    ):
        self.distribution = distribution
        self.forward = forward
        self.rng = rng

    def act(self, obs: np.ndarray, explore: bool) -> np.ndarray:
        """(N, ...) drawn actions, or without `explore` the most probable ones."""
        out = self.forward(obs)
        return self.distribution.sample(out, self.rng) if explore else self.distribution.mode(out)


def check_policy(algorithm: str, pdtype: str, action_space: spaces.Space) -> list[Mistake]:
    """Why a policy of this kind cannot act in such an env; empty where it can."""
    if isinstance(action_space, spaces.Box) and action_space.dtype.kind != "f":
        problem = f"{algorithm} draws real numbers; the env's Box actions are {action_space.dtype}"
        return [Mistake("agent.algorithm.name", problem)]
    if distribution_name(pdtype, action_space) is not None:
        return []
    kind = type(action_space).__name__
    if distribution_name("default", action_space) is None:
        return [Mistake("agent.algorithm.name", f"{algorithm} needs Discrete or Box actions; the env's are {kind}")]
    fitting = distribution_name("default", action_space)
    return [Mistake("agent.algorithm.action_pdtype", f"'{pdtype}' cannot draw {kind} actions; use '{fitting}'")]


def draw_category(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N,) indices, drawn with probabilities softmax(logits), by the Gumbel trick: one draw a category, no sums."""
    return (logits - np.log(rng.standard_exponential(logits.shape))).argmax(-1)


def greedy(values: np.ndarray, explore_var: float, rng: np.random.Generator) -> np.ndarray:
    """(N,) the best action of each row."""
    return values.argmax(-1)


def epsilon_greedy(values: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """(N,) the best action of each row, but a uniformly random one where that row's own coin falls below epsilon."""
    best = values.argmax(-1)
    coins = rng.random(len(values)) < epsilon
    if heads := np.count_nonzero(coins):
        best[coins] = rng.integers(values.shape[-1], size=heads)
    return best


def boltzmann(values: np.ndarray, temperature: float, rng: np.random.Generator) -> np.ndarray:
    """(N,) actions drawn with probabilities softmax(values / temperature); a temperature of 0 is greedy."""
    if temperature <= 0:
        return values.argmax(-1)
    return draw_category(values.astype(np.float64) / temperature, rng)


VALUE_POLICIES = {"default": greedy, "epsilon_greedy": epsilon_greedy, "boltzmann": boltzmann}
