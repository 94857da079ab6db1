"""Acts uniformly at random and learns nothing: the baseline."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from pydantic import Field

from slm_lab.agent.algorithm.algorithm import Algorithm
from slm_lab.spec.settings import Settings


class RandomSettings(Settings):
    name: Literal["Random"] = Field("Random", description="uniformly random actions, no learning")


class Random(Algorithm):
    Settings = RandomSettings
    on_policy = None
    needs_learning = False

    def __init__(self, settings, net_settings, site):
        super().__init__(settings, net_settings, site)
        self._draw = make_draw(site.action_space)

    def act(self, obs: Any, frame: int, explore: bool = True) -> np.ndarray:
        count = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        return self._draw(self.rng, count)

    def learn(self, memory: Any, frame: int) -> None:
        """Nothing to learn."""


def make_draw(space: spaces.Space):
    """A function (rng, N) -> (N, ...) uniformly random actions; unbounded directions are standard normal."""
    if isinstance(space, spaces.Discrete):
        return lambda rng, count: rng.integers(space.start, space.start + space.n, size=count)
    if isinstance(space, spaces.MultiDiscrete):
        return lambda rng, count: rng.integers(space.start, space.start + space.nvec, size=(count, *space.shape))
    if isinstance(space, spaces.MultiBinary):
        return lambda rng, count: rng.integers(2, size=(count, *space.shape), dtype=space.dtype)
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 1.0)

    def draw_box(rng: np.random.Generator, count: int) -> np.ndarray:
        uniform = rng.uniform(low, high, size=(count, *space.shape))
        return np.where(bounded, uniform, rng.standard_normal(uniform.shape)).astype(space.dtype)

    return draw_box
