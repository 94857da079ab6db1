"""Relabelled rows against a slow memory of plain lists, over random ends, cuts, wraps, envs and horizons."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from slm_lab.agent.memory import make_memory

FLAT = spaces.Box(-np.inf, np.inf, (2,), np.float32)  # the place, the goal
EVENTS = st.sampled_from(["go", "go", "go", "terminate", "truncate", "cut"])
FAR = -1.0


def horizon(rows, t, goal, n, gamma, done):
    """(reward, discount, steps, next place) of row t with this goal: 0 where the place reached is at most 1 from it."""
    total, factor = 0.0, 1.0
    for steps in range(1, n + 1):
        row = rows[t + steps - 1]
        at_goal = abs(row["next"] - goal) <= 1
        total += factor * (0.0 if at_goal else -1.0)
        factor *= gamma
        over = at_goal if done else row["terminated"]
        if over or row["last"] or t + steps == len(rows):
            break
    return total, 0.0 if over else factor, steps, row["next"]


@settings(max_examples=60, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    slots=st.integers(1, 7),
    events=st.lists(st.tuples(EVENTS, EVENTS, EVENTS), min_size=1, max_size=25),
    n=st.integers(1, 4),
    strategy=st.sampled_from(["future", "final", "episode"]),
    done=st.booleans(),
    prioritized=st.booleans(),
    sample_every=st.integers(1, 25),
)
def test_every_relabelled_row_is_as_in_a_slow_memory(
    num_envs, slots, events, n, strategy, done, prioritized, sample_every
):
    block = {"achieved": [0, 1], "desired": [1, 2], "reward_fn": "sparse", "distance_threshold": 1.0, "batch_size": 1}
    block |= {"strategy": strategy, "done_fn": "sparse" if done else None, "prioritized": prioritized, "n_step": n}
    block |= {"name": "HindsightReplay", "max_size": slots * num_envs, "goals_per_step": 9}
    memory = make_memory(block, FLAT, spaces.Discrete(2), num_envs, gamma=0.5)
    slow: list[list[dict]] = [[] for _ in range(num_envs)]
    fresh = iter(range(0, 10**6, 2))
    place = [float(next(fresh)) for _ in range(num_envs)]
    for time, step in enumerate(events):
        after = [float(next(fresh)) for _ in range(num_envs)]
        kinds = step[:num_envs]
        for env, kind in enumerate(kinds):
            row = {"place": place[env], "next": after[env], "terminated": kind == "terminate", "last": kind != "go"}
            slow[env].append(row)
        terminated, truncated = (np.array([kind == end for kind in kinds]) for end in ("terminate", "truncate"))
        obs, next_obs = (np.array([[at, FAR] for at in places], np.float32) for places in (place, after))
        memory.add(obs, np.zeros(num_envs, int), -np.ones(num_envs), terminated, truncated, next_obs)
        place = [after[env] if kind == "go" else float(next(fresh)) for env, kind in enumerate(kinds)]
        if time % sample_every and time < len(events) - 1:
            continue
        batch = memory.sample(20)
        for index, write_id in enumerate(batch.ids.tolist()):
            rows, t = slow[write_id % num_envs], write_id // num_envs
            goal = batch.obs[index, 1].item()
            assert batch.obs[index, 0].item() == rows[t]["place"]
            assert batch.next_obs[index, 1].item() == goal
            if goal == FAR:
                continue
            first = last = t
            while not rows[last]["last"] and last + 1 < len(rows):
                last += 1
            while first > max(0, len(rows) - slots) and not rows[first - 1]["last"]:
                first -= 1
            first = {"future": t, "final": last, "episode": first}[strategy]
            assert goal in {row["next"] for row in rows[first : last + 1]}
            told = (batch.reward, batch.discount, batch.steps, batch.next_obs[:, 0])
            got = tuple(value[index].item() for value in told)
            assert got == pytest.approx(horizon(rows, t, goal, n, 0.5, done))
