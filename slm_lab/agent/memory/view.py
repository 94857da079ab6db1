"""What a row becomes: torch tensors of a transition over n steps, read from the ring in one pass."""

from __future__ import annotations

from dataclasses import fields as parts_of
from typing import Any

import numpy as np
import torch

from slm_lab.agent.memory.fields import DISCOUNT, Field
from slm_lab.agent.memory.ring import FLAG_BITS, TERMINATED, Ring
from slm_lab.lib.bytes import copy, fetch
from slm_lab.lib.jit import njit
from slm_lab.types import Batch

AHEAD = 16  # rows that are fetched before they are read
LINE = 64  # bytes that come into the cache at a time
MOST_BYTES, MOST_STEPS = 512, 8  # of a row or a horizon fetched ahead; what comes after is in order and comes by itself


class Transitions:
    """Reads rows as transitions over up to n steps, which stop at an episode's end, at a cut and at the newest row.

    The tensors of a batch share one fresh block of memory and belong to the caller. Extras named in `without` are left
    out. Floating fields come as float32, or with `as_stored` as they are.
    """

    def __init__(self, ring: Ring, gamma: float, without: tuple[str, ...] = (), as_stored: bool = False):
        layout = ring.layout
        self.ring = ring
        self.gamma = gamma
        self._discount_word = layout.word(f"extras.{DISCOUNT}")
        parts = [("obs", field, 0) for field in layout.obs] + [("next_obs", field, 1) for field in layout.obs]
        parts += [(field.group, field, 0) for field in (*layout.action, *layout.extras) if field.key not in without]
        # A part begins at B times its place, so the widest items go first: every beginning is then aligned.
        order = sorted(range(len(parts)), key=lambda index: -parts[index][1].dtype.itemsize)
        sizes = [field.nbytes * field.stack for _, field, _ in parts]
        places = dict(zip(order, np.cumsum([0] + [sizes[index] for index in order]).tolist(), strict=False))
        self.row_bytes = sum(sizes)
        self._copies = np.array(
            [
                [layout.offset(field.name), field.nbytes, places[index], is_next, field.stack]
                for index, (_, field, is_next) in enumerate(parts)
            ],
            np.int64,
        )
        self._parts = [_Part(group, field, places[index], as_stored) for index, (group, field, _) in enumerate(parts)]

    def read(
        self,
        ids: np.ndarray,
        n_step: int = 1,
        weight: np.ndarray | None = None,
        drawn: np.ndarray | None = None,
    ) -> Batch:
        """The rows with these ids as a batch; `weight` (B,) float32 goes along, ones if there is none.

        ids may have any shape, which then leads all tensors; `drawn` (B,) are the ids that the batch tells in their
        place. From a row whose id is given as ~id nothing is to be learned: reward, discount and steps are 0.
        """
        ring = self.ring
        shape, ids = ids.shape, ids.ravel()
        drawn = ids if drawn is None else drawn
        if weight is None:
            weight = np.empty(drawn.size, np.float32)
            weight.fill(1.0)
        count = ids.size
        block = np.empty(count * self.row_bytes, np.uint8)
        reward = np.empty(count, np.float32)
        discount = np.empty(count, np.float32)
        steps = np.empty(count, np.int64)
        gather(
            ring.raw, ring.floats, ring.links, ring.finals, ring.head, self._oldest(), self._copies,
            ids, self.gamma, n_step, ring.reward_word, self._discount_word, ring.link_word,
            np.empty(count, np.int64), block, reward, discount, steps,
        )  # fmt: skip
        groups: dict[str, Any] = {"extras": {}}
        for part in self._parts:
            tensor = torch.from_numpy(np.ndarray(shape + part.shape, part.dtype, block, count * part.place))
            if part.widen:
                tensor = tensor.to(torch.float32)
            if part.key is None:
                groups[part.group] = tensor
            else:
                groups.setdefault(part.group, {})[part.key] = tensor
        return Batch(
            groups["obs"],
            groups["action"],
            torch.from_numpy(reward.reshape(shape)),
            groups["next_obs"],
            torch.from_numpy(discount.reshape(shape)),
            steps=torch.from_numpy(steps.reshape(shape)),
            weight=torch.from_numpy(weight),
            ids=torch.from_numpy(drawn),
            extras=groups["extras"],
        )

    def _oldest(self) -> np.ndarray | None:
        """(N,) per env the t of the oldest row whose frames are kept; None where rows have no stacks."""
        return np.maximum(self.ring.tail - self.ring.history, 0) if self.ring.history else None


class _Part:
    """One tensor of a batch: where its bytes begin (per row of the batch) and how they read."""

    __slots__ = ("dtype", "group", "key", "place", "shape", "widen")

    def __init__(self, group: str, field: Field, place: int, as_stored: bool):
        self.group, self.key, self.place = group, field.key, place
        self.dtype, self.shape = field.dtype, field.given_shape
        self.widen = field.dtype.kind == "f" and field.dtype != np.float32 and not as_stored  # nets compute in float32


