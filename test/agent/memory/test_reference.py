from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from slm_lab.agent.memory import make_memory

BOX, TWO = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2)
# continue, terminate, truncate, go on from elsewhere (a cut)
EVENTS = st.sampled_from(["go", "go", "go", "go", "terminate", "truncate", "cut"])


class Reference:
    """Rows of one-number observations; `slots` rows for each env."""

    def __init__(self, slots: int, num_envs: int, gamma: float):
        self.slots, self.gamma = slots, gamma
        self.rows: list[list[dict]] = [[] for _ in range(num_envs)]

    def add(self, env: int, obs: float, action: int, reward: float, terminated: bool, truncated: bool, next_obs: float):
        rows = self.rows[env]
        row = {
            "obs": obs,
            "action": action,
            "reward": reward,
            "next_obs": next_obs,
            "terminated": terminated,
            "linked": False,
        }
        row["ended"] = terminated or truncated
        if rows and not rows[-1]["ended"] and rows[-1]["next_obs"] == obs:
            rows[-1]["linked"] = True
        rows.append(row)

    def held(self, env: int) -> range:
        return range(max(0, len(self.rows[env]) - self.slots), len(self.rows[env]))

    def transition(self, env: int, t: int, n: int) -> dict:
        """The row over up to n steps."""
        rows = self.rows[env]
        reward, factor, steps = 0.0, 1.0, 0
        while True:
            last = rows[t + steps]
            reward += factor * last["reward"]
            factor *= self.gamma
            steps += 1
            if steps == n or not last["linked"]:
                break
        discount = 0.0 if last["terminated"] else factor
        first = rows[t]
        return {
            "obs": first["obs"],
            "action": first["action"],
            "reward": reward,
            "next_obs": last["next_obs"],
            "discount": discount,
            "steps": steps,
        }


@settings(max_examples=60, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    slots=st.integers(1, 7),
    events=st.lists(st.tuples(EVENTS, EVENTS, EVENTS), min_size=1, max_size=25),
    n=st.integers(1, 5),
    reload_after=st.integers(0, 25),
)
def test_every_row_reads_as_in_a_slow_memory_of_plain_lists(num_envs, slots, events, n, reload_after):
    def fresh():
        return make_memory(
            {"name": "Replay", "max_size": slots * num_envs, "batch_size": 1}, BOX, TWO, num_envs=num_envs, gamma=0.5
        )

    memory, slow = fresh(), Reference(slots, num_envs, gamma=0.5)
    fresh_number = iter(range(10**6))
    obs = [float(next(fresh_number)) for _ in range(num_envs)]
    for time, step in enumerate(events):
        if time == reload_after:
            tree = memory.state_dict()
            memory = fresh()
            memory.load_state_dict(tree)
        next_obs = [float(next(fresh_number)) for _ in range(num_envs)]
        reward = [float(2 ** (time % 5) + env) for env in range(num_envs)]
        action = [(time + env) % 2 for env in range(num_envs)]
        ended = step[:num_envs]
        terminated, truncated = [e == "terminate" for e in ended], [e == "truncate" for e in ended]
        for env in range(num_envs):
            slow.add(env, obs[env], action[env], reward[env], terminated[env], truncated[env], next_obs[env])
        memory.add(
            np.array(obs, np.float32)[:, None],
            np.array(action),
            np.array(reward),
            np.array(terminated),
            np.array(truncated),
            np.array(next_obs, np.float32)[:, None],
        )
        obs = [next_obs[env] if ended[env] == "go" else float(next(fresh_number)) for env in range(num_envs)]

    ids = memory.ring.ids()
    assert ids.tolist() == [t * num_envs + env for env in range(num_envs) for t in slow.held(env)]
    assert memory.size == ids.size
    batch = memory.view.read(ids, n)
    for place, write_id in enumerate(ids):
        expected = slow.transition(write_id % num_envs, write_id // num_envs, n)
        got = {key: getattr(batch, key)[place].item() for key in expected}
        assert got == pytest.approx(expected)
    drawn = memory.sample(8, n_step=n)
    assert set(drawn.ids.tolist()) <= set(ids.tolist())
