"""An episode that an env lost: afterwards the memory is as if it had not been played."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.memory import make_memory, store
from slm_lab.errors import InvalidRow
from slm_lab.types import Lost, Step

MEMORIES = {
    "uniform": ("Replay", {"max_size": 30, "batch_size": 4}),
    "disk": ("Replay", {"max_size": 30, "batch_size": 4, "storage": "disk"}),
    "prioritized": ("PrioritizedReplay", {"max_size": 30, "batch_size": 4, "weight_max": "buffer"}),
    "sequences": ("SequenceReplay", {"max_size": 30, "batch_size": 4, "sequence_length": 3, "prioritized": True}),
    "combined": ("Replay", {"max_size": 30, "batch_size": 4, "use_cer": True}),
    "by the batch": ("PrioritizedReplay", {"max_size": 30, "batch_size": 4}),
    "episodes": ("NStepReplay", {"max_size": 30, "batch_size": 4, "n_step": 2, "sample_by": "episode"}),
    "model": ("ModelBasedReplay", {"batch_size": 4, "validation": 0.3}),
    "on-policy": ("OnPolicyBatchReplay", {}),
    "whole episodes": ("OnPolicyReplay", {}),
}


def step_of(obs, ended, lost=()):
    following = obs + 1
    return Step(
        following,
        following,
        obs[:, 0].astype(np.float64),
        ended,
        np.zeros_like(ended),
        lost=tuple(Lost(*o) for o in lost),
    )


def play(memory, first, last, without=(), lose_at=None, env=0):
    """Steps of two envs with episodes of 5 and of 7 steps; but for those that are `without`, as (env, t)."""
    for t in range(first, last):
        obs = np.array([[t], [100 + t]], np.float32)
        ended = np.array([t % 5 == 4, t % 7 == 6])
        if lose_at == t:
            memory.add_step(obs, np.zeros(2, np.int64), step_of(obs, ended, [(env, "the wheel came off")]))
            continue
        kept = [one for one in range(2) if (one, t) not in without]
        if len(kept) == 2:
            memory.add_step(obs, np.zeros(2, np.int64), step_of(obs, ended))
            continue
        for one in kept:
            here = slice(one, one + 1)
            step = step_of(obs[here], ended[here])
            rows = {"obs": obs[here], "action": np.zeros(1, np.int64), "reward": step.reward}
            ends = {"terminated": step.terminated, "truncated": step.truncated, "next_obs": step.next_obs}
            memory.add_rows(rows | ends, one)


def held(memory):
    memory.view.read(memory.ring.ids())
    batch = memory.view.read(memory.ring.ids(), 2)
    columns = (batch.obs[:, 0], batch.reward, batch.next_obs[:, 0], batch.discount, batch.steps)
    return [column.tolist() for column in columns]


def drawn(memory):
    return [] if memory.on_policy else [memory.sample().obs.tolist() for _ in range(20)]


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("before", [0, 10])
def test_the_rows_of_a_lost_episode_are_gone_and_all_else_is_as_if_they_had_never_been(lab, kind, before):
    name, keys = MEMORIES[kind]
    memory, other = (lab.make(name, 2, **keys) for _ in range(2))
    for one in (memory, other):
        play(one, 0, before)
        if kind == "prioritized":
            one.update_priorities(one.ring.ids(), np.arange(one.size) + 1.0)
    play(memory, before, before + 3)
    if kind == "prioritized":
        memory.sample()  # it has noticed the rows that are then taken back
        memory.rng, other.rng = np.random.default_rng(0), np.random.default_rng(0)
    play(memory, before + 3, before + 4, lose_at=before + 3)
    play(other, before, before + 4, without={(0, before + step) for step in range(4)})
    for _ in range(2):
        assert held(memory) == held(other)
        assert memory.ring.episodes == other.ring.episodes
        assert drawn(memory) == drawn(other)
        play(memory, before + 10, before + 12)
        play(other, before + 10, before + 12)


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_full_memory_that_loses_episode_after_episode_holds_true_rows_alone(lab, kind):
    name, keys = MEMORIES[kind]
    memory = lab.make(name, 2, **keys)
    lost = set()
    for start in range(0, 100, 10):
        env = start // 10 % 2
        began = start if env == 0 else (start + 2) // 7 * 7  # the episode that is lost in its step start + 2
        play(memory, start, start + 3, lose_at=start + 2, env=env)
        play(memory, start + 3, start + 10)
        lost |= {100 * env + t for t in range(began, start + 3)}
        obs, _, next_obs, _, _ = held(memory)
        assert not lost & set(obs)
        steps = memory.view.read(memory.ring.ids(), 2).steps.tolist()
        assert [after - before for before, after in zip(obs, next_obs, strict=True)] == steps
        drawn(memory)


def test_numbers_of_a_lost_episode(lab):
    memory = lab.make("PrioritizedReplay", 2, max_size=8, alpha=1.0, epsilon=1e-9)
    play(memory, 0, 3)
    memory.update_priorities(memory.ring.ids(), np.array([1.0, 2, 3, 4, 5, 6]))
    assert memory.drop_episode(0) == 3
    assert memory.size == 3
    assert memory.ring.ids().tolist() == [1, 3, 5]
    priorities = memory.sampler.priorities
    assert priorities.held() == pytest.approx([4, 5, 6])
    assert priorities.sums[1] == pytest.approx(15)
    assert memory.drop_episode(0) == 0
    play(memory, 5, 6)  # new rows enter at the highest priority, in the places of those that were dropped
    assert memory.ring.ids().tolist() == [0, 1, 3, 5, 7]
    assert priorities.held() == pytest.approx([6, 4, 5, 6, 6])
    assert set(memory.all().obs[:, 0].tolist()) == {5, 100, 101, 102, 105}


def test_an_episode_that_began_before_the_oldest_row_is_dropped_as_far_as_it_is_held(lab):
    memory = lab.make(max_size=4)
    for obs in range(6):
        lab.add(memory, obs)
    assert memory.drop_episode(0) == 4
    assert memory.size == 0
    lab.add(memory, 50)
    assert lab.read(memory) == [(50, 0, 51, 0.5, 1)]
    lab.add(memory, 51, terminated=True)
    assert memory.drop_episode(0) == 0  # one that ended is not lost


def test_what_was_saved_of_a_lost_episode_is_not_loaded_for_what_came_in_its_place(lab, tmp_path):
    memory, copy = lab.make(max_size=20), lab.make(max_size=20)
    lab.add(memory, 0, terminated=True)
    for obs in range(10, 14):
        lab.add(memory, obs)
    memory.save(tmp_path)
    memory.drop_episode(0)
    for obs in range(30, 36):
        lab.add(memory, obs)
    memory.save(tmp_path)
    copy.load(tmp_path)
    assert lab.read(copy) == lab.read(memory)
    assert [row[0] for row in lab.read(copy)] == [0, *range(30, 36)]


def test_the_newest_row_that_is_left_is_told_once(lab, tmp_path):
    memory, copy = lab.make(max_size=20), lab.make(max_size=20)
    lab.add(memory, 0, terminated=True)
    lab.add(memory, 10)
    memory.save(tmp_path)
    memory.drop_episode(0)
    memory.save(tmp_path)
    copy.load(tmp_path)
    assert lab.read(copy) == lab.read(memory) == [(0, 0, 1, 0, 1)]
    assert copy.ring.episodes == memory.ring.episodes == 1


def test_readers_hand_out_no_row_of_a_lost_episode(lab, tmp_path):
    keys = {"n_step": 1, "workers": 1, "fetch_every": 2, "batch_size": 8, "max_size": 40, "storage": "disk"}
    memory = lab.make("NStepReplay", **keys)
    try:
        lab.add(memory, 0, terminated=True)
        for obs in range(10, 20):
            lab.add(memory, obs)
        assert memory.sample().obs.max() >= 10  # and two more batches wait
        memory.drop_episode(0)
        for _ in range(4):
            assert set(memory.sample().obs[:, 0].tolist()) == {0}
    finally:
        memory.close()


def test_an_empty_memory_can_be_saved_and_loaded(lab, tmp_path):
    memory, copy = lab.make(max_size=20), lab.make(max_size=20)
    for obs in range(3):
        lab.add(memory, obs)
    memory.drop_episode(0)
    memory.save(tmp_path / "new" / "place")
    copy.load(tmp_path / "new" / "place")
    assert copy.size == 0


@pytest.mark.parametrize("weight_max", ["batch", "buffer"])
def test_rows_that_left_unnoticed_are_not_drawn_after_a_loss(lab, weight_max):
    memory = lab.make("PrioritizedReplay", max_size=8, batch_size=8, weight_max=weight_max)
    for obs in range(8):
        lab.add(memory, obs, terminated=obs == 4)
    memory.sample()
    for obs in range(8, 10):  # these are not noticed before they are taken back, nor that others left
        lab.add(memory, obs)
    assert memory.drop_episode(0) == 5
    for _ in range(20):
        assert set(memory.sample().obs[:, 0].tolist()) <= {2, 3, 4}
    assert memory.sampler.priorities.sums[1] == pytest.approx(3 * memory.sampler.priorities.highest[0])


def test_other_goals_come_from_the_episode_itself_after_a_loss():
    bits = spaces.Box(0, 1000, (1,), np.float32)
    space = spaces.Dict({"observation": bits, "achieved_goal": bits, "desired_goal": bits})
    block = {"name": "HindsightReplay", "max_size": 40, "batch_size": 32, "strategy": "final", "goals_per_step": 1000}
    memory = make_memory(block | {"reward_fn": "sparse"}, space, spaces.Discrete(2), 1, 0.5)

    def add(value, ended=False):
        def obs(number):
            column = np.full((1, 1), number, np.float32)
            return {"observation": column, "achieved_goal": column, "desired_goal": np.zeros((1, 1), np.float32)}

        memory.add(obs(value), [0], [0.0], [ended], [False], obs(value + 1))

    for value in range(100, 108):
        add(value)
    memory.sample()
    memory.drop_episode(0)
    for first in (200, 300, 400):
        for step in range(3):
            add(first + step, ended=step == 2)
    batch = memory.sample()
    began = batch.obs["observation"] // 100
    goal = batch.obs["desired_goal"]
    other = goal[:, 0] != 0
    assert other.any()
    assert (goal[other] == 100 * began[other] + 3).all()


def test_something_to_train_on_is_left(lab):
    for seed in range(40):
        memory = lab.make("ModelBasedReplay", 2, batch_size=4, validation=0.5, seed=seed)
        for obs in range(6):
            lab.add(memory, obs)
        memory.drop_episode(0)
        assert memory.ids_of("train").size > 0


def test_a_stack_does_not_go_on_from_frames_of_before(lab):
    frames = spaces.Box(0, 255, (3, 1), np.uint8)
    memory = make_memory(
        {"name": "Replay", "max_size": 4, "batch_size": 1, "frame_stack": 3}, frames, spaces.Discrete(2), 1, 0.5
    )

    def add(*stack):
        obs = np.array(stack, np.uint8).reshape(1, 3, 1)
        memory.add(obs, [0], [0.0], [False], [False], np.concatenate([obs[:, 1:], obs[:, -1:] + 1], 1))

    add(1, 1, 1)
    for newest in range(2, 9):
        add(*np.maximum([newest - 2, newest - 1, newest], 1))
    memory.drop_episode(0)
    oldest = memory.ring.head[0] + 1  # what the first row that was taken back showed
    add(oldest, oldest, oldest)
    assert memory.view.read(memory.ring.ids()).obs[0, :, 0].tolist() == [oldest] * 3


def test_a_row_that_does_not_fit_is_refused_before_anything_is_dropped(lab):
    memory = lab.make("Replay", 2, max_size=20)
    play(memory, 0, 3)
    before = held(memory)
    obs = np.array([[3.0], [103.0]], np.float32)
    step = step_of(obs, np.zeros(2, bool), [(0, "gone")])._replace(reward=np.array([0.0, np.nan]))
    with pytest.raises(InvalidRow):
        memory.add_step(obs, np.zeros(2, np.int64), step)
    assert held(memory) == before


def test_sources_are_those_of_each_env(lab):
    memory = lab.make("Replay", 2, max_size=20)
    obs = np.array([[3.0], [103.0]], np.float32)
    ended = np.zeros(2, bool)
    memory.add_step(obs, np.zeros(2, np.int64), step_of(obs, ended), source=[5, 6])
    memory.add_step(obs + 1, np.zeros(2, np.int64), step_of(obs + 1, ended, [(0, "gone")]), source=[5, 6])
    memory.add_step(obs + 2, np.zeros(2, np.int64), step_of(obs + 2, ended, [(1, "gone")]), source=5)
    assert memory.ring.from_source(memory.ring.ids(), 5).tolist() == memory.ring.ids().tolist() == [0]


def test_a_save_after_a_loss_writes_again_what_came_after_it_alone(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "CHUNK_BYTES", 64)
    memory, copy = lab.make(max_size=200), lab.make(max_size=200)
    for obs in range(150):
        lab.add(memory, obs, terminated=obs % 10 == 9)
    memory.save(tmp_path)
    files = {file.name for file in tmp_path.glob("rows_*")}
    for obs in range(150, 155):
        lab.add(memory, obs)
    memory.save(tmp_path)
    memory.drop_episode(0)
    for obs in range(250, 256):
        lab.add(memory, obs)
    memory.save(tmp_path)
    assert len(files & {file.name for file in tmp_path.glob("rows_*")}) >= len(files) - 1
    assert len(memory.saved.store.segments) > 2
    copy.load(tmp_path)
    assert lab.read(copy) == lab.read(memory)


def test_a_memory_that_was_saved_can_be_copied(lab, tmp_path):
    memory = lab.make(max_size=20)
    lab.add(memory, 0)
    lab.add(memory, 1)
    memory.save(tmp_path)
    assert lab.read(deepcopy(memory)) == lab.read(memory)
