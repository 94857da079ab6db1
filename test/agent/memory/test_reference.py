"""Every row, horizon, window and stack, against a slow memory of plain lists, over random runs."""

from __future__ import annotations

from collections import deque

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from slm_lab.agent.memory import make_memory
from slm_lab.agent.memory.window import Windows

GAMMA = 0.5
# continue, terminate, truncate, go on from elsewhere (a cut), go on with rows of another source
EVENTS = st.sampled_from(["go", "go", "go", "go", "terminate", "truncate", "cut", "source"])


class Reference:
    """Rows as dicts; `slots` of each env are held."""

    def __init__(self, slots: int, num_envs: int):
        self.slots = slots
        self.rows: list[list[dict]] = [[] for _ in range(num_envs)]
        self.oldest = [0] * num_envs

    def add(self, env: int, row: dict) -> None:
        rows = self.rows[env]
        if rows:
            last = rows[-1]
            goes_on = not (last["terminated"] or last["truncated"]) and last["next_obs"][-1] == row["obs"][-1]
            last["linked"] = goes_on and last["source"] == row["source"]
        rows.append({**row, "linked": False})
        self.resize(self.slots)

    def resize(self, slots: int) -> None:
        self.slots = slots
        self.oldest = [max(old, len(rows) - slots) for old, rows in zip(self.oldest, self.rows, strict=True)]

    def reset(self) -> None:
        self.oldest = [len(rows) for rows in self.rows]

    def held(self, env: int) -> range:
        return range(self.oldest[env], len(self.rows[env]))

    def transition(self, env: int, t: int, n: int) -> dict:
        """The row over up to n steps."""
        rows = self.rows[env]
        reward, factor, steps = 0.0, 1.0, 0
        while True:
            last = rows[t + steps]
            reward += factor * last["reward"]
            factor *= GAMMA * last["discount"]
            steps += 1
            if steps == n or not last["linked"]:
                break
        return {
            "obs": rows[t]["obs"],
            "action": rows[t]["action"],
            "reward": reward,
            "next_obs": last["next_obs"],
            "discount": 0.0 if last["terminated"] else factor,
            "steps": steps,
        }

    def window(self, env: int, t: int, length: int, burn_in: int, stride: int, pad: bool) -> tuple[range, range]:
        """Rows that warm up, rows to learn from."""
        rows, begin, end = self.rows[env], t, t + 1
        while begin > self.oldest[env] and rows[begin - 1]["linked"]:
            begin -= 1
        while rows[end - 1]["linked"]:
            end += 1
        first = max(start for start in range(begin, t + 1) if start == begin or start % stride == 0)
        lacking = length - (end - first)
        if lacking > 0 and not pad:
            first = max(begin, first - lacking)
        return range(max(begin, first - burn_in), first), range(first, min(first + length, end))


def frames(stack: int):
    """Frame numbers that never repeat, and the stack that begins with one of them."""
    numbers = iter(range(1, 10**6))
    return lambda: deque([float(next(numbers))] * stack, maxlen=stack), lambda: float(next(numbers))


@settings(max_examples=150, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    slots=st.integers(1, 7),
    stack=st.integers(1, 3),
    events=st.lists(st.tuples(EVENTS, EVENTS, EVENTS), min_size=1, max_size=25),
    n=st.integers(1, 5),
    length=st.integers(1, 6),
    burn_in=st.integers(0, 3),
    stride=st.integers(1, 4),
    pad=st.booleans(),
    between=st.dictionaries(st.integers(0, 24), st.sampled_from(["reload", "reset", 1, 3, 9]), max_size=3),
)
def test_every_row_reads_as_in_a_slow_memory_of_plain_lists(
    num_envs, slots, stack, events, n, length, burn_in, stride, pad, between
):
    fresh_stack, fresh_number = frames(stack)
    space = spaces.Box(-np.inf, np.inf, (stack,), np.float32)

    def fresh():
        block = {"name": "Replay", "max_size": slow.slots * num_envs, "batch_size": 1, "frame_stack": stack}
        return make_memory(block, space, spaces.Discrete(2), num_envs=num_envs, gamma=GAMMA)

    slow = Reference(slots, num_envs)
    memory = fresh()
    obs = [fresh_stack() for _ in range(num_envs)]
    source = [0] * num_envs
    for time, step in enumerate(events):
        what = between.get(time)
        if what == "reload":
            tree = memory.state_dict()
            memory = fresh()
            memory.load_state_dict(tree)
        elif what == "reset":
            memory.reset()
            slow.reset()
        elif what is not None:
            memory.resize(what * num_envs)
            slow.resize(what)
        rows = []
        for env in range(num_envs):
            after = obs[env].copy()
            after.append(fresh_number())
            row = {"obs": list(obs[env]), "action": (time + env) % 2, "reward": float(2 ** (time % 5) + env)}
            row |= {"terminated": step[env] == "terminate", "truncated": step[env] == "truncate"}
            row |= {"next_obs": list(after), "discount": 1 / (1 + time % 2), "source": source[env]}
            slow.add(env, row)
            rows.append(row)
            if step[env] == "source":
                source[env] += 1
                obs[env] = deque([after[-1]] * stack, maxlen=stack)
            else:
                obs[env] = after if step[env] == "go" else fresh_stack()
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        columns |= {name: columns[name].astype(np.float32) for name in ("obs", "next_obs")}
        memory.add(**columns)

    ids = memory.ring.ids()
    assert ids.tolist() == [t * num_envs + env for env in range(num_envs) for t in slow.held(env)]
    assert memory.size == ids.size
    batch = memory.view.read(ids, n)
    windows = Windows(memory.view, burn_in, stride, pad).read(ids, length, n)
    for place, write_id in enumerate(ids):
        t, env = divmod(int(write_id), num_envs)
        expect(batch, place, slow.transition(env, t, n))
        burnt, learned = slow.window(env, t, length, burn_in, stride, pad)
        assert windows.extras["burn_in"][place] == len(burnt)
        real = len(burnt) + len(learned)
        assert windows.mask[place].tolist() == [len(burnt) <= at < real for at in range(burn_in + length)]
        for at, row in enumerate([*burnt, *learned]):
            expect(windows, (place, at), slow.transition(env, row, n))
        for at in range(real, burn_in + length):
            blank = {"reward": 0, "discount": 0, "steps": 0}
            expect(windows, (place, at), slow.transition(env, learned[-1], n) | blank)

    asked = slow.rows[0][-1]["source"]
    assert set(memory.sample(8, n_step=n, source=asked).extras["source"].tolist()) == {asked}
    assert set(memory.sample(8).ids.tolist()) <= set(ids.tolist())


def expect(batch, place, row: dict) -> None:
    got = {key: getattr(batch, key)[place].tolist() for key in row}
    assert got == row  # all numbers are sums of few powers of two: exact in float32
