"""Priorities of the rows of a ring in a sum tree (Schaul 2016): draw by priority, weigh, update.

The tree has a leaf for each place in the table; a node's value is always recomputed as the sum of its two children, so
nothing drifts. A second tree of minima is kept only where weights are taken relative to the whole buffer.
"""

from __future__ import annotations

import numpy as np

from slm_lab.agent.memory.ring import Ring
from slm_lab.errors import InvalidRow, RunError
from slm_lab.lib.jit import njit

MOST = 1e290  # the largest priority: the sum of 2^50 of them is finite


class Priorities:
    """A row enters at the highest priority ever given, so that each is drawn soon; later it follows its error.

    Rows are noticed when they are next needed (`known` per env), so adding costs nothing here; the highest priority
    changes in `update` alone, which notices the rows before it.
    """

    def __init__(self, ring: Ring, alpha: float, epsilon: float, minima: bool):
        self.ring = ring
        self.alpha = alpha
        self.epsilon = epsilon
        self.minima = minima
        self.reset()

    def reset(self) -> None:
        """No row known, as if none had ever had an error."""
        leaves = 1 << (len(self.ring.raw) - 1).bit_length()
        self.sums = np.zeros(2 * leaves, np.float64)
        self.lows = np.full(2 * leaves, np.inf) if self.minima else None
        self.known = self.ring.head.copy()  # (N,) rows before this t have their priority
        self.highest = np.ones(1)

    def taken_back(self, ids: np.ndarray) -> None:
        """The ring took back these rows, one env's newest. Their places have no priority until other rows come, nor
        have those after them, whose rows may have left unnoticed."""
        after = ids[-1] + self.ring.num_envs * np.arange(1, 2 + self.ring.history)
        rows = self.ring.rows_of(np.concatenate([ids, after]))
        fill(self.sums, self.lows, rows, np.zeros(rows.size))
        np.minimum(self.known, self.ring.head, out=self.known)

    def draw(self, uniforms: np.ndarray, newest: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
        """(B,) ids, one from each of B equal strata of the total, and their weights; `newest` replaces the last.

        `uniforms` is used up as working room.
        """
        self._notice()
        ids = np.empty(uniforms.size, np.int64)
        weight = np.empty(uniforms.size, np.float32)
        draw_by_priority(
            self.sums, self.lows, self.ring.head, self.ring.ring_slots, uniforms, newest, beta, ids, weight
        )
        return ids, weight

    def update(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Priority (|error| + epsilon)^alpha, at most MOST, for the rows that still exist."""
        self._notice()
        ring = self.ring
        bad = set_by_error(
            self.sums, self.lows, self.highest, ring.head, ring.tail, ring.ring_slots,
            ids, errors, self.alpha, self.epsilon,
        )  # fmt: skip
        if bad >= 0:
            raise InvalidRow(f"errors: {errors[bad]} for row {bad} of {ids.size}; priorities need finite errors")

    def draw_among(self, among: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """(B,) ids drawn as in `draw`, from the rows `among` only; the cost follows their number."""
        ends = self.of(among).cumsum()
        strata = (np.arange(uniforms.size) + uniforms) * (ends[-1] / uniforms.size)
        return among[np.minimum(ends.searchsorted(strata, "right"), among.size - 1)]

    def weights(self, ids: np.ndarray, beta: float) -> np.ndarray:
        """(B,) importance-sampling weights of rows that are held."""
        priorities = self.of(ids)
        lowest = self.lows[1] if self.minima else priorities.min()
        return ((lowest / priorities) ** beta).astype(np.float32)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """(B,) priorities of rows that are held."""
        self._notice()
        return self.sums[self.sums.size // 2 + self.ring.rows_of(ids)]

    def held(self) -> np.ndarray:
        """(size,) priorities of the rows held, in the order of `ring.ids`."""
        return self.of(self.ring.ids())

    def _notice(self) -> None:
        ring = self.ring
        notice(self.sums, self.lows, self.known, self.highest, ring.head, ring.tail, ring.ring_slots, ring.history)

    def describe(self) -> dict:
        return {**quantiles(self.held()), "highest_ever": float(self.highest[0])}

    def state_dict(self) -> dict:
        return {"held": self.held(), "highest": float(self.highest[0])}

    def load_state_dict(self, tree: dict) -> None:
        """Take on the priorities of the rows that the ring has loaded before."""
        self.reset()
        self.highest[0] = min(tree["highest"], MOST)
        rows, held = self.ring.rows_of(self.ring.ids()), np.asarray(tree["held"], np.float64)
        if held.shape != rows.shape:
            raise RunError(f"the saved memory has {held.size} priorities for {rows.size} rows")
        fill(self.sums, self.lows, rows, np.minimum(held, MOST))


def quantiles(values: np.ndarray) -> dict[str, float]:
    """How the values are spread, as JSON values; nothing where there are none."""
    if not values.size:
        return {}
    names = ("min", "5%", "25%", "median", "75%", "95%", "max")
    return dict(zip(names, np.quantile(values, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)).tolist(), strict=True))


@njit
def set_leaf(sums, lows, row, priority):
    """Priority 0 empties the leaf."""
    node = sums.size // 2 + row
    sums[node] = priority
    if lows is not None:
        lows[node] = priority if priority > 0 else np.inf
    node >>= 1
    while node:
        sums[node] = sums[2 * node] + sums[2 * node + 1]
        if lows is not None:
            lows[node] = min(lows[2 * node], lows[2 * node + 1])
        node >>= 1


@njit
def fill(sums, lows, rows, priorities):
    leaves = sums.size // 2
    nodes = np.empty(rows.size, np.int64)
    for index in range(rows.size):
        nodes[index] = leaves + rows[index]
        sums[nodes[index]] = priorities[index]
        if lows is not None:
            lows[nodes[index]] = priorities[index] if priorities[index] > 0 else np.inf
    climb(sums, lows, nodes)


@njit
def climb(sums, lows, nodes):
    """Bring up to date what is above these leaves, level by level, so that their memory reads overlap; `nodes` is used
    up. From where a level has fewer nodes than that, all of them."""
    if not nodes.size:
        return
    while nodes[0] > max(nodes.size, 1):
        for index in range(nodes.size):
            node = nodes[index] >> 1
            nodes[index] = node
            sums[node] = sums[2 * node] + sums[2 * node + 1]
            if lows is not None:
                lows[node] = min(lows[2 * node], lows[2 * node + 1])
    level = 1
    while 2 * level <= nodes[0]:
        level *= 2
    for node in range(level - 1, 0, -1):
        sums[node] = sums[2 * node] + sums[2 * node + 1]
        if lows is not None:
            lows[node] = min(lows[2 * node], lows[2 * node + 1])


@njit
def notice(sums, lows, known, highest, head, tail, slots, history):
    """Let rows written since the last call enter, and empty the slots between each head and tail, whose rows left."""
    envs = head.size
    for env in range(envs):
        if known[env] == head[env]:
            continue
        for t in range(max(known[env], tail[env]), head[env] + 1 + history):
            set_leaf(sums, lows, t % slots * envs + env, highest[0] if t < head[env] else 0.0)
        known[env] = head[env]


@njit
def draw_by_priority(sums, lows, head, slots, uniforms, newest, beta, ids, weight):
    envs = head.size
    leaves = sums.size // 2
    depth = 0
    while 1 << depth < leaves:
        depth += 1
    count = ids.size
    stratum = sums[1] / count
    nodes, left_over = ids, uniforms  # all draws go down the tree level by level, so that their memory reads overlap
    for index in range(count):
        nodes[index] = 1
        left_over[index] = (index + uniforms[index]) * stratum
    for _ in range(depth):
        for index in range(count):
            node = 2 * nodes[index]
            right = (left_over[index] >= sums[node]) & (sums[node + 1] > 0)  # rounding must not reach an empty leaf
            left_over[index] -= right * sums[node]
            nodes[index] = node + right
    rows = np.empty(count, np.int64)
    for index in range(count):
        row = nodes[index] - leaves
        slot = row // envs
        env = row - slot * envs
        newest_t = head[env] - 1
        age = newest_t % slots - slot
        ids[index] = (newest_t - (age if age >= 0 else age + slots)) * envs + env
        rows[index] = row
    for index in range(min(newest.size, count)):
        own = newest[index]
        ids[count - 1 - index] = own
        rows[count - 1 - index] = own // envs % slots * envs + own % envs
    # (size * P)^-beta / its maximum: size and the total cancel, what is left is (lowest priority / priority)^beta.
    lowest = np.inf
    for index in range(count):
        lowest = min(lowest, sums[leaves + rows[index]])
    if lows is not None:
        lowest = lows[1]
    for index in range(count):
        weight[index] = (lowest / sums[leaves + rows[index]]) ** beta


@njit
def set_by_error(sums, lows, highest, head, tail, slots, ids, errors, alpha, epsilon):
    """-1, or the place of the first error that is not finite; then nothing was changed."""
    for index in range(errors.size):
        if not abs(errors[index]) < np.inf:
            return index
    envs, leaves = head.size, sums.size // 2
    nodes = np.empty(ids.size, np.int64)
    count = 0
    for index in range(ids.size):
        t = ids[index] // envs
        env = ids[index] - t * envs
        if tail[env] <= t < head[env]:
            priority = min((abs(errors[index]) + epsilon) ** alpha, MOST)
            node = leaves + t % slots * envs + env
            sums[node] = priority
            if lows is not None:
                lows[node] = priority if priority > 0 else np.inf
            nodes[count] = node
            count += 1
            highest[0] = max(highest[0], priority)
    climb(sums, lows, nodes[:count])
    return -1
