"""What drawn rows become as sequences: windows of consecutive rows of one env, one episode and one source."""

from __future__ import annotations

import numpy as np
import torch

from slm_lab.agent.memory.fields import BURN_IN, Field
from slm_lab.agent.memory.view import Transitions
from slm_lab.lib.bytes import fetch
from slm_lab.lib.jit import njit
from slm_lab.types import Batch

AHEAD = 2  # windows that are fetched before they are laid
HIDDEN = "hidden"  # the extra that is a recurrent net's state before its row


class Windows:
    """Reads for each drawn row a window (B, T, ...), T = burn_in + length: up to `length` rows to learn from, and
    before them up to `burn_in` rows that only warm up a net's state (fewer at an episode's beginning).

    A window begins at its place 0 and ends where its episode does. The places left over repeat its last row, so that a
    net meets nothing strange there, with reward, discount and steps 0. `mask` is true where there is a row to learn
    from, `extras["burn_in"]` (B,) counts the rows before those. Each row of a window is read as a transition over up to
    n steps, which may reach beyond the window's end.

    `stride`: windows learn from the first row of an episode on, or from a row whose number in its env is a multiple of
    the stride; any other drawn row stands for the nearest such row before it. Without `pad`, a window that its
    episode's end would cut short begins earlier instead, as far as the episode reaches back.
    """

    def __init__(
        self, view: Transitions, burn_in: int = 0, stride: int = 1, pad: bool = True, store_hidden: bool = False
    ):
        self.ring = view.ring
        self.burn_in = burn_in
        self.stride = stride
        self.pad = pad
        layout = self.ring.layout
        self.hidden = next((field for field in layout.extras if store_hidden and field.key == HIDDEN), None)
        self.view = Transitions(view.ring, view.gamma, without=(HIDDEN,)) if self.hidden else view

    def read(self, ids: np.ndarray, length: int, n_step: int = 1, weight: np.ndarray | None = None) -> Batch:
        """The windows of the drawn rows `ids`; `ids` and `weight` of the batch are (B,), one for each window."""
        ring = self.ring
        count, steps = ids.size, self.burn_in + length
        rows = np.empty((count, steps), np.int64)
        mask = np.empty((count, steps), np.bool_)
        burnt = np.empty(count, np.int64)
        lay_windows(
            ring.links, ring.link_word, ring.head, ring.tail, ring.ring_slots,
            ids, self.burn_in, self.stride, self.pad, rows, mask, burnt,
        )  # fmt: skip
        batch = self.view.read(rows, n_step, weight, ids)
        batch.mask = torch.from_numpy(mask)
        batch.extras[BURN_IN] = torch.from_numpy(burnt)
        if self.hidden:
            batch.extras[HIDDEN] = self._first_of(rows[:, 0], self.hidden)
        return batch

    def _first_of(self, ids: np.ndarray, field: Field) -> torch.Tensor:
        offset = self.ring.layout.offset(field.name)
        held = self.ring.raw[self.ring.rows_of(ids), offset : offset + field.nbytes]
        return torch.from_numpy(held.view(field.dtype).reshape(-1, *field.shape)).to(torch.float32)

    def alike(self, ids: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every row that stands for the same window as one of `ids`, with its error: they have one priority."""
        if self.stride == 1:
            return ids, errors
        ring = self.ring
        room = np.empty((ids.size, self.stride), np.int64)
        counts = np.empty(ids.size, np.int64)
        find_alike(ring.links, ring.link_word, ring.head, ring.tail, ring.ring_slots, ids, self.stride, room, counts)
        return room[np.arange(self.stride) < counts[:, None]], np.repeat(errors, counts)


@njit
def follows(links, link_word, slots, envs, env, t):
    """Whether row t + 1 of this env goes on where row t led to."""
    return links[t % slots * envs + env, link_word] == 0


@njit
def first_of(links, link_word, slots, envs, env, t, oldest, stride):
    """The row that the window of row t learns from first."""
    while t > oldest and t % stride != 0 and follows(links, link_word, slots, envs, env, t - 1):
        t -= 1
    return t


@njit
def lay_windows(links, link_word, head, tail, slots, ids, burn_in, stride, pad, rows, mask, burnt):
    envs = head.size
    total = rows.shape[1]
    length = total - burn_in
    width = 4 * links.shape[1]
    for index in range(-AHEAD, ids.size):
        if index + AHEAD < ids.size:
            row = ids[index + AHEAD] % (envs * slots)
            for _ in range(length):
                fetch(links, row * width + 4 * link_word)
                row = row + envs if row + envs < envs * slots else row + envs - envs * slots
        if index < 0:
            continue
        env = ids[index] % envs
        oldest = tail[env]
        first = first_of(links, link_word, slots, envs, env, ids[index] // envs, oldest, stride)
        end = first + 1
        row = first % slots * envs + env
        while end - first < length and end < head[env] and links[row, link_word] == 0:
            end += 1
            row = row + envs if row + envs < envs * slots else row + envs - envs * slots
        while (
            not pad
            and end - first < length
            and first > oldest
            and follows(links, link_word, slots, envs, env, first - 1)
        ):
            first -= 1
        begin = first
        while first - begin < burn_in and begin > oldest and follows(links, link_word, slots, envs, env, begin - 1):
            begin -= 1
        burnt[index] = first - begin
        for place in range(end - begin):
            rows[index, place] = (begin + place) * envs + env
            mask[index, place] = first <= begin + place
        for place in range(end - begin, total):
            rows[index, place] = ~((end - 1) * envs + env)  # read for its contents, not to be learned from
            mask[index, place] = False


@njit
def find_alike(links, link_word, head, tail, slots, ids, stride, room, counts):
    envs = head.size
    for index in range(ids.size):
        env = ids[index] % envs
        t = ids[index] // envs
        counts[index] = 0
        if not tail[env] <= t < head[env]:
            continue
        t = first_of(links, link_word, slots, envs, env, t, tail[env], stride)
        while True:
            room[index, counts[index]] = t * envs + env
            counts[index] += 1
            t += 1
            if t % stride == 0 or t == head[env] or not follows(links, link_word, slots, envs, env, t - 1):
                break
