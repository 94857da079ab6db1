"""One table of rows, slots x envs, each env's column a ring of its own. Knows nothing of gamma or of sampling.

`next_obs` is not stored. Row t's next observation is the obs of row t + 1, and a row that has no follower of its own
(its episode ended, or the next add began elsewhere: a cut) keeps it in the sparse table `finals`. The slot at the head
already holds the observation that the next row is expected to start from, so the newest row needs no special case;
hence one slot more than the capacity.

A row is addressed by its write id, t * N + env, where t counts the rows written for that env. Ids never repeat, so one
can tell whether a row still exists.
"""

from __future__ import annotations

import numpy as np

from slm_lab.agent.memory.fields import LINK, REWARD, Layout
from slm_lab.agent.memory.stage import Stage
from slm_lab.errors import RunError
from slm_lab.lib.jit import njit

TERMINATED, TRUNCATED, CUT = 1, 2, 4  # flags of a link; above them: 1 + the row's place in `finals`, or 0
ENDED = TERMINATED | TRUNCATED
FLAG_BITS = 3
SIZE, SEEN, EPISODES, FREE, FULLEST = range(5)  # places in `counts`
CHUNK = 4096  # rows written at a time, which bounds how many finals must be free beforehand


class Ring:
    """`slots` rows for each of `num_envs` envs; the newest rows replace the oldest, or the table grows."""

    def __init__(self, layout: Layout, slots: int, num_envs: int, grows: bool = False):
        self.num_envs = num_envs
        self.grows = grows
        self.slots = slots
        self.use_layout(layout)

    def use_layout(self, layout: Layout) -> None:
        """Start empty, with rows of this layout."""
        self.layout = layout
        self.reward_word = layout.offset(REWARD) // 4
        self.link_word = layout.offset(LINK) // 4
        self.head = np.zeros(self.num_envs, np.int64)  # (N,) t of the next row
        self.tail = np.zeros(self.num_envs, np.int64)  # (N,) t of the oldest row held
        self.counts = np.zeros(5, np.int64)
        self.finals = np.zeros((0, layout.obs_row.itemsize), np.uint8)
        self.free = np.zeros(0, np.int32)  # the first counts[FREE] are places in `finals` that may be used
        self._allocate(self.slots)

    def _allocate(self, slots: int) -> None:
        self.slots = slots
        self.ring_slots = slots + 1
        table = np.zeros(self.ring_slots * self.num_envs, self.layout.row)
        self.raw = table.view(np.uint8).reshape(table.size, -1)  # (rows, row bytes)
        self.floats = self.raw.view(np.float32)
        self.links = self.raw.view(np.int32)

    @property
    def size(self) -> int:
        """Rows held."""
        return int(self.counts[SIZE])

    @property
    def max_size(self) -> int:
        return self.slots * self.num_envs

    @property
    def seen(self) -> int:
        """Rows ever written."""
        return int(self.counts[SEEN])

    @property
    def episodes(self) -> int:
        """Episodes whose last row is held."""
        return int(self.counts[EPISODES])

    def write(self, stage: Stage, env: int | None = None) -> None:
        """Write one row of each env, or (with `env`) rows of that env in time order."""
        first, stride, count = (0, 1, stage.count) if env is None else (env, 0, stage.count)
        for start in range(0, count, CHUNK) if stride == 0 else (0,):
            rows = min(CHUNK, count - start) if stride == 0 else count
            if self.grows and self.counts[FULLEST] + (1 if stride else rows) > self.slots:
                self.resize(max(2 * self.slots, int(self.counts[FULLEST]) + rows))
            if self.counts[FREE] < 2 * rows:
                self._grow_finals(2 * rows)
            commit(
                self.raw, self.links, self.finals, self.free, self.counts, self.head, self.tail,
                stage.rows, stage.next_obs, stage.terminated, stage.truncated,
                start, rows, first, stride, self.link_word, self.layout.obs_nbytes,
            )  # fmt: skip

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Where in the table the rows with these ids are."""
        return ids // self.num_envs % self.ring_slots * self.num_envs + ids % self.num_envs

    def ids(self, until: np.ndarray | None = None) -> np.ndarray:
        """Ids of the rows held (before `until`, per env), env by env, each in time order."""
        until = self.head if until is None else until
        spans = zip(self.tail, until, strict=True)
        return np.concatenate([np.arange(a, b) * self.num_envs + env for env, (a, b) in enumerate(spans)])

    def newest(self) -> np.ndarray:
        """Id of the newest row of each env that has one."""
        return ((self.head - 1) * self.num_envs + np.arange(self.num_envs))[self.head > self.tail]

    def settled(self) -> np.ndarray:
        """(N,) per env the t after its last row that ended an episode: rows before it are of complete episodes."""
        until = self.tail.copy()
        for env in range(self.num_envs):
            ids = np.arange(self.tail[env], self.head[env]) * self.num_envs + env
            ended = np.flatnonzero(self.links[self.rows_of(ids), self.link_word] & ENDED)
            if ended.size:
                until[env] += ended[-1] + 1
        return until

    def ends(self, ids: np.ndarray) -> np.ndarray:
        """(B,) bool: no row after this one continues it, for want of a follower or because it ended or was cut."""
        newest = ids // self.num_envs == self.head[ids % self.num_envs] - 1
        return newest | (self.links[self.rows_of(ids), self.link_word] != 0)

    def drop(self, until: np.ndarray) -> None:
        """Forget each env's rows before `until`."""
        ids = self.ids(until)
        links = self.links[self.rows_of(ids), self.link_word]
        places = links >> FLAG_BITS
        places = places[places > 0] - 1
        free = self.counts[FREE]
        self.free[free : free + places.size] = places
        self.counts[FREE] += places.size
        self.counts[EPISODES] -= np.count_nonzero(links & ENDED)
        self.counts[SIZE] -= ids.size
        self.tail[:] = until
        self.counts[FULLEST] = (self.head - self.tail).max()

    def resize(self, slots: int) -> None:
        """Give each env `slots` rows; the newest are kept, with their ids."""
        self.drop(np.maximum(self.tail, self.head - slots))
        ids = self.ids()
        raw, old = self.raw, np.concatenate([self.rows_of(ids), self._pending()])
        self._allocate(slots)
        self.raw[np.concatenate([self.rows_of(ids), self._pending()])] = raw[old]

    def _pending(self) -> np.ndarray:
        """(N,) the rows whose obs is what each env's next row is expected to start from."""
        return self.rows_of(self.head * self.num_envs + np.arange(self.num_envs))

    def _grow_finals(self, needed: int) -> None:
        held = len(self.finals)
        more = max(held, needed, 16)
        self.finals = np.concatenate([self.finals, np.zeros((more, self.finals.shape[1]), np.uint8)])
        free = int(self.counts[FREE])
        fresh = np.arange(held + more - 1, held - 1, -1, dtype=np.int32)
        self.free = np.concatenate([self.free[:free], fresh, np.zeros(held - free, np.int32)])
        self.counts[FREE] += more

    def state_dict(self) -> dict:
        """The rows held and nothing else: packed bytes env by env in time order, their finals in the same order."""
        ids = self.ids()
        rows = self.raw[self.rows_of(ids)]
        links = rows.view(np.int32)[:, self.link_word]
        own = links >> FLAG_BITS > 0
        finals = self.finals[(links[own] >> FLAG_BITS) - 1]
        links[own] = (np.arange(1, len(finals) + 1) << FLAG_BITS) | (links[own] & (1 << FLAG_BITS) - 1)
        return {
            "rows": rows,
            "finals": finals,
            "pending": self.raw[self._pending(), : self.layout.obs_nbytes],
            "head": self.head.copy(),
            "tail": self.tail.copy(),
            "seen": self.seen,
        }

    def load_state_dict(self, tree: dict) -> None:
        head, tail, rows = np.asarray(tree["head"]), np.asarray(tree["tail"]), np.asarray(tree["rows"])
        if head.size != self.num_envs:
            raise RunError(f"the saved memory has rows of {head.size} envs, this one is for {self.num_envs}")
        longest = int((head - tail).max())
        if longest > self.slots and not self.grows:
            raise RunError(f"the saved memory holds {longest} rows an env, this one has room for {self.slots}")
        self.head[:], self.tail[:] = head, tail
        self._allocate(max(self.slots, longest))
        self.raw[self.rows_of(self.ids())] = rows
        self.raw[self._pending(), : self.layout.obs_nbytes] = tree["pending"]
        self.finals = np.array(tree["finals"], np.uint8).reshape(-1, self.layout.obs_row.itemsize)
        self.free = np.zeros(len(self.finals), np.int32)
        ended = np.count_nonzero(self.links[self.rows_of(self.ids()), self.link_word] & ENDED)
        self.counts[:] = len(rows), tree["seen"], ended, 0, longest


