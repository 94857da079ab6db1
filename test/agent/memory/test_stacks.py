"""Observations that are stacks of frames: each frame is held once, every stack is read as the env gave it."""

from __future__ import annotations

from collections import deque

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.memory import make_memory
from slm_lab.errors import InvalidMemorySpec, InvalidRow

STACKS = spaces.Box(0, 255, (3, 2), np.uint8)


class StackedEnv:
    """Frame numbers 1, 2, 3, ... in stacks of three; at a reset the first frame is repeated, as gymnasium does."""

    def __init__(self):
        self.number = 0
        self.reset()

    def frame(self):
        self.number += 1
        return self.number % 256

    def reset(self):
        self.frames = deque([self.frame()] * 3, maxlen=3)
        return self.obs()

    def step(self):
        self.frames.append(self.frame())
        return self.obs()

    def obs(self):
        return np.array([[[frame, 255 - frame] for frame in self.frames]], np.uint8)


def walk(memory, ends: str):
    """A row for each letter of `ends`: `t` terminated, `r` truncated, `.` going on; and what went in."""
    env = StackedEnv()
    obs, given = env.obs(), []
    for letter in ends:
        after = env.step()
        memory.add(obs, np.array([0]), np.array([1.0]), np.array([letter == "t"]), np.array([letter == "r"]), after)
        given.append((obs[0], after[0]))
        obs = after if letter == "." else env.reset()
    return given


def make(name="Replay", size=50, **keys):
    if name not in ("OnPolicyReplay", "OnPolicyBatchReplay"):
        keys = {"max_size": size, "batch_size": 1, **keys}
    return make_memory({"name": name, "frame_stack": 3, **keys}, STACKS, spaces.Discrete(2), gamma=0.5)


@pytest.mark.parametrize("ends", ["......", "t.rr..t...", "..t..r.", "....t"])
@pytest.mark.parametrize("size", [50, 4, 1])
def test_stacks_are_as_the_env_gave_them_at_every_boundary_and_after_the_wrap(ends, size):
    memory = make(size=size)
    given = walk(memory, ends)[-size:]
    batch = memory.all()
    assert batch.obs.shape == (len(given), 3, 2)
    assert np.array_equal(batch.obs, [obs for obs, _ in given])
    assert np.array_equal(batch.next_obs, [after for _, after in given])


def test_stack_after_n_steps_ends_with_the_frame_that_they_led_to():
    memory = make()
    given = walk(memory, "...t...")
    batch = memory.view.read(memory.ring.ids(), 3)
    assert np.array_equal(batch.next_obs, [given[row][1] for row in (2, 3, 3, 3, 6, 6, 6)])


def test_windows_of_stacks_are_the_stacks_of_their_rows():
    memory = make("SequenceReplay", sequence_length=3)
    given = walk(memory, "...t...")
    batch = memory.windows.read(np.array([1, 3]), 3)
    assert np.array_equal(batch.obs, [[given[row][0] for row in rows] for rows in ([1, 2, 3], [3, 3, 3])])
    assert np.array_equal(batch.next_obs[0], [given[row][1] for row in (1, 2, 3)])


@pytest.mark.parametrize("how", ["state", "resize", "drain", "reset"])
def test_oldest_rows_keep_the_frames_before_them(how):
    memory = make("OnPolicyBatchReplay") if how == "drain" else make(size=4)
    copy = make(size=4)
    env = StackedEnv()
    given = []
    for _ in range(9):
        obs = env.obs()
        after = env.step()
        if len(given) == 6:
            if how == "state":
                copy.load_state_dict(memory.state_dict())
                memory = copy
            elif how == "resize":
                memory.resize(3)
            elif how == "drain":
                memory.drain()
            else:
                memory.reset()
        memory.add(obs, np.array([0]), np.array([1.0]), np.array([False]), np.array([False]), after)
        given.append((obs[0], after[0]))
    batch = memory.all()
    kept = given[-len(batch.reward) :]
    assert len(kept) == {"state": 4, "resize": 3, "drain": 3, "reset": 3}[how]
    assert np.array_equal(batch.obs, [obs for obs, _ in kept])
    assert np.array_equal(batch.next_obs, [after for _, after in kept])


def test_priorities_of_rows_that_left_do_not_linger_where_frames_are_kept():
    memory = make("PrioritizedReplay", size=4)
    walk(memory, "." * 11)
    priorities = memory.sampler.priorities
    assert priorities.held().tolist() == [1] * 4
    assert priorities.sums[1] == 4
    assert set(memory.sample(64).ids.tolist()) == {7, 8, 9, 10}


def test_image_row_holds_one_frame():
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    memory = make_memory({"name": "Replay", "frame_stack": 4, "max_size": 100}, space, spaces.Discrete(6))
    assert memory.describe()["bytes_per_row"] <= 7300
    assert memory.max_size == 100


def test_observations_that_are_no_stacks_of_so_many_frames_are_refused():
    with pytest.raises(InvalidMemorySpec, match=r"frame_stack: 4, but obs has shape \(3, 2\); its first axis must be"):
        make_memory({"frame_stack": 4}, STACKS, spaces.Discrete(2))
    with pytest.raises(InvalidRow, match=r"obs: shape \(1, 2\) was given, \(1, 3, 2\) is needed"):
        make().validate(
            {
                "obs": np.zeros((1, 2), np.uint8),
                "action": [0],
                "reward": [0.0],
                "terminated": [False],
                "truncated": [False],
                "next_obs": np.zeros((1, 3, 2), np.uint8),
            }
        )


def test_stacks_of_gymnasiums_own_wrapper_are_given_back_as_they_were():
    env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), 4)
    memory = make_memory({"frame_stack": 4, "max_size": 40}, env.observation_space, env.action_space)
    obs, _ = env.reset(seed=0)
    given = []
    for step in range(120):
        action = step // 3 % 2
        after, reward, terminated, truncated, _ = env.step(action)
        memory.add(obs[None], np.array([action]), [reward], [terminated], [truncated], after[None])
        given.append((obs, after))
        obs = env.reset()[0] if terminated or truncated else after
    batch = memory.all()
    assert np.array_equal(batch.obs, [obs for obs, _ in given[-40:]])
    assert np.array_equal(batch.next_obs, [after for _, after in given[-40:]])
