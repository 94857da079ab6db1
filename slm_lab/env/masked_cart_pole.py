"""A task that no single observation tells enough of: CartPole without its velocities."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

SEEN = [0, 2]  # of position, velocity, angle and angular velocity


class MaskedCartPole(CartPoleEnv):
    """CartPole of which only the cart's position and the pole's angle are seen, as (2,) shares of those that end it.

    How fast both move has to be told from what was seen before (such views: Wierstra 2007, section 3).
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.limits = np.array([self.x_threshold, self.theta_threshold_radians], np.float32)
        self.observation_space = spaces.Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = super().reset(seed=seed, options=options)
        return obs[SEEN] / self.limits, info

    def step(self, action: Any):
        obs, *rest = super().step(action)
        return obs[SEEN] / self.limits, *rest
