"""What a row becomes: torch tensors of a transition over n steps, read from the ring in one pass."""

from __future__ import annotations

from dataclasses import fields as parts_of
from typing import Any

import numpy as np
import torch

from slm_lab.agent.memory.fields import DISCOUNT, Field
from slm_lab.agent.memory.ring import FLAG_BITS, TERMINATED, Ring, copy_bytes
from slm_lab.lib.jit import njit
from slm_lab.types import Batch


class Transitions:
    """Reads rows as transitions over up to n steps, which stop at an episode's end, at a cut and at the newest row.

    The tensors of a batch share one fresh block of memory and belong to the caller. Extras named in `without` are left
    out.
    """

    def __init__(self, ring: Ring, gamma: float, without: tuple[str, ...] = ()):
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
        self._parts = [_Part(group, field, places[index]) for index, (group, field, _) in enumerate(parts)]

    def read(self, ids: np.ndarray, n_step: int = 1, weight: np.ndarray | None = None) -> Batch:
        """The rows with these ids as a batch; `weight` (B,) float32 goes along, ones if there is none."""
        ring = self.ring
        count = ids.size
        block = np.empty(count * self.row_bytes, np.uint8)
        reward = np.empty(count, np.float32)
        discount = np.empty(count, np.float32)
        steps = np.empty(count, np.int64)
        gather(
            ring.raw, ring.floats, ring.links, ring.finals, ring.head, ring.tail, ring.history,
            self._copies, ids, self.gamma, n_step, ring.reward_word, self._discount_word, ring.link_word,
            block, reward, discount, steps,
        )  # fmt: skip
        groups: dict[str, Any] = {"extras": {}}
        for part in self._parts:
            tensor = torch.from_numpy(np.ndarray((count, *part.shape), part.dtype, block, count * part.place))
            if part.widen:
                tensor = tensor.to(torch.float32)
            if part.key is None:
                groups[part.group] = tensor
            else:
                groups.setdefault(part.group, {})[part.key] = tensor
        return Batch(
            groups["obs"],
            groups["action"],
            torch.from_numpy(reward),
            groups["next_obs"],
            torch.from_numpy(discount),
            steps=torch.from_numpy(steps),
            weight=torch.ones(count) if weight is None else torch.from_numpy(weight),
            ids=torch.from_numpy(ids),
            extras=groups["extras"],
        )


class _Part:
    """One tensor of a batch: where its bytes begin (per row of the batch) and how they read."""

    __slots__ = ("dtype", "group", "key", "place", "shape", "widen")

    def __init__(self, group: str, field: Field, place: int):
        self.group, self.key, self.place = group, field.key, place
        self.dtype, self.shape = field.dtype, field.given_shape
        self.widen = field.dtype.kind == "f" and field.dtype != np.float32  # nets compute in float32


def take(batch: Batch, index: torch.Tensor) -> Batch:
    """The rows `index` of a batch, in that order, with all that an algorithm has added to it."""
    return Batch(**{part.name: _take(getattr(batch, part.name), index) for part in parts_of(Batch)})


def _take(value: Any, index: torch.Tensor) -> Any:
    if isinstance(value, dict):
        return {key: _take(inner, index) for key, inner in value.items()}
    return None if value is None else value.index_select(0, index)


@njit
def gather(
    raw, floats, links, finals, head, tail, history, copies, ids, gamma, n_step,
    reward_word, discount_word, link_word, block, reward, discount, steps,
):  # fmt: skip
    """Sum rewards over the horizon and copy each part of each row to its place in `block`, part after part."""
    envs = head.size
    slots = raw.shape[0] // envs
    count = ids.size
    for index in range(count):
        env = ids[index] % envs
        first = ids[index] // envs
        row = first % slots * envs + env
        last = row
        total = 0.0
        factor = 1.0
        taken = 0
        while True:
            last = (first + taken) % slots * envs + env
            total += factor * floats[last, reward_word]
            factor *= gamma if discount_word < 0 else gamma * floats[last, discount_word]
            taken += 1
            if taken == n_step or links[last, link_word] != 0 or first + taken == head[env]:
                break
        link = links[last, link_word]
        reward[index] = total
        discount[index] = 0.0 if link & TERMINATED else factor
        steps[index] = taken
        after = finals[(link >> FLAG_BITS) - 1] if link != 0 else raw[(first + taken) % slots * envs + env]
        for part in range(copies.shape[0]):
            offset, size = copies[part, 0], copies[part, 1]
            source = after if copies[part, 3] else raw[row]
            target = copies[part, 2] * count + index * size * copies[part, 4]
            t = first + taken if copies[part, 3] else first
            for frame in range(copies[part, 4] - 1, -1, -1):  # the newest, and going back those before it in its piece
                start = target + frame * size
                copy_bytes(block[start : start + size], source[offset : offset + size], size)
                earlier = (t - 1) % slots * envs + env
                if frame and t > max(tail[env] - history, 0) and (t == first + taken or links[earlier, link_word] == 0):
                    t -= 1
                    source = raw[earlier]
