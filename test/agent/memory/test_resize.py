"""A memory that is given more room, or less, goes on with its newest rows."""

from __future__ import annotations

import numpy as np
import pytest

from slm_lab.errors import InvalidMemorySpec


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("rows", [4, 11])
def test_smaller_memory_keeps_the_newest_rows_in_order(lab, num_envs, rows):
    memory, small = (lab.make(max_size=size * num_envs, num_envs=num_envs) for size in (8, 3))
    for obs in range(rows):
        for each in (memory, small):
            lab.add(each, [obs + 100 * env for env in range(num_envs)], reward=obs, terminated=obs % 3 == 1)
    memory.resize(3 * num_envs)
    for obs in range(rows, rows + 5):
        assert lab.read(memory, 2) == lab.read(small, 2)
        assert (memory.size, memory.max_size) == (small.size, small.max_size)
        for each in (memory, small):
            lab.add(each, [obs + 100 * env for env in range(num_envs)], reward=obs)


def test_larger_memory_keeps_all_and_has_room_for_more(lab):
    memory = lab.make(max_size=3)
    for obs in range(5):
        lab.add(memory, obs)
    memory.resize(6)
    assert [row[0] for row in lab.read(memory)] == [2, 3, 4]
    for obs in range(5, 10):
        lab.add(memory, obs)
    assert [row[0] for row in lab.read(memory)] == [4, 5, 6, 7, 8, 9]
    assert memory.all().end.tolist() == [False] * 5 + [True]


@pytest.mark.parametrize("size", [2, 9])
def test_priorities_stay_with_their_rows(lab, size):
    memory = lab.make("PrioritizedReplay", max_size=4, alpha=1.0, epsilon=1e-9, weight_max="buffer")
    for obs in range(6):
        lab.add(memory, obs)
    memory.update_priorities(np.arange(2, 6), np.array([8.0, 1, 2, 4]))
    memory.resize(size)
    assert memory.sampler.priorities.held().tolist() == pytest.approx([8.0, 1, 2, 4][-min(size, 4) :])
    lab.add(memory, 6)
    assert memory.sampler.priorities.held()[-1] == pytest.approx(8)  # the highest ever given
    assert set(memory.sample(200).ids.tolist()) == set(memory.ring.ids().tolist())


def test_memory_that_became_smaller_than_a_batch_still_learns(lab):
    memory = lab.make(max_size=100, batch_size=50)
    memory.resize(10)
    for obs in range(10):
        lab.add(memory, obs)
    assert memory.ready(10)
    assert len(memory.sample().reward) == 50


def test_room_for_no_row_is_refused(lab):
    with pytest.raises(InvalidMemorySpec, match="resize: max_size 0 was given; a whole number of at least 1"):
        lab.make().resize(0)


def test_describe_tells_fill_ages_and_priorities(lab):
    memory = lab.make("PrioritizedReplay", max_size=10, num_envs=2, alpha=1.0, epsilon=1e-9)
    assert memory.describe()["priority"] == {"highest_ever": 1.0}
    for obs in range(4):
        lab.add(memory, obs)
    memory.update_priorities(np.arange(8), np.arange(1.0, 9.0))
    told = memory.describe()
    assert (told["size"], told["fill"], told["seen"]) == (8, 0.8, 8)
    assert (told["age"]["min"], told["age"]["median"], told["age"]["max"]) == (0, 1.5, 3)
    assert told["priority"]["median"] == pytest.approx(4.5)
    assert told["priority"]["max"] == told["priority"]["highest_ever"] == pytest.approx(8)
    assert told["fields"] == {"obs": "float32 [1]", "action": "int64 []"}
