"""From what a net puts out to actions: drawn from a distribution for policy nets, by exploration for value nets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from gymnasium import spaces
from pydantic import Field

from slm_lab.agent.algorithm.algorithm import AlgorithmSettings
from slm_lab.agent.algorithm.distribution import ActionDistribution, draw_category, fitting_distributions
from slm_lab.agent.algorithm.recurrent import Carried
from slm_lab.agent.algorithm.schedule import ScheduleSpec, constant
from slm_lab.errors import Mistake


class PolicySettings(AlgorithmSettings):
    """Keys of the algorithms that learn a policy."""

    action_pdtype: Literal[
        "default", "Categorical", "MultiCategorical", "Bernoulli", "Normal", "MultivariateNormal", "Beta"
    ] = Field(
        "default",
        description="distribution of actions; default: by the env's, Categorical for Discrete, MultiCategorical for "
        "MultiDiscrete, Bernoulli for MultiBinary, Normal for Box; Beta: for a Box with bounds",
    )
    action_policy: Literal["default"] = Field("default", description="actions are drawn from the distribution itself")
    explore_var_spec: ScheduleSpec | None = Field(
        None, description="SLM Lab's key, read and passed over: a policy explores by its own spread"
    )
    entropy_coef_spec: ScheduleSpec = Field(constant(0.01), description="weight of the entropy bonus")


class Policy:
    """A distribution over the outputs of a net: what a policy algorithm acts with."""

    def __init__(
        self,
        distribution: ActionDistribution,
        forward: Callable[..., np.ndarray],
        rng: np.random.Generator,
    ):
        self.distribution = distribution
        self.forward = forward
        self.rng = rng

    def act(self, obs: np.ndarray, explore: bool, carried: Carried | None = None) -> np.ndarray:
        """(N, ...) drawn actions, or without `explore` the most probable ones."""
        out = self.forward(obs) if carried is None else self.forward(obs, carried)
        return self.distribution.sample(out, self.rng) if explore else self.distribution.mode(out)


def check_policy(algorithm: str, pdtype: str, action_space: spaces.Space) -> list[Mistake]:
    """Why a policy of this kind cannot act in such an env; empty where it can."""
    if isinstance(action_space, spaces.Box) and action_space.dtype.kind != "f":
        problem = f"{algorithm} draws real numbers; the env's Box actions are {action_space.dtype}"
        return [Mistake("agent.algorithm.name", problem)]
    fitting = fitting_distributions(action_space)
    if fitting and pdtype in ("default", *fitting):
        return []
    kind = type(action_space).__name__
    if not fitting:
        problem = f"{algorithm} needs Discrete, MultiDiscrete, MultiBinary or Box actions; the env's are {kind}"
        return [Mistake("agent.algorithm.name", problem)]
    lack = " without bounds" if pdtype == "Beta" and isinstance(action_space, spaces.Box) else ""
    use = " or ".join(f"'{name}'" for name in fitting)
    return [Mistake("agent.algorithm.action_pdtype", f"'{pdtype}' cannot draw {kind} actions{lack}; use {use}")]


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
