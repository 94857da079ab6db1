"""Walks through an env whose observations are its step numbers, so that a reader can tell rows by their obs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.memory import Memory, make_memory

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)
TWO = spaces.Discrete(2)


class Lab(NamedTuple):
    """Builds memories of a one-number env and adds rows to them."""

    @staticmethod
    def make(name: str = "Replay", num_envs: int = 1, gamma: float = 0.5, **keys) -> Memory:
        made = {key: keys.pop(key) for key in ("seed", "training_frequency", "training_start_step") if key in keys}
        if name in ("Replay", "PrioritizedReplay", "SequenceReplay"):
            keys.setdefault("batch_size", 1)
        return make_memory({"name": name, **keys}, LINE, TWO, num_envs, gamma, **made)

    @staticmethod
    def add(
        memory: Memory, obs, next_obs=None, reward=0.0, terminated=False, truncated=False, source=None, **extras
    ) -> None:
        """One row of each env, from a number or a list of N; without `next_obs` each obs leads to obs + 1."""

        def of_envs(value, dtype):
            return np.broadcast_to(np.asarray(value, dtype), (memory.num_envs,)).copy()

        obs = of_envs(obs, np.float32)[:, None]
        next_obs = obs + 1 if next_obs is None else of_envs(next_obs, np.float32)[:, None]
        memory.add(
            obs,
            obs[:, 0].astype(np.int64) % 2,
            of_envs(reward, np.float64),
            of_envs(terminated, np.bool_),
            of_envs(truncated, np.bool_),
            next_obs,
            source=source,
            **{name: of_envs(value, np.float32) for name, value in extras.items()},
        )

    @staticmethod
    def read(memory: Memory, n_step: int = 1) -> list[tuple]:
        """(obs, reward, next_obs, discount, steps) of every row held, env by env in time order."""
        batch = memory.view.read(memory.ring.ids(), n_step)
        columns = (batch.obs[:, 0], batch.reward, batch.next_obs[:, 0], batch.discount, batch.steps)
        return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.fixture
def lab() -> type[Lab]:
    return Lab