def take(batch: Batch, index: torch.Tensor) -> Batch:
    """The rows `index` of a batch, in that order, with all that an algorithm has added to it."""
    return Batch(**{part.name: _take(getattr(batch, part.name), index) for part in parts_of(Batch)})


def _take(value: Any, index: torch.Tensor) -> Any:
    if isinstance(value, dict):
        return {key: _take(inner, index) for key, inner in value.items()}
    return None if value is None else value.index_select(0, index)


@njit
def gather(
    raw, floats, links, finals, head, oldest, copies, ids, gamma, n_step,
    reward_word, discount_word, link_word, rows, block, reward, discount, steps,
):  # fmt: skip
    """Sum rewards over the horizon and copy each part of each row to its place in `block`, part after part.

    `rows` (B,) is room to work in. Where `oldest` is None there are no stacks, and what reads them is not compiled.
    """
    envs = head.size
    slots = raw.shape[0] // envs
    width = raw.shape[1]
    count = ids.size
    longest = 0
    for env in range(envs):
        longest = max(longest, head[env])
    lap = longest * envs // len(raw) * len(raw)  # where the newest round of the table began: division is slow
    before = -2
    for index in range(-AHEAD, count):
        if index + AHEAD < count:
            write_id = max(ids[index + AHEAD], ~ids[index + AHEAD])
            row = write_id - lap if write_id >= lap else write_id - lap + len(raw)
            row = row if 0 <= row < len(raw) else write_id % len(raw)
            rows[index + AHEAD] = row
            if row != before + 1:  # the next in the table comes by itself
                fetch_rows(raw, row, envs, n_step, link_word)
            before = row
        if index < 0:
            continue
        row = rows[index]
        write_id = max(ids[index], ~ids[index])
        first, env, slot = write_id, 0, row
        if envs > 1:
            first = write_id // envs
            env = write_id - first * envs
            slot = (row - env) // envs
        last = row
        total = 0.0
        factor = 1.0
        taken = 0
        while True:
            total += factor * floats[last, reward_word]
            factor *= gamma if discount_word < 0 else gamma * floats[last, discount_word]
            taken += 1
            slot = slot + 1 if slot + 1 < slots else 0
            if taken == n_step or links[last, link_word] != 0 or first + taken == head[env]:
                break
            last = slot * envs + env
        link = links[last, link_word]
        counts = ids[index] >= 0
        reward[index] = total if counts else 0.0
        discount[index] = 0.0 if link & TERMINATED or not counts else factor
        steps[index] = taken if counts else 0
        for part in range(copies.shape[0]):
            offset, size, place = copies[part, 0], copies[part, 1], copies[part, 2]
            is_next, stack = copies[part, 3], copies[part, 4]
            target = place * count + index * size * stack
            if oldest is not None and stack > 1:
                newest = first + taken if is_next else first
                copy_stack(raw, links, finals, link_word, envs, env, newest, oldest[env], link if is_next else -1,
                           block, target, offset, size, stack)  # fmt: skip
            elif not is_next:
                copy(block, target, raw, row * width + offset, size)
            elif link == 0:
                copy(block, target, raw, (slot * envs + env) * width + offset, size)
            else:
                copy(block, target, finals, ((link >> FLAG_BITS) - 1) * finals.shape[1] + offset, size)


@njit
def fetch_rows(raw, row, envs, n_step, link_word):
    """Bring a row, the one after its horizon, and the links between into the cache: a draw is all over the table, and
    each row would be waited for."""
    width = raw.shape[1]
    for step in range(min(n_step, MOST_STEPS) + 1):
        start = row * width
        if step == 0 or step == n_step:
            for at in range(0, min(width, MOST_BYTES), LINE):
                fetch(raw, start + at)
            fetch(raw, start + width - 1)
        else:
            fetch(raw, start + 4 * link_word)
        row = row + envs if row + envs < len(raw) else row + envs - len(raw)


@njit
def copy_stack(raw, links, finals, link_word, envs, env, t, oldest, link, block, target, offset, size, stack):
    """The frame of row t and, going back, those before it in its piece; at the beginning the first is repeated.

    With a `link` (0 and more) the newest frame is what the row before t led to: row t itself only where that is 0.
    """
    slots = raw.shape[0] // envs
    width = raw.shape[1]
    start = (t % slots * envs + env) * width
    for frame in range(stack - 1, -1, -1):
        if frame == stack - 1 and link > 0:
            copy(block, target + frame * size, finals, ((link >> FLAG_BITS) - 1) * finals.shape[1] + offset, size)
        else:
            copy(block, target + frame * size, raw, start + offset, size)
        earlier = (t - 1) % slots * envs + env
        if t > oldest and (links[earlier, link_word] == 0 or (frame == stack - 1 and link >= 0)):
            t -= 1
            start = earlier * width
