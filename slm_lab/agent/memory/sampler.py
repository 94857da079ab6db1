"""Which rows: a sampler draws write ids from a ring, and weights that undo the bias of its choice."""

from __future__ import annotations

import numpy as np

from slm_lab.agent.memory.priorities import Priorities
from slm_lab.agent.memory.ring import Ring
from slm_lab.lib.jit import njit

NONE = np.empty(0, np.int64)


class Uniform:
    """Any row held, with replacement. `use_cer`: the newest row of each env takes the place of the last rows drawn
    (combined experience replay, Zhang & Sutton 2017)."""

    def __init__(self, ring: Ring, use_cer: bool = False):
        self.ring = ring
        self.use_cer = use_cer

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(B,) ids and (B,) float32 weights, all one."""
        ids = np.empty(count, np.int64)
        weight = np.empty(count, np.float32)
        newest = self.ring.newest() if self.use_cer else NONE
        draw_uniform(rng.random(count), newest, self.ring.head, self.ring.tail, self.ring.size, ids, weight)
        return ids, weight

    def update(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Errors do not change what is drawn."""

    def reset(self) -> None:
        pass

    def describe(self) -> dict:
        return {}

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, tree: dict) -> None:
        pass


class Prioritized:
    """Rows in proportion to their priority (Schaul 2016), with importance-sampling weights."""

    def __init__(
        self,
        ring: Ring,
        *,
        alpha: float,
        epsilon: float,
        beta: float,
        beta_frames: int | None,
        weight_max: str,
        use_cer: bool = False,
    ):
        self.ring = ring
        self.beta_start = beta
        self.beta_frames = beta_frames
        self.use_cer = use_cer
        self.priorities = Priorities(ring, alpha, epsilon, minima=weight_max == "buffer")

    @property
    def beta(self) -> float:
        """From its start to 1, linearly over `beta_frames` rows seen; constant without them."""
        if self.beta_frames is None:
            return self.beta_start
        return self.beta_start + (1 - self.beta_start) * min(1.0, self.ring.seen / self.beta_frames)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        newest = self.ring.newest() if self.use_cer else NONE
        return self.priorities.draw(rng.random(count), newest, self.beta)

    def update(self, ids: np.ndarray, errors: np.ndarray) -> None:
        self.priorities.update(ids, errors)

    def reset(self) -> None:
        self.priorities.reset()

    def describe(self) -> dict:
        return {"priority": self.priorities.describe(), "beta": self.beta}

    def state_dict(self) -> dict:
        return self.priorities.state_dict()

    def load_state_dict(self, tree: dict) -> None:
        self.priorities.load_state_dict(tree)


@njit
def draw_uniform(uniforms, newest, head, tail, size, ids, weight):
    envs = head.size
    even = True
    for env in range(1, envs):
        even = even and head[env] - tail[env] == head[0] - tail[0]
    for index in range(ids.size):
        place = min(np.int64(uniforms[index] * size), size - 1)
        env = place % envs
        t = place // envs
        if not even:
            env = 0
            while place >= head[env] - tail[env]:
                place -= head[env] - tail[env]
                env += 1
            t = place
        ids[index] = (tail[env] + t) * envs + env
        weight[index] = 1.0
    for index in range(min(newest.size, ids.size)):
        ids[ids.size - 1 - index] = newest[index]
