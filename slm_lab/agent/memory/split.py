"""Which rows train a model and which measure it: decided when a row is written, and never changed."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from slm_lab.agent.memory.ring import Ring
from slm_lab.lib.jit import njit


class Split:
    """A share of the rows is for validation.

    By episode, all rows of an episode go one way. The share is kept as episodes come in: one that lags behind makes the
    next episode likelier to be chosen. The first is for training, so that there is always something to learn from. A
    cut ends an episode as its end does. By transition, a row's own id decides, and no row is without a decision.
    """

    def __init__(self, ring: Ring, share: float, by_episode: bool, seed: int):
        self.ring = ring
        self.share = share
        self.by_episode = by_episode
        self.seed = seed
        self.reset()

    def reset(self) -> None:
        """No episode known; rows from here on are decided anew."""
        self.known = self.ring.head.copy()  # (N,) rows before this t are decided
        self.starts: list[list[int]] = [[] for _ in range(self.ring.num_envs)]  # t of each episode's first row
        self.chosen: list[list[bool]] = [[] for _ in range(self.ring.num_envs)]  # for validation
        self.episodes = self.validating = 0  # how many were decided, and for validation

    def taken_back(self) -> None:
        """The ring took rows back: an episode that has none left was not played. Should none to train on be left, the
        first one is for that now."""
        np.minimum(self.known, self.ring.head, out=self.known)
        for env, starts in enumerate(self.starts):
            while starts and starts[-1] >= self.ring.head[env]:
                starts.pop()
                self.episodes -= 1
                self.validating -= self.chosen[env].pop()
        if self.share < 1 and all(all(chosen) for chosen in self.chosen) and any(self.chosen):
            first = next(chosen for chosen in self.chosen if chosen)
            first[0] = False
            self.validating -= 1

    def decide(self) -> None:
        """Look at the rows written since the last call."""
        if not self.by_episode:
            return
        ring = self.ring
        room = int((ring.head - np.maximum(self.known, ring.tail)).sum())
        found = np.empty((room, 2), np.int64)
        count = episode_starts(ring.links, ring.link_word, ring.head, ring.tail, ring.ring_slots, self.known, found)
        for env, t in found[:count].tolist():
            lag = self.share * self.episodes - self.validating
            likely = self.share + lag if self.episodes and self.share else 0.0
            chosen = bool(uniform(self.seed, np.array([t * ring.num_envs + env]))[0] < likely)
            self._forget(env)
            self.starts[env].append(t)
            self.chosen[env].append(chosen)
            self.episodes += 1
            self.validating += chosen

    def validates(self, ids: np.ndarray) -> np.ndarray:
        """(B,) bool: which of the rows held are for validation."""
        if not self.by_episode:
            return uniform(self.seed, ids) < self.share
        envs = ids % self.ring.num_envs
        answer = np.empty(ids.size, np.bool_)
        for env in np.unique(envs):
            here = envs == env
            place = np.searchsorted(self.starts[env], ids[here] // self.ring.num_envs, "right") - 1
            answer[here] = np.array(self.chosen[env])[place]
        return answer

    def _forget(self, env: int) -> None:
        """Episodes whose rows are gone, now and then."""
        gone = bisect_right(self.starts[env], self.ring.tail[env]) - 1
        if gone > len(self.starts[env]) // 2:
            del self.starts[env][:gone], self.chosen[env][:gone]

    def state_dict(self) -> dict:
        return {
            "seed": self.seed,
            "known": self.known.copy(),
            "starts": [np.array(starts, np.int64) for starts in self.starts],
            "chosen": [np.array(chosen, np.bool_) for chosen in self.chosen],
            "episodes": self.episodes,
            "validating": self.validating,
        }

    def load_state_dict(self, tree: dict) -> None:
        self.seed = int(tree["seed"])
        self.known = np.array(tree["known"], np.int64)
        self.starts = [np.asarray(starts).tolist() for starts in tree["starts"]]
        self.chosen = [np.asarray(chosen).tolist() for chosen in tree["chosen"]]
        self.episodes, self.validating = int(tree["episodes"]), int(tree["validating"])


def uniform(seed: int, ids: np.ndarray) -> np.ndarray:
    """(B,) a number in [0, 1) for each id, the same whenever it is asked for (splitmix64, Steele 2014)."""
    with np.errstate(over="ignore"):
        mixed = ids.astype(np.uint64) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@njit
def episode_starts(links, link_word, head, tail, slots, known, found):
    """How many (env, t) of rows that begin an episode, or what is left of it, were put into `found`."""
    envs = head.size
    count = 0
    for env in range(envs):
        for t in range(max(known[env], tail[env]), head[env]):
            if t == tail[env] or links[(t - 1) % slots * envs + env, link_word] != 0:
                found[count, 0], found[count, 1] = env, t
                count += 1
        known[env] = head[env]
    return count
