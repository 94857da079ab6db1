"""Which rows, episode by episode: every episode is drawn as often as any other, however long it is."""

from __future__ import annotations

import numpy as np

from slm_lab.agent.memory.ring import Ring
from slm_lab.agent.memory.sampler import NONE, Uniform
from slm_lab.errors import InvalidMemorySpec
from slm_lab.lib.jit import njit


class Episodes(Uniform):
    """An episode, uniformly; then one of its rows, uniformly (as RLLTE's N-step storage draws).

    What is left of an episode whose first rows were overwritten, and what there is of one that goes on, count as
    episodes. Where episodes end is noted when it is next needed.
    """

    def __init__(self, ring: Ring, use_cer: bool = False):
        super().__init__(ring, use_cer)
        self.reset()

    def reset(self) -> None:
        self.known = self.ring.head.copy()  # (N,) ends are noted for the rows before this t
        self.ends = np.zeros((self.ring.num_envs, 16), np.int64)  # (N, places) t after an episode's last row, in a ring
        self.first = np.zeros(self.ring.num_envs, np.int64)  # (N,) how many ends have been forgotten
        self.last = np.zeros(self.ring.num_envs, np.int64)  # (N,) how many were ever noted

    def taken_back(self, ids: np.ndarray) -> None:
        np.minimum(self.known, self.ring.head, out=self.known)

    def draw(self, rng: np.random.Generator, count: int, source: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        if source is not None:
            raise InvalidMemorySpec("sample: episodes are drawn from all sources; source needs another sampler")
        self.note()
        ids = np.empty(count, np.int64)
        newest = self.ring.newest() if self.use_cer else NONE
        draw_by_episode(
            rng.random((2, count)), newest, self.ends, self.first, self.last, self.ring.head, self.ring.tail, ids
        )
        return ids, np.ones(count, np.float32)

    def describe(self) -> dict:
        self.note()
        ring = self.ring
        return {"episodes_to_draw": int(episodes_of(self.ends, self.first, self.last, ring.head, ring.tail).sum())}

    def load_state_dict(self, tree: dict) -> None:
        self.reset()
        self.known[:] = self.ring.tail

    def note(self) -> None:
        """Look at the rows written since the last call."""
        ring = self.ring
        while not note_ends(
            ring.links, ring.link_word, ring.ring_slots, ring.head, ring.tail,
            self.known, self.ends, self.first, self.last,
        ):  # fmt: skip
            width = self.ends.shape[1]
            places = (self.first[:, None] + np.arange(width)) % width
            ends = np.take_along_axis(self.ends, places, axis=1)
            self.last -= self.first
            self.first[:] = 0
            self.ends = np.concatenate([ends, np.zeros_like(ends)], axis=1)


@njit
def note_ends(links, link_word, slots, head, tail, known, ends, first, last):
    """Forget the ends of rows that are gone, add those of new rows; False if there is no room for them."""
    envs = head.size
    width = ends.shape[1]
    for env in range(envs):
        while first[env] < last[env] and ends[env, first[env] % width] <= tail[env]:
            first[env] += 1
        for t in range(max(known[env], tail[env]), head[env]):
            known[env] = t
            if links[t % slots * envs + env, link_word] != 0:
                if last[env] - first[env] == width:
                    return False
                ends[env, last[env] % width] = t + 1
                last[env] += 1
            elif t == head[env] - 1:
                break  # the newest row may still be cut off: look again
            known[env] = t + 1
    return True


@njit
def episodes_of(ends, first, last, head, tail):
    """(N,) episodes of each env that rows are held of, the one that goes on included."""
    counts = last - first
    width = ends.shape[1]
    for env in range(head.size):
        closed = last[env] > first[env] and ends[env, (last[env] - 1) % width] == head[env]
        counts[env] = 0 if head[env] == tail[env] else counts[env] + (not closed)
    return counts


@njit
def draw_by_episode(uniforms, newest, ends, first, last, head, tail, ids):
    envs = head.size
    width = ends.shape[1]
    counts = episodes_of(ends, first, last, head, tail)
    total = counts.sum()
    for index in range(ids.size):
        place = min(np.int64(uniforms[0, index] * total), total - 1)
        env = 0
        while place >= counts[env]:
            place -= counts[env]
            env += 1
        at = first[env] + place
        start = tail[env] if place == 0 else ends[env, (at - 1) % width]
        stop = ends[env, at % width] if at < last[env] else head[env]
        t = start + min(np.int64(uniforms[1, index] * (stop - start)), stop - start - 1)
        ids[index] = t * envs + env
    for index in range(min(newest.size, ids.size)):
        ids[ids.size - 1 - index] = newest[index]
