"""A memory goes on exactly where it was saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from slm_lab.errors import RunError

KEYS = {"Replay": {"max_size": 12}, "PrioritizedReplay": {"max_size": 12, "weight_max": "buffer", "beta_frames": 99}}


def fields(batch):
    return [batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight, batch.ids]


@pytest.mark.parametrize("name", list(KEYS))
def test_loaded_memory_draws_the_same_batches_as_the_saved_one(lab, name):
    memory = lab.make(name, num_envs=2, n_step=2, seed=3, training_frequency=3, **KEYS[name])

    def go_on(memory, steps):
        for obs in steps:
            lab.add(memory, obs, reward=obs, terminated=[obs % 4 == 3, obs % 7 == 6], note=obs)
            memory.update_priorities(memory.sample(4).ids, torch.arange(4.0))
            memory.due(2 * obs + 2)

    go_on(memory, range(17))
    tree = memory.state_dict()
    json.dumps({key: tree[key] for key in ("fields", "trigger", "generator")})
    copy = lab.make(name, num_envs=2, n_step=2, seed=99, training_frequency=3, **KEYS[name])
    copy.load_state_dict(tree)
    assert (copy.size, copy.seen, copy.describe()) == (memory.size, memory.seen, memory.describe())
    for steps in (range(17, 18), range(18, 40)):
        go_on(memory, steps)
        go_on(copy, steps)
        for ours, theirs in zip(fields(memory.sample(32)), fields(copy.sample(32)), strict=True):
            assert torch.equal(ours, theirs)
        assert memory.due(1000) == copy.due(1000)
    assert all(np.array_equal(memory.state_dict()["ring"][key], value) for key, value in copy.ring.state_dict().items())


def test_only_rows_that_are_held_are_saved(lab):
    memory = lab.make(max_size=100_000)
    lab.add(memory, 0, terminated=True)
    tree = memory.state_dict()["ring"]
    assert tree["rows"].nbytes < 100
    assert len(tree["finals"]) == 1


def test_saved_tree_does_not_change_with_the_memory(lab):
    memory = lab.make(max_size=2)
    lab.add(memory, 0)
    tree = memory.state_dict()
    for obs in range(1, 9):
        lab.add(memory, obs)
    copy = lab.make(max_size=2)
    copy.load_state_dict(tree)
    assert lab.read(copy) == [(0, 0, 1, 0.5, 1)]


@pytest.mark.parametrize("name", ["OnPolicyReplay", "OnPolicyBatchReplay"])
def test_on_policy_memory_goes_on_in_the_middle_of_a_round(lab, name):
    memory, copy = (lab.make(name, num_envs=2, training_frequency=3) for _ in range(2))
    for obs in range(2):
        lab.add(memory, obs, terminated=[obs == 1, False])
    copy.load_state_dict(memory.state_dict())
    for each in (memory, copy):
        lab.add(each, 2, terminated=True)
        assert each.ready(6)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(fields(memory.all()), fields(copy.all()), strict=True))
    assert torch.equal(memory.all().end, copy.all().end)


def test_memory_of_other_fields_or_envs_or_too_little_room_is_refused(lab):
    memory = lab.make(max_size=8, num_envs=2)
    for obs in range(4):
        lab.add(memory, obs)
    tree = memory.state_dict()
    with pytest.raises(RunError, match="rows of 2 envs, this one is for 1"):
        lab.make(max_size=8).load_state_dict(tree)
    with pytest.raises(RunError, match="holds 4 rows an env, this one has room for 2"):
        lab.make(max_size=4, num_envs=2).load_state_dict(tree)
    tree["fields"][0]["shape"] = [2]
    with pytest.raises(RunError, match="the saved memory holds"):
        lab.make(max_size=8, num_envs=2).load_state_dict(tree)


@pytest.mark.parametrize("link", [1, -5, 99 << 3], ids=["an end in nothing", "a negative place", "a place beyond"])
def test_rows_that_lead_to_observations_which_are_not_there_are_refused(lab, link):
    memory = lab.make("Replay", max_size=12)
    for obs in range(5):
        lab.add(memory, obs)
    tree = memory.state_dict()
    tree["ring"]["rows"].view(np.int32)[2, memory.ring.link_word] = link
    with pytest.raises(ValueError, match="final observations which are not there"):
        lab.make("Replay", max_size=12).load_state_dict(tree)
