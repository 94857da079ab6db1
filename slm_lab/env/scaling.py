"""What is done to observations and rewards over all sub-envs at once: running statistics, factors, bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.lib.trees import leaves
from slm_lab.types import Arrays

EPSILON = 1e-8  # added to a variance, so that what never changes is not divided by zero


class Moments:
    """Mean and variance of all rows so far, (...) each; those of a batch are merged (Chan 1979, eq. 2.1)."""

    def __init__(self, shape: tuple[int, ...]):
        self.count = 0
        self.mean, self.variance = np.zeros(shape), np.ones(shape)

    def add(self, rows: np.ndarray) -> None:
        """rows: (N, ...)"""
        count, mean, variance = len(rows), rows.mean(0, np.float64), rows.var(0, np.float64)
        total = self.count + count
        apart = mean - self.mean
        summed = self.variance * self.count + variance * count + apart * apart * (self.count * count / total)
        self.mean = self.mean + apart * (count / total)
        self.variance, self.count = summed / total, total

    def normalized(self, rows: np.ndarray) -> np.ndarray:
        return (rows - self.mean) / np.sqrt(self.variance + EPSILON)

    def state_dict(self) -> dict:
        return {"count": self.count, "mean": self.mean.copy(), "variance": self.variance.copy()}

    def load_state_dict(self, tree: dict) -> None:
        mean, variance = np.array(tree["mean"], np.float64), np.array(tree["variance"], np.float64)
        if not mean.shape == variance.shape == self.mean.shape or not np.isfinite([mean, variance]).all():
            raise ValueError(f"mean and variance are of shapes {mean.shape} and {variance.shape}, or not finite")
        self.count, self.mean, self.variance = int(tree["count"]), mean, variance


class Statistics:
    """Of each part of the observations, all sub-envs together; parts of Dict and Tuple spaces by dotted keys.

    It belongs to the agent: its nets know observations in no other way. So it is saved with the best policy, and
    evaluation and enjoy use it as it is.
    """

    def __init__(self, space: spaces.Space):
        boxes = {key or "": part for key, part in leaves(space) if isinstance(part, spaces.Box)}
        self.parts = {key: Moments(part.shape) for key, part in boxes.items()}

    def add(self, obs: Arrays) -> None:
        for key, moments in self.parts.items():
            moments.add(obs[key] if key else obs)

    def state_dict(self) -> dict:
        return {key or "obs": moments.state_dict() for key, moments in self.parts.items()}

    def load_state_dict(self, tree: dict) -> None:
        for key, moments in self.parts.items():
            moments.load_state_dict(tree[key or "obs"])


class ObsScaling:
    """Observations normalized by `statistics`, if given, and then cut to [-clip, clip], if given."""

    def __init__(self, space: spaces.Space, statistics: Statistics | None, clip: float | None):
        self.statistics, self.clip = statistics, np.inf if clip is None else clip
        self.dtypes = {key or "": part.dtype for key, part in leaves(space) if self._changes(part)}
        self.space = self._scaled(space)
        self.changes = bool(self.dtypes)

    def __call__(self, obs: Arrays) -> Arrays:
        if not isinstance(obs, dict):
            return self._part("", obs)
        return {key: self._part(key, part) if key in self.dtypes else part for key, part in obs.items()}

    def _part(self, key: str, rows: np.ndarray) -> np.ndarray:
        if self.statistics is None:
            return rows.clip(-self.clip, self.clip).astype(self.dtypes[key], copy=False)
        return self.statistics.parts[key].normalized(rows).clip(-self.clip, self.clip).astype(np.float32)

    def _changes(self, part: spaces.Space) -> bool:
        if not isinstance(part, spaces.Box):
            return False
        return self.statistics is not None or (part.dtype.kind == "f" and self.clip < np.inf)

    def _scaled(self, space: spaces.Space) -> spaces.Space:
        if isinstance(space, spaces.Dict):
            return spaces.Dict({key: self._scaled(part) for key, part in space.spaces.items()})
        if isinstance(space, spaces.Tuple):
            return spaces.Tuple([self._scaled(part) for part in space.spaces])
        if not self._changes(space):
            return space
        assert isinstance(space, spaces.Box)
        if self.statistics is not None:
            return spaces.Box(-self.clip, self.clip, space.shape, np.float32)
        low, high = np.maximum(space.low, -self.clip), np.minimum(space.high, self.clip)
        return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


class RewardScaling:
    """Rewards to learn from: their sign or a multiple, over the deviation of the return so far, cut to a bound."""

    def __init__(self, scale: float | str, normalizes: bool, clip: float | None, gamma: float, num_envs: int):
        self.scale, self.clip, self.gamma = scale, clip, gamma
        self.returns = np.zeros(num_envs)  # (N,) discounted, of the episodes under way
        self.moments = Moments(()) if normalizes else None
        self.changes = scale != 1.0 or normalizes or clip is not None

    def __call__(self, reward: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """(N,) of rewards (N,); the statistics count them."""
        reward = self.of_step(reward)
        if self.moments is not None:
            self.returns = self.returns * self.gamma + reward
            self.moments.add(self.returns)
            self.returns[ended] = 0
            reward = reward / np.sqrt(self.moments.variance + EPSILON)
        return reward if self.clip is None else reward.clip(-self.clip, self.clip)

    def of_step(self, reward: Any) -> Any:
        """Of a reward by itself, whatever has come before."""
        return np.sign(reward) if self.scale == "sign" else reward * self.scale

    def forget(self, envs: list[int]) -> None:
        """The episodes under way there are given up."""
        self.returns[envs] = 0

    def state_dict(self) -> dict | None:
        return None if self.moments is None else {"returns": self.returns.copy(), "moments": self.moments.state_dict()}

    def load_state_dict(self, tree: dict | None) -> None:
        if self.moments is not None and tree is not None:
            self.returns[:] = tree["returns"]
            self.moments.load_state_dict(tree["moments"])
