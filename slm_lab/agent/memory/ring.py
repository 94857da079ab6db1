"""One table of rows, slots x envs, each env's column a ring of its own. Knows nothing of gamma or of sampling.

`next_obs` is not stored. Row t's next observation is the obs of row t + 1, and a row that has no follower of its own
(its episode ended, or the next add began elsewhere: a cut) keeps it in the sparse table `finals`. The slot at the head
already holds the observation that the next row is expected to start from, so the newest row needs no special case;
hence one slot more than the capacity. Where observations are stacks of k frames, k - 1 slots more keep the frames of
rows that are no longer held, so that the oldest rows have their whole stacks.

A row is addressed by its write id, t * N + env, where t counts the rows written for that env. Only the ids of rows that
were taken back are given again, so one can tell whether a row still exists.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slm_lab.agent.memory.disk import Disk
from slm_lab.agent.memory.fields import LINK, REWARD, SOURCE, Layout
from slm_lab.agent.memory.stage import Stage
from slm_lab.errors import RunError
from slm_lab.lib.bytes import copy
from slm_lab.lib.jit import njit

TERMINATED, TRUNCATED, CUT = 1, 2, 4  # flags of a link; above them: 1 + the row's place in `finals`, or 0
ENDED = TERMINATED | TRUNCATED
FLAG_BITS = 3
SIZE, SEEN, EPISODES, FREE, FULLEST = range(5)  # places in `counts`
CHUNK = 4096  # rows written at a time, which bounds how many finals must be free beforehand
CHUNK_ON_DISK = 64  # where free finals take room


class Ring:
    """`slots` rows for each of `num_envs` envs; the newest rows replace the oldest, or the table grows."""

    def __init__(self, layout: Layout, slots: int, num_envs: int, grows: bool = False, disk: Disk | None = None):
        self.num_envs = num_envs
        self.grows = grows
        self.disk = disk  # None: rows in RAM
        self.store: Any = None  # where `state_dict` leaves the rows; None: in the tree
        self.slots = slots
        self.use_layout(layout)

    def use_layout(self, layout: Layout) -> None:
        """Start empty, with rows of this layout."""
        if self.store is not None:
            self.store.write_anew()
        self.layout = layout
        self.reward_word = layout.offset(REWARD) // 4
        self.link_word = layout.offset(LINK) // 4
        self.source_word = layout.word(f"extras.{SOURCE}")
        self.history = layout.stack - 1  # rows before the tail whose frames are kept
        self.head = np.zeros(self.num_envs, np.int64)  # (N,) t of the next row
        self.tail = np.zeros(self.num_envs, np.int64)  # (N,) t of the oldest row held
        self.counts = np.zeros(5, np.int64)
        self.finals = np.zeros((0, layout.obs_row.itemsize), np.uint8)
        self.free = np.zeros(0, np.int32)  # the first counts[FREE] are places in `finals` that may be used
        self._allocate(self.slots)

    def _allocate(self, slots: int) -> None:
        """A table of zeros; a ring on disk also gets new room for its finals."""
        self.slots = slots
        self.ring_slots = slots + 1 + self.history
        rows = self.ring_slots * self.num_envs
        if self.disk is None:
            self.raw = np.zeros(rows, self.layout.row).view(np.uint8).reshape(rows, -1)  # (rows, row bytes)
        else:
            finals = 2 * max(rows + 2 * max(CHUNK, self.num_envs), len(self.finals))  # the most that they grow to
            self.raw = self.disk.allocate(
                rows, self.layout.row.itemsize, finals, self.layout.obs_row.itemsize, self.num_envs, len(self.finals)
            )
            self.disk.begin()
            self.disk.publish(self.head)
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

    def write(self, stage: Stage, env: int | None = None, ordered: bool = True) -> None:
        """Write one row of each env, or (with `env`) rows of that env in time order; if not `ordered`, each row keeps
        its own next_obs and is cut off from the others."""
        first, stride, count = (0, 1, stage.count) if env is None else (env, 0, stage.count)
        chunk = CHUNK if self.disk is None else CHUNK_ON_DISK
        for start in range(0, count, chunk) if stride == 0 else (0,):
            rows = min(chunk, count - start) if stride == 0 else count
            if self.grows and self.counts[FULLEST] + (1 if stride else rows) > self.slots:
                self.resize(max(2 * self.slots, int(self.counts[FULLEST]) + rows))
            if self.counts[FREE] < 2 * rows:
                self._grow_finals(2 * rows)
            if self.disk is not None:
                self.disk.begin()
            commit(
                self.raw, self.links, self.finals, self.free, self.counts, self.head, self.tail, self.history,
                stage.rows, stage.words, stage.next_obs, stage.terminated, stage.truncated,
                start, rows, first, stride, ordered, self.link_word, self.source_word, self.layout.obs_nbytes,
            )  # fmt: skip
            if self.disk is not None:
                self.disk.publish(self.head)

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Where in the table the rows with these ids are."""
        return ids % (self.ring_slots * self.num_envs)  # as ids count rows from env to env

    def ids(self, until: np.ndarray | None = None) -> np.ndarray:
        """Ids of the rows held (before `until`, per env), env by env, each in time order."""
        until = self.head if until is None else until
        spans = zip(self.tail, until, strict=True)
        return np.concatenate([np.arange(a, b) * self.num_envs + env for env, (a, b) in enumerate(spans)])

    def kept(self) -> np.ndarray:
        """`ids`, and before each env's oldest row those of the rows whose frames are kept for its stack."""
        spans = zip(np.maximum(self.tail - self.history, 0), self.head, strict=True)
        return np.concatenate([np.arange(a, b) * self.num_envs + env for env, (a, b) in enumerate(spans)])

    def from_source(self, ids: np.ndarray, source: int) -> np.ndarray:
        """Those of the ids whose rows came from this source; all are from source 0 where none was ever given."""
        if self.source_word < 0:
            return ids if source == 0 else ids[:0]
        return ids[self.links[self.rows_of(ids), self.source_word] == source]

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

    def take_back(self, env: int) -> np.ndarray:
        """Forget this env's newest rows, back to the last one that ended an episode or was cut off. Returns their ids,
        which the rows that come next are given."""
        ids = np.arange(self.tail[env], self.head[env]) * self.num_envs + env
        closed = np.flatnonzero(self.links[self.rows_of(ids), self.link_word])
        taken = ids[closed[-1] + 1 :] if closed.size else ids
        if not taken.size:
            return taken
        if self.disk is not None:
            self.disk.begin()
        self.head[env] -= taken.size
        if self.head[env] == self.tail[env] > 0:  # what comes next continues no row that is not held
            self.links[self.rows_of(taken[:1] - self.num_envs), self.link_word] |= CUT
        self.counts[SIZE] -= taken.size
        self.counts[FULLEST] = (self.head - self.tail).max()
        if self.disk is not None:
            self.disk.publish(self.head)
        if self.store is not None:
            self.store.taken_back(self.head)
        return taken

    def resize(self, slots: int) -> None:
        """Give each env `slots` rows; the newest are kept, with their ids."""
        self.drop(np.maximum(self.tail, self.head - slots))
        ids = self.kept()
        raw, old = self.raw, np.concatenate([self.rows_of(ids), self._pending()])
        self._allocate(slots)
        self.finals = self._room_for_finals(len(self.finals), self.finals)
        new = np.concatenate([self.rows_of(ids), self._pending()])
        for start in range(0, new.size, CHUNK):  # a table on disk may not fit into RAM
            self.raw[new[start : start + CHUNK]] = raw[old[start : start + CHUNK]]

    def _pending(self) -> np.ndarray:
        """(N,) the rows whose obs is what each env's next row is expected to start from."""
        return self.rows_of(self.head * self.num_envs + np.arange(self.num_envs))

    def _grow_finals(self, needed: int) -> None:
        held = len(self.finals)
        more = max(held if self.disk is None else held // 8, needed, 16)  # on disk they take room at once
        self.finals = self._room_for_finals(held + more, self.finals)
        free = int(self.counts[FREE])
        fresh = np.arange(held + more - 1, held - 1, -1, dtype=np.int32)
        self.free = np.concatenate([self.free[:free], fresh, np.zeros(held - free, np.int32)])
        self.counts[FREE] += more

    def _room_for_finals(self, count: int, held: np.ndarray) -> np.ndarray:
        """(count, observation bytes) beginning with those held."""
        room = np.zeros((count, held.shape[1]), np.uint8) if self.disk is None else self.disk.finals(count)
        if not np.may_share_memory(room, held):
            room[: len(held)] = held
        return room

    def state_dict(self) -> dict:
        """The rows held and nothing else: packed bytes env by env in time order, their finals in the same order; or,
        with a store, what tells of the rows in it."""
        if self.store is not None:
            return self.store.write(self)
        ids = self.kept()
        rows = self.raw[self.rows_of(ids)]
        links = rows.view(np.int32)[:, self.link_word]
        links[ids // self.num_envs < self.tail[ids % self.num_envs]] &= (1 << FLAG_BITS) - 1  # kept, without a final
        own = links >> FLAG_BITS > 0
        finals = self.finals[(links[own] >> FLAG_BITS) - 1]
        links[own] = (np.arange(1, len(finals) + 1) << FLAG_BITS) | (links[own] & (1 << FLAG_BITS) - 1)
        return {
            "rows": rows,
            "finals": finals,
            "pending": self.pending_obs(),
            "head": self.head.copy(),
            "tail": self.tail.copy(),
            "seen": self.seen,
        }

    def check_state(self, tree: dict, layout: Layout) -> None:
        """Raise where the tree's rows, which have this layout, do not fit this ring or one another; changes nothing."""
        if "segments" in tree:
            if self.store is None:
                raise RunError("the saved memory's rows are in files of their own, and it is not known where")
            return self.store.check(self, layout, tree)
        head, tail, rows = np.asarray(tree["head"]), np.asarray(tree["tail"]), np.asarray(tree["rows"])
        if head.size != self.num_envs:
            raise RunError(f"the saved memory has rows of {head.size} envs, this one is for {self.num_envs}")
        longest = int((head - tail).max())
        if longest > self.slots and not self.grows:
            raise RunError(f"the saved memory holds {longest} rows an env, this one has room for {self.slots}")
        kept = head - np.maximum(tail - self.history, 0)
        told = int(kept.sum())
        if (tail < 0).any() or (head < tail).any() or rows.shape != (told, layout.row.itemsize):
            raise RunError(f"the saved memory tells of {told} rows, and has {len(rows)} that do not fit that")
        held = np.concatenate([np.arange(-count, 0) >= -own for count, own in zip(kept, head - tail, strict=True)])
        check_links(rows.view(np.int32)[:, layout.word(LINK)], held, len(finals_of(tree, layout)))

    def load_state_dict(self, tree: dict) -> None:
        """Take on the rows of a tree that `check_state` lets pass; they have this ring's layout."""
        if "segments" in tree:
            return self.store.read(self, tree)
        finals = finals_of(tree, self.layout)
        self.begin_at(np.asarray(tree["head"]), np.asarray(tree["tail"]))
        self.raw[self.rows_of(self.kept())] = np.asarray(tree["rows"])
        self.use_finals(len(finals))[:] = finals
        ended = np.count_nonzero(self.links[self.rows_of(self.ids()), self.link_word] & ENDED)
        self.settle(tree["pending"], tree["seen"], ended)

    def begin_at(self, head: np.ndarray, tail: np.ndarray) -> None:
        """Make room for rows with these bounds, which are written next; after their finals `settle` ends that."""
        self.head[:], self.tail[:] = head, tail
        self._allocate(max(self.slots, int((head - tail).max())))

    def use_finals(self, count: int) -> np.ndarray:
        """(count, observation bytes) room for finals, all of which are in use."""
        self.finals = self._room_for_finals(count, self.finals[:0])
        self.free = np.zeros(count, np.int32)
        return self.finals

    def settle(self, pending: np.ndarray, seen: int, episodes: int) -> None:
        """The rows are there, as are their finals; what the next ones start from, and what was counted."""
        self.raw[self._pending(), : self.layout.obs_nbytes] = pending
        held = self.head - self.tail
        self.counts[:] = held.sum(), seen, episodes, 0, held.max()

    def pending_obs(self) -> np.ndarray:
        """(N, observation bytes) what each env's next row is expected to start from; zeros where it may be anything."""
        pending = self.raw[self._pending(), : self.layout.obs_nbytes]
        newest = self.rows_of((self.head - 1) * self.num_envs + np.arange(self.num_envs))
        pending[(self.head == 0) | (self.links[newest, self.link_word] != 0)] = 0
        return pending


def finals_of(tree: dict, layout: Layout) -> np.ndarray:
    """(finals, observation bytes) those of a saved ring."""
    return np.asarray(tree["finals"], np.uint8).reshape(-1, layout.obs_row.itemsize)


def check_links(links: np.ndarray, held: np.ndarray | None, finals: int | None = None) -> None:
    """Refuse rows of a file that would lead compiled code out of the tables: by the number of a final that is not,
    or as held rows (None: all) that end without one. Forgotten rows may, in a stack. `finals`: how many there are,
    where the numbers are to be used as they stand."""
    places = links >> FLAG_BITS
    ends_in_nothing = (links != 0) & (places == 0) & (True if held is None else held)
    beyond = finals is not None and (places > finals).any()
    if (places < 0).any() or beyond or ends_in_nothing.any():
        raise ValueError("rows that lead to final observations which are not there")


@njit
def commit(
    raw, links, finals, free, counts, head, tail, history,
    stage, stage_words, stage_next, terminated, truncated,
    start, count, first_env, stride, ordered, link_word, source_word, obs_nbytes,
):  # fmt: skip
    """Write `count` staged rows, for env after env (stride 1) or all for one env (stride 0); those that are to be cut
    off from the next have a staged link."""
    envs = head.size
    slots = raw.shape[0] // envs
    width, final_width = raw.shape[1], finals.shape[1]
    for index in range(start, start + count):
        env = first_env + stride * (index - start)
        t = head[env]
        row = t % slots * envs + env
        if t > 0:
            previous = (t - 1) % slots * envs + env
            if links[previous, link_word] == 0:
                same = ordered
                if source_word >= 0:
                    same &= links[previous, source_word] == stage_words[index, source_word]
                differ = np.uint8(0)
                for byte in range(obs_nbytes):  # without a way out, so that it is done many bytes at a time
                    differ |= raw[row, byte] ^ stage[index, byte]
                same &= differ == 0
                if not same and t > tail[env]:
                    counts[FREE] -= 1
                    place = free[counts[FREE]]
                    copy(finals, place * final_width, raw, row * width, obs_nbytes)
                    links[previous, link_word] = ((place + 1) << FLAG_BITS) | CUT
                elif not same:  # forgotten rows may still lend their frames to a stack, unless they are cut off
                    links[previous, link_word] = CUT
        if t - tail[env] == slots - 1 - history:
            oldest = links[tail[env] % slots * envs + env, link_word]
            if oldest >> FLAG_BITS:
                free[counts[FREE]] = (oldest >> FLAG_BITS) - 1
                counts[FREE] += 1
            if oldest & ENDED:
                counts[EPISODES] -= 1
            tail[env] += 1
            counts[SIZE] -= 1
        copy(raw, row * width, stage, index * width, width)
        flags = terminated[index] * TERMINATED + truncated[index] * TRUNCATED
        if flags or not ordered or stage_words[index, link_word] != 0:
            counts[FREE] -= 1
            place = free[counts[FREE]]
            copy(finals, place * final_width, stage_next, index * final_width, obs_nbytes)
            links[row, link_word] = ((place + 1) << FLAG_BITS) | (flags if flags else CUT)
            counts[EPISODES] += flags != 0
        else:
            links[row, link_word] = 0
            copy(raw, ((t + 1) % slots * envs + env) * width, stage_next, index * final_width, obs_nbytes)
        head[env] = t + 1
        counts[SIZE] += 1
        counts[SEEN] += 1
    fullest = 0
    for env in range(envs):
        fullest = max(fullest, head[env] - tail[env])
    counts[FULLEST] = fullest
