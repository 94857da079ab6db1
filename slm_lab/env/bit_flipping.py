"""A goal env small enough to learn in seconds, and hopeless without hindsight (Andrychowicz 2017, section 3.1)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class BitFlipping(gymnasium.Env):
    """n bits and n that are wanted; an action flips one. Each step costs 1 until they agree, which ends the episode;
    n steps end it too. The best return is minus the number of bits that differ at first, plus 1.

    Observations are the bits and then the goal as 2 n numbers, or (`flat` false) a Dict of both, as goal envs have it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, bits: int = 8, flat: bool = True, render_mode: str | None = None):
        self.bits = bits
        self.flat = flat
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(bits)
        if flat:
            self.observation_space = spaces.Box(0, 1, (2 * bits,), np.float32)
        else:
            one = spaces.MultiBinary(bits)
            self.observation_space = spaces.Dict(observation=one, achieved_goal=one, desired_goal=one)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.goal = self.np_random.integers(0, 2, self.bits, np.int8)
        self.state = self.goal.copy()
        while (self.state == self.goal).all():
            self.state = self.np_random.integers(0, 2, self.bits, np.int8)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: int):
        self.state[action] ^= 1
        self.steps += 1
        reward = float(self.compute_reward(self.state, self.goal, {}))
        terminated = bool(self.compute_terminated(self.state, self.goal, {}))
        return self._obs(), reward, terminated, self.steps >= self.bits and not terminated, {}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        """(...) 0 where all bits (..., n) agree, else -1."""
        return self.compute_terminated(achieved, desired, info) - 1.0

    def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return (achieved == desired).all(-1)

    def _obs(self):
        if self.flat:
            return np.concatenate([self.state, self.goal]).astype(np.float32)
        return {"observation": self.state.copy(), "achieved_goal": self.state.copy(), "desired_goal": self.goal.copy()}
