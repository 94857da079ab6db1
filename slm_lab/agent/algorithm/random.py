"""Acts uniformly at random and learns nothing: the baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from pydantic import Field

from slm_lab.agent.algorithm.algorithm import Algorithm
from slm_lab.errors import Mistake
from slm_lab.lib import seeds
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
        self._still: tuple[int, np.random.Generator] | None = None  # (frame, generator) of acting without exploration

    @classmethod
    def check(cls, settings: RandomSettings, action_space: spaces.Space) -> list[Mistake]:
        if not isinstance(action_space, spaces.Dict | spaces.Tuple):
            return []
        return [Mistake("agent.algorithm.name", "Random draws one array; the env's actions have several parts")]

    def act(self, obs: Any, frame: int, explore: bool = True) -> np.ndarray:
        count = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        return self._draw(self.rng if explore else self._still_rng(frame), count)

    def learn(self, memory: Any, frame: int) -> None:
        """Nothing to learn."""

    def _still_rng(self, frame: int) -> np.random.Generator:
        """Begins anew at each frame: evaluations leave training as it was, and are the same when done again."""
        if self._still is None or self._still[0] != frame:
            self._still = frame, seeds.generator(self.site.seed, "without exploration", frame)
        return self._still[1]


def make_draw(space: spaces.Space) -> Callable[[np.random.Generator, int], np.ndarray]:
    """A function (rng, N) -> (N, ...) actions: uniform between bounds, exponential from a single one, else normal."""
    shape = space.shape or ()
    if isinstance(space, spaces.Discrete):
        return lambda rng, count: rng.integers(space.start, space.start + space.n, size=count)
    if isinstance(space, spaces.MultiDiscrete):
        return lambda rng, count: rng.integers(space.start, space.start + space.nvec, size=(count, *shape))
    if isinstance(space, spaces.MultiBinary):
        return lambda rng, count: rng.integers(2, size=(count, *shape), dtype=space.dtype)
    if space.dtype.kind != "f":
        return lambda rng, count: rng.integers(space.low, space.high, (count, *shape), space.dtype, endpoint=True)
    has_low, has_high = np.isfinite(space.low), np.isfinite(space.high)
    low, high = np.where(has_low, space.low, 0.0), np.where(has_high, space.high, 0.0)

    def draw_box(rng: np.random.Generator, count: int) -> np.ndarray:
        size = (count, *shape)
        uniform, exponential, normal = rng.random(size), rng.standard_exponential(size), rng.standard_normal(size)
        drawn = np.select(
            [has_low & has_high, has_low, has_high],
            [low + uniform * (high - low), low + exponential, high - exponential],
            normal,
        )
        return drawn.astype(space.dtype)

    return draw_box