@njit
def copy_bytes(target, source, count):
    for index in range(count):
        target[index] = source[index]


@njit
def commit(
    raw, links, finals, free, counts, head, tail,
    stage, stage_next, terminated, truncated,
    start, count, first_env, stride, link_word, obs_nbytes,
):  # fmt: skip
    """Write `count` staged rows, for env after env (stride 1) or all for one env (stride 0)."""
    envs = head.size
    slots = raw.shape[0] // envs
    for index in range(start, start + count):
        env = first_env + stride * (index - start)
        t = head[env]
        row = t % slots * envs + env
        if t > tail[env]:
            previous = (t - 1) % slots * envs + env
            if links[previous, link_word] == 0:
                same = True
                expected, given = raw[row], stage[index]
                for byte in range(obs_nbytes):
                    if expected[byte] != given[byte]:
                        same = False
                        break
                if not same:
                    counts[FREE] -= 1
                    place = free[counts[FREE]]
                    copy_bytes(finals[place], expected, obs_nbytes)
                    links[previous, link_word] = ((place + 1) << FLAG_BITS) | CUT
        if t - tail[env] == slots - 1:
            oldest = links[tail[env] % slots * envs + env, link_word]
            if oldest >> FLAG_BITS:
                free[counts[FREE]] = (oldest >> FLAG_BITS) - 1
                counts[FREE] += 1
            if oldest & ENDED:
                counts[EPISODES] -= 1
            tail[env] += 1
            counts[SIZE] -= 1
        copy_bytes(raw[row], stage[index], raw.shape[1])
        flags = terminated[index] * TERMINATED + truncated[index] * TRUNCATED
        if flags:
            counts[FREE] -= 1
            place = free[counts[FREE]]
            copy_bytes(finals[place], stage_next[index], obs_nbytes)
            links[row, link_word] = ((place + 1) << FLAG_BITS) | flags
            counts[EPISODES] += 1
        else:
            links[row, link_word] = 0
            copy_bytes(raw[(t + 1) % slots * envs + env], stage_next[index], obs_nbytes)
        head[env] = t + 1
        counts[SIZE] += 1
        counts[SEEN] += 1
    fullest = 0
    for env in range(envs):
        fullest = max(fullest, head[env] - tail[env])
    counts[FULLEST] = fullest
