"""Goals of a line: the observation is a place, the goal another one. Gamma is one half."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.memory import make_memory
from slm_lab.errors import EmptyMemory, InvalidMemorySpec, InvalidRow

PLACE = spaces.Box(-1000, 1000, (1,), np.float64)
GOALS = spaces.Dict(observation=PLACE, achieved_goal=PLACE, desired_goal=PLACE)
FAR = 777.0  # the goal that nobody reaches


def reward_of(achieved, desired, infos):
    """-1, and 0 at the goal."""
    assert len(infos) == len(achieved)
    return -(np.abs(achieved - desired)[:, 0] > 0.5).astype(np.float64)


def at_goal(achieved, desired, infos):
    return np.abs(achieved - desired)[:, 0] <= 0.5


def make(max_size=100, num_envs=1, seed=0, space=GOALS, **keys):
    block = {"name": "HindsightReplay", "max_size": max_size, "batch_size": 1, **keys}
    return make_memory(
        block,
        space,
        spaces.Discrete(2),
        num_envs,
        gamma=0.5,
        seed=seed,
        compute_reward=reward_of,
        compute_terminated=at_goal,
    )


def observation(places):
    places = np.asarray(places, np.float64)[:, None]
    return {"observation": places, "achieved_goal": places, "desired_goal": np.full_like(places, FAR)}


def walk(memory, start, steps, end="truncated", reward=-1.0):
    """An episode of one env: `start`, `start` + 1, …; `end` is None where it goes on."""
    for step in range(steps):
        last = step == steps - 1
        flags = [np.array([last and end == flag]) for flag in ("terminated", "truncated")]
        place = start + step
        memory.add(observation([place]), np.array([0]), np.array([reward]), *flags, observation([place + 1]))


def pairs(batch):
    """(place, goal) of each row."""
    return list(zip(batch.obs["achieved_goal"][:, 0].tolist(), batch.obs["desired_goal"][:, 0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("strategy", "goals"),
    [
        ("future", {0: {1, 2, 3}, 1: {2, 3}, 2: {3}}),
        ("final", {0: {3}, 1: {3}, 2: {3}}),
        ("episode", {0: {1, 2, 3}, 1: {1, 2, 3}, 2: {1, 2, 3}}),
    ],
)
def test_goals_are_what_the_strategy_says(strategy, goals):
    memory = make(strategy=strategy, goals_per_step=9)
    walk(memory, 0, 3)
    walk(memory, 50, 2)
    found = {place: set() for place in goals}
    for place, goal in pairs(memory.sample(400)):
        if place < 50 and goal != FAR:
            found[place].add(goal)
    assert found == goals


def test_the_goal_is_replaced_in_obs_and_next_obs_alike_and_nothing_else_is():
    memory = make()
    walk(memory, 0, 5)
    batch = memory.sample(200)
    assert torch.equal(batch.obs["desired_goal"], batch.next_obs["desired_goal"])
    for part in ("observation", "achieved_goal"):
        assert torch.equal(batch.next_obs[part], batch.obs[part] + 1)


def test_the_reward_follows_from_the_new_goal_and_the_place_that_was_reached():
    memory = make()
    walk(memory, 0, 5, reward=-3.0)  # as recorded; relabelled rows have -1 or 0
    batch = memory.sample(300)
    goal, reached = batch.obs["desired_goal"][:, 0], batch.next_obs["achieved_goal"][:, 0]
    relabelled = goal != FAR
    assert torch.equal(batch.reward[relabelled], -(goal != reached)[relabelled].float())
    assert (batch.reward[~relabelled] == -3).all()
    assert set(batch.reward.tolist()) == {-3.0, -1.0, 0.0}


@pytest.mark.parametrize("k", [0, 1, 4])
def test_a_share_of_k_in_k_plus_1_rows_is_relabelled(k):
    memory = make(goals_per_step=k)
    walk(memory, 0, 5)
    share = np.mean([goal != FAR for _, goal in pairs(memory.sample(10_000))])
    assert share == pytest.approx(k / (k + 1), abs=0.015 if k else 0)  # 3 standard deviations


def test_what_is_stored_stays_as_it_was():
    memory = make()
    walk(memory, 0, 5, "terminated")
    before = memory.state_dict()["ring"]
    memory.sample(100)
    after = memory.state_dict()["ring"]
    assert (before["rows"] == after["rows"]).all()
    assert (before["finals"] == after["finals"]).all()
    assert memory.all().obs["desired_goal"].unique().tolist() == [FAR]


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_come_from_the_surviving_rows_of_the_same_episode(strategy):
    """After the wrap, of the episode 0 … 5 only its last two rows are left, then 100 … 102, then 200 goes on."""
    memory = make(max_size=7, strategy=strategy, goals_per_step=9)
    walk(memory, 0, 6)
    walk(memory, 100, 3)
    walk(memory, 200, 2, end=None)
    rows = pairs(memory.sample(500))
    assert {place for place, _ in rows} == {4, 5, 100, 101, 102, 200, 201}
    for place, goal in rows:
        if goal != FAR:
            first, last = {0: (5, 6), 1: (101, 103), 2: (201, 202)}[place // 100]
            first = last if strategy == "final" else place + 1 if strategy == "future" else first
            assert first <= goal <= last


def test_goals_do_not_cross_envs_or_cuts():
    memory = make(num_envs=2, goals_per_step=9)
    no = np.zeros(2, bool)
    for step in range(4):
        start = np.array([0, 50]) + step + (20 if step >= 2 else 0)  # both envs begin elsewhere after two rows
        memory.add(observation(start), np.zeros(2, int), -np.ones(2), no, no, observation(start + 1))
    for place, goal in pairs(memory.sample(500)):
        assert goal == FAR or (goal // 10 == place // 10 and goal > place)


def test_termination_follows_the_new_goal_where_a_done_fn_is_given():
    memory = make(done_fn="env", goals_per_step=9)
    walk(memory, 0, 5, "terminated")
    batch = memory.sample(300)
    goal, reached = batch.obs["desired_goal"][:, 0], batch.next_obs["achieved_goal"][:, 0]
    relabelled = goal != FAR
    expected = torch.where(goal == reached, 0.0, 0.5)  # the last row too leads on where its goal was not reached
    assert torch.equal(batch.discount[relabelled], expected[relabelled])


def test_termination_stays_as_recorded_without_a_done_fn():
    memory = make(goals_per_step=9)
    walk(memory, 0, 5, "terminated")
    batch = memory.sample(300)
    assert torch.equal(batch.discount == 0, batch.obs["observation"][:, 0] == 4)


@pytest.mark.parametrize(
    ("place", "goal", "done_fn", "row"),
    [  # reward, discount, steps, next place
        (0, 4, None, (-1 - 0.5 - 0.25, 0.125, 3, 3)),
        (0, 3, None, (-1 - 0.5 + 0, 0.125, 3, 3)),
        (0, 2, None, (-1 + 0 - 0.25, 0.125, 3, 3)),  # passes the goal and goes on
        (0, 2, "env", (-1 + 0, 0.0, 2, 2)),  # the new goal ends the horizon
        (0, 1, "env", (0, 0.0, 1, 1)),
        (2, 4, None, (-1 + 0, 0.25, 2, 4)),  # the episode ends it
        (2, 4, "env", (-1 + 0, 0.0, 2, 4)),
        (3, 4, "env", (0, 0.0, 1, 4)),
    ],
)
def test_n_step_rewards_are_those_of_every_step_of_the_horizon(place, goal, done_fn, row):
    memory = make(n_step=3, done_fn=done_fn, goals_per_step=9)
    walk(memory, 0, 4)
    batch = memory.sample(300)
    index = pairs(batch).index((place, goal))
    assert batch.next_obs["desired_goal"][index].item() == goal
    values = (batch.reward, batch.discount, batch.steps, batch.next_obs["achieved_goal"])
    assert tuple(value[index].item() for value in values) == row


def test_discounts_of_the_env_s_own_count_in_relabelled_horizons():
    memory = make(n_step=2, goals_per_step=9)
    no = np.array([False])
    for place, discount in ((0, 0.5), (1, 1.0)):
        memory.add(observation([place]), [0], -np.ones(1), no, no, observation([place + 1]), discount=[discount])
    batch = memory.sample(200)
    index = pairs(batch).index((0, 1))
    assert (batch.reward[index].item(), batch.discount[index].item()) == (0 - 0.25, 0.5 * 0.5 * 0.5)


FLAT = spaces.Box(-1000, 1000, (4,), np.float32)  # noise, place, goal, noise


@pytest.mark.parametrize(
    ("achieved", "desired"), [([1, 2], [2, 3]), ({"indices": [1]}, {"indices": [2]}), ([1, 2], {"indices": [2]})]
)
def test_goals_in_a_flat_observation_go_by_their_indices(achieved, desired):
    memory = make(space=FLAT, achieved=achieved, desired=desired, goals_per_step=9)
    no = np.array([False])

    def flat(place):
        return np.array([[5, place, FAR, 6]], np.float32)

    for place in range(3):
        memory.add(flat(place), np.array([0]), -np.ones(1), no, no, flat(place + 1))
    batch = memory.sample(200)
    assert set(map(tuple, batch.obs[:, [0, 3]].tolist())) == {(5, 6)}
    goals = batch.obs[:, 2]
    assert set(goals.tolist()) == {1, 2, 3, FAR}
    assert torch.equal(goals, batch.next_obs[:, 2])
    assert torch.equal(batch.reward == 0, batch.next_obs[:, 1] == goals)


def test_several_indices_keep_their_order():
    memory = make(
        space=spaces.Box(-1000, 1000, (4,), np.float32),
        achieved={"indices": [2, 0]},
        desired={"indices": [1, 3]},
        reward_fn="sparse",
        distance_threshold=0.1,
        goals_per_step=9,
    )
    no = np.array([False])
    first, then = np.array([[1, 0, 2, 0]], np.float32), np.array([[3, 0, 4, 0]], np.float32)
    memory.add(first, np.array([0]), -np.ones(1), no, no, then)
    batch = memory.sample(50)
    relabelled = batch.reward == 0
    assert relabelled.any()
    assert batch.obs[relabelled].unique(dim=0).tolist() == [[1, 4, 2, 3]]


def test_sparse_rewards_need_no_env():
    block = {
        "reward_fn": "sparse",
        "done_fn": "sparse",
        "distance_threshold": 1.0,
        "goals_per_step": 9,
        "batch_size": 1,
    }
    memory = make_memory({"name": "HindsightReplay", **block}, GOALS, spaces.Discrete(2), gamma=0.5)
    walk(memory, 0, 5)
    batch = memory.sample(300)
    near = (batch.next_obs["achieved_goal"] - batch.obs["desired_goal"]).abs()[:, 0] <= 1
    assert torch.equal(batch.reward, near.float() - 1)
    assert torch.equal(batch.discount, torch.where(near, 0.0, 0.5))


def test_a_function_of_the_user_s_own_is_named_by_module_and_name(monkeypatch):
    module = types.ModuleType("my_goals")
    module.reward = lambda achieved, desired, infos: 10 * achieved[:, 0] + desired[:, 0]
    monkeypatch.setitem(sys.modules, "my_goals", module)
    memory = make(reward_fn="my_goals:reward", goals_per_step=9)
    walk(memory, 0, 2)
    batch = memory.sample(50)
    assert batch.reward[pairs(batch).index((0, 2))].item() == 12


def test_a_function_written_for_one_pair_is_asked_for_each(monkeypatch):
    module = types.ModuleType("my_goals")
    module.reward = lambda achieved, desired, info: 0.0 if float(np.linalg.norm(achieved - desired)) < 0.5 else -1.0
    monkeypatch.setitem(sys.modules, "my_goals", module)
    memory = make(reward_fn="my_goals:reward", goals_per_step=9)
    walk(memory, 0, 4)
    batch = memory.sample(100)
    reached = (batch.next_obs["achieved_goal"] == batch.obs["desired_goal"])[:, 0]
    assert torch.equal(batch.reward == 0, reached)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda a, d, i: np.zeros((3, 2)), "reward_fn: gave (3, 2) for"),
        (lambda a, d, i: np.full(len(a), np.nan), "reward_fn: gave nan; it must be finite"),
    ],
)
def test_an_answer_that_is_no_reward_is_refused(monkeypatch, answer, message):
    module = types.ModuleType("my_goals")
    module.reward = answer
    monkeypatch.setitem(sys.modules, "my_goals", module)
    memory = make(reward_fn="my_goals:reward", goals_per_step=9)
    walk(memory, 0, 4)
    with pytest.raises(InvalidRow) as caught:
        memory.sample(50)
    assert str(caught.value).startswith(message)


def test_prioritized_rows_are_drawn_by_priority_and_relabelled():
    memory = make(prioritized=True, alpha=1.0, epsilon=1e-9)
    walk(memory, 0, 4)
    memory.update_priorities(memory.ring.ids(), np.array([0, 0, 1, 0]))
    batch = memory.sample(100)
    assert batch.obs["observation"].unique().tolist() == [2]
    assert {goal for _, goal in pairs(batch)} == {3, 4, FAR}


def test_a_reset_or_resized_memory_takes_its_goals_from_what_is_left():
    memory = make(goals_per_step=9)
    walk(memory, 0, 6, end=None)
    memory.sample(10)
    memory.resize(3)
    assert {goal for _, goal in pairs(memory.sample(300))} == {4, 5, 6, FAR}
    memory.reset()
    with pytest.raises(EmptyMemory):
        memory.sample()
    walk(memory, 50, 2)
    assert {goal for _, goal in pairs(memory.sample(300))} == {51, 52, FAR}


def test_a_loaded_memory_draws_the_same_rows_and_goals():
    memory, other = make(max_size=9, strategy="episode"), make(max_size=9, strategy="episode", seed=1)
    for episode in range(5):
        walk(memory, 100 * episode, 4)
    memory.sample(3)
    other.load_state_dict(memory.state_dict())
    a, b = memory.sample(50), other.sample(50)
    assert pairs(a) == pairs(b)
    assert torch.equal(a.reward, b.reward)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"alpha": 0.9}, "alpha"),
        ({"achieved": [0, 1]}, "achieved and desired are both parts of a Dict observation or both places in a flat"),
        ({"achieved": "desired_goal"}, "achieved and desired are the same place: every goal would be reached at once"),
        (
            {"distance_threshold": 0.2},
            "distance_threshold is for reward_fn or done_fn 'sparse', and neither of them is",
        ),
        ({"reward_fn": "dense"}, "reward_fn: 'dense' is none of 'env', 'sparse' and 'module:function'"),
        ({"reward_fn": "nowhere:reward"}, "reward_fn: cannot import reward_fn 'nowhere:reward': ModuleNotFoundError"),
        (
            {"achieved": "goal"},
            "achieved: goal is not there; the observation has the parts observation, achieved_goal",
        ),
        ({"frame_stack": 4}, "frame_stack stores each frame once, so that a goal in it cannot be replaced; use 1"),
        ({"strategy": "past"}, "strategy: "),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(keys, message):
    with pytest.raises(InvalidMemorySpec) as caught:
        make(**keys)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ([3, 5], "achieved: [3, 5] does not fit an observation of 4 numbers"),
        ([2, 2], "achieved: [2, 2] does not fit"),
        ({"indices": [-1]}, "achieved: indices [-1] does not fit"),
        ([0, 2], "desired: has shape (1,), and achieved (2,): they must be alike"),
        ("goal", "achieved and desired are both"),
    ],
)
def test_places_that_a_flat_observation_does_not_have_are_refused(place, message):
    with pytest.raises(InvalidMemorySpec) as caught:
        make(space=FLAT, achieved=place, desired=[2, 3])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("achieved", "desired", "message"),
    [
        ([0, 2], [1, 3], "desired: shares numbers with achieved, which a goal that is put there would change"),
        ({"indices": [3, 0]}, [2, 4], "desired: shares numbers with achieved"),
        ({"indices": [1, 1]}, [2, 4], "achieved: indices [1, 1] names a number of the observation twice"),
        ([0, 2], {"indices": [3, 3]}, "desired: indices [3, 3] names a number of the observation twice"),
    ],
)
def test_goals_that_overlap_or_repeat_themselves_are_refused(achieved, desired, message):
    with pytest.raises(InvalidMemorySpec) as caught:
        make(space=FLAT, achieved=achieved, desired=desired)
    assert message in str(caught.value)


def test_an_env_without_the_function_is_refused():
    with pytest.raises(InvalidMemorySpec) as caught:
        make_memory({"name": "HindsightReplay"}, GOALS, spaces.Discrete(2))
    assert "reward_fn: 'env' was given, but this env has no compute_reward" in str(caught.value)


def test_sequences_of_relabelled_rows_are_refused():
    memory = make()
    walk(memory, 0, 3)
    with pytest.raises(InvalidMemorySpec):
        memory.sample(sequence_length=2)
