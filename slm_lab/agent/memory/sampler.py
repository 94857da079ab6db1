"""Which rows: a sampler draws write ids from a ring, and weights that undo the bias of its choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slm_lab.agent.memory.priorities import Priorities
from slm_lab.agent.memory.ring import Ring
from slm_lab.lib.jit import njit

NONE = np.empty(0, np.int64)


class Uniform:
    """Any row held, with replacement. `use_cer`: the newest row of each env takes the place of the last rows drawn
    (combined experience replay, Zhang & Sutton 2017)."""

    follows_errors = False  # whether `update` changes what is drawn

    def __init__(self, ring: Ring, use_cer: bool = False):
        self.ring = ring
        self.use_cer = use_cer

    def draw(self, rng: np.random.Generator, count: int, source: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(B,) ids and (B,) float32 weights, all one; with `source` of its rows only, and no ids where it has none."""
        ids = np.empty(count, np.int64)
        weight = np.empty(count, np.float32)
        newest = self.ring.newest() if self.use_cer else NONE
        if source is None:
            draw_uniform(rng.random(count), newest, self.ring.head, self.ring.tail, self.ring.size, ids, weight)
            return ids, weight
        ids = look_for(self.ring, source, count, lambda tries: self._anywhere(rng, tries))[:count]
        if ids.size < count:
            among = self.ring.from_source(self.ring.ids(), source)
            ids = among[rng.integers(among.size, size=count)] if among.size else NONE
        put_last(ids, self.ring.from_source(newest, source))
        return ids, np.ones(ids.size, np.float32)

    def _anywhere(self, rng: np.random.Generator, count: int) -> np.ndarray:
        ids, weight = np.empty(count, np.int64), np.empty(count, np.float32)
        draw_uniform(rng.random(count), NONE, self.ring.head, self.ring.tail, self.ring.size, ids, weight)
        return ids

    def reset(self) -> None:
        pass

    def taken_back(self, ids: np.ndarray) -> None:
        """The ring took back these rows, one env's newest."""

    def describe(self) -> dict:
        return {}

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, tree: dict) -> None:
        pass


class Prioritized:
    """Rows in proportion to their priority (Schaul 2016), with importance-sampling weights."""

    follows_errors = True

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

    def draw(self, rng: np.random.Generator, count: int, source: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        newest = self.ring.newest() if self.use_cer else NONE
        if source is None:
            return self.priorities.draw(rng.random(count), newest, self.beta)
        newest = self.ring.from_source(newest, source)
        found = look_for(self.ring, source, count, lambda tries: self._anywhere(rng, tries))
        if found.size >= count:
            ids = found[rng.permutation(found.size)[:count]]  # they came in the order of the table
            put_last(ids, newest)
            return ids, self.priorities.weights(ids, self.beta)
        among = self.ring.from_source(self.ring.ids(), source)
        if not among.size:
            return NONE, np.empty(0, np.float32)
        ids = self.priorities.draw_among(among, rng.random(count))
        put_last(ids, newest)
        return ids, self.priorities.weights(ids, self.beta)

    def _anywhere(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return self.priorities.draw(rng.random(count), NONE, self.beta)[0]

    def update(self, ids: np.ndarray, errors: np.ndarray) -> None:
        self.priorities.update(ids, errors)

    def reset(self) -> None:
        self.priorities.reset()

    def taken_back(self, ids: np.ndarray) -> None:
        self.priorities.taken_back(ids)

    def describe(self) -> dict:
        return {"priority": self.priorities.describe(), "beta": self.beta}

    def state_dict(self) -> dict:
        return self.priorities.state_dict()

    def load_state_dict(self, tree: dict) -> None:
        self.priorities.load_state_dict(tree)


def look_for(ring: Ring, source: int, count: int, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """Ids of that source among ever larger draws from all rows: one that is not rare is found without a look at each.
    Fewer than `count` where it holds less than about a hundredth of them."""
    found = NONE
    for doubling in range(7):
        found = np.concatenate([found, ring.from_source(draw(count << doubling), source)])
        if found.size >= count:
            break
    return found


def put_last(ids: np.ndarray, newest: np.ndarray) -> None:
    """The newest rows take the place of the last ones drawn, up to all of them."""
    count = min(newest.size, ids.size)
    ids[ids.size - count :] = newest[:count]


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
