"""Rows for a model: (obs, action) -> (target, reward, terminated); who trains, who measures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.memory import make_memory
from slm_lab.agent.memory.encoding import Encoding, Normalizer
from slm_lab.agent.memory.model_based import EarlyStop
from slm_lab.errors import EmptyMemory, InvalidMemorySpec

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)
THREE = spaces.Discrete(3, start=5)


def make(num_envs=1, space=LINE, actions=THREE, seed=0, **keys):
    block = {"name": "ModelBasedReplay", "validation": 0.0, "normalize": False, **keys}
    return make_memory(block, space, actions, num_envs, gamma=0.5, seed=seed)


def walk(memory, starts, steps=4, end="truncated"):
    """An episode of each env, from its start: obs s, s + 1, …; each step leads 1 further, with reward 10 s."""
    for step in range(steps):
        obs = np.array(starts, np.float32)[:, None] + step
        over = np.full(memory.num_envs, step == steps - 1)
        ends = [over if end == flag else ~over & False for flag in ("terminated", "truncated")]
        action = np.full(memory.num_envs, 5 + step % 3)
        memory.add(obs, action, 10.0 * obs[:, 0], *ends, obs + 1)


def every(memory, **keys):
    """All rows of one epoch as one batch's columns."""
    batches = list(memory.batches(**keys))
    names = ("obs", "action", "target", "reward", "terminated", "ids")
    return {name: torch.cat([getattr(batch, name) for batch in batches]) for name in names}


@pytest.mark.parametrize(("target", "told"), [("delta", [1, 1, 1, 1]), ("next_obs", [1, 2, 3, 4])])
def test_a_row_is_obs_action_target_reward_and_termination(target, told):
    memory = make(target=target)
    walk(memory, [0], end="terminated")
    batch = memory.read(memory.ring.ids())
    assert batch.obs[:, 0].tolist() == [0, 1, 2, 3]
    assert batch.action.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert batch.target[:, 0].tolist() == told
    assert batch.reward.tolist() == [0, 10, 20, 30]
    assert batch.terminated.tolist() == [0, 0, 0, 1]
    assert {tensor.dtype for tensor in (batch.obs, batch.action, batch.target, batch.terminated)} == {torch.float32}


def test_truncation_is_no_termination():
    memory = make()
    walk(memory, [0])
    assert memory.read(memory.ring.ids()).terminated.sum() == 0


def test_each_row_of_every_env_comes_once_an_epoch_in_a_fresh_order():
    memory = make(num_envs=3)
    walk(memory, [0, 100, 200])
    epochs = [batch.ids.tolist() for batch in memory.batches(12, epochs=2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0] != epochs[1]


def test_the_last_batch_of_an_epoch_is_smaller_and_none_is_empty():
    memory = make(batch_size=3)
    walk(memory, [0])
    assert [len(batch.ids) for batch in memory.batches(epochs=2)] == [3, 1, 3, 1]
    assert [len(batch.ids) for batch in memory.batches(2)] == [2, 2]


def test_a_dataset_grows_and_one_with_a_size_keeps_its_newest_rows():
    growing, kept = make(), make(max_size=5)
    for episode in range(400):
        for memory in (growing, kept):
            walk(memory, [10 * episode])
    assert growing.size == 1600
    assert sorted(every(kept)["obs"][:, 0].tolist()) == [3983, 3990, 3991, 3992, 3993]


# who trains, who measures


@pytest.mark.parametrize(("split_by", "share"), [("episode", 0.25), ("transition", 0.25), ("episode", 0.6)])
def test_a_share_is_for_validation_and_no_row_is_both(split_by, share):
    memory = make(num_envs=2, validation=share, split_by=split_by)
    for episode in range(100):
        walk(memory, [10 * episode, -10 * episode])
    train, validation = memory.ids_of("train"), memory.ids_of("validation")
    assert sorted([*train, *validation]) == list(range(800))
    assert len(validation) / 800 == pytest.approx(share, abs=0.01 if split_by == "episode" else 0.05)


def test_all_rows_of_an_episode_go_one_way():
    memory = make(num_envs=2, validation=0.3)
    for episode in range(50):
        walk(memory, [10 * episode, 1000 + 10 * episode])
    episodes = {part: set((every(memory, part=part)["obs"][:, 0] // 10).tolist()) for part in ("train", "validation")}
    assert not episodes["train"] & episodes["validation"]
    assert len(episodes["train"] | episodes["validation"]) == 100


@pytest.mark.parametrize("split_by", ["episode", "transition"])
def test_what_a_row_is_for_never_changes(split_by):
    memory = make(validation=0.3, split_by=split_by, max_size=30)
    known = {}
    for episode in range(40):
        walk(memory, [10 * episode])
        if episode == 20:
            memory.resize(50)
        for part in ("train", "validation"):
            for row in memory.ids_of(part).tolist():
                assert known.setdefault(row, part) == part


def test_a_cut_begins_an_episode_of_its_own():
    memory = make(validation=0.5)
    for piece in range(20):
        walk(memory, [10 * piece], end=None)
    pieces = [set((every(memory, part=part)["obs"][:, 0] // 10).tolist()) for part in ("train", "validation")]
    assert not pieces[0] & pieces[1]
    assert len(pieces[1]) == 10


def test_the_first_episode_trains_and_a_lagging_share_is_made_up_for():
    for seed in range(20):
        memory = make(validation=0.2, seed=seed)
        for _ in range(8):
            walk(memory, [0])
        assert not memory._split.chosen[0][0]
        assert 1 <= sum(memory._split.chosen[0]) <= 2


def test_a_part_without_rows_is_an_error_that_says_so():
    memory = make(validation=0.5)
    with pytest.raises(EmptyMemory):
        memory.batches()
    walk(memory, [0])
    with pytest.raises(EmptyMemory) as caught:
        memory.batches(part="validation")
    assert str(caught.value) == "batches: none of the 4 rows held are for validation; at least 1 is needed"


def test_validation_rows_come_in_time_order_for_every_member():
    memory = make(validation=0.5, members=2)
    for _ in range(6):
        walk(memory, [0])
    first = every(memory, part="validation")["ids"].tolist()
    assert first == sorted(first) == every(memory, part="validation", member=1)["ids"].tolist()


# ensembles


def test_a_resampled_member_trains_on_as_many_rows_drawn_with_replacement():
    memory = make(members=2, num_envs=2)
    for _ in range(50):
        walk(memory, [0, 1])
    sets = [sorted(every(memory, member=member)["ids"].tolist()) for member in (0, 1)]
    assert len(sets[0]) == len(sets[1]) == 400
    assert sets[0] != sets[1]
    assert len(set(sets[0])) == pytest.approx(400 * (1 - 1 / math.e), abs=30)
    assert sorted(every(memory, member=0)["ids"].tolist()) == sets[0]  # the same set, epoch after epoch


def test_a_permuted_member_trains_on_every_row_in_an_order_of_its_own():
    memory = make(members=2, bootstrap="permute")
    walk(memory, [0], steps=30)
    orders = [every(memory, member=member)["ids"].tolist() for member in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
    assert orders[0] != orders[1]


def test_members_train_on_training_rows_alone():
    memory = make(members=3, validation=0.5)
    for _ in range(10):
        walk(memory, [0])
    for member in range(3):
        assert set(every(memory, member=member)["ids"].tolist()) <= set(memory.ids_of("train").tolist())


# scales


def test_scales_come_from_the_training_rows_alone():
    memory = make(normalize=True, validation=0.5)
    for episode in range(6):
        walk(memory, [100 * episode])
    rows = every(memory)
    held = memory.view.read(memory.ids_of("train")).obs[:, 0]
    assert memory.obs_scale.mean.item() == pytest.approx(held.mean().item())
    assert memory.obs_scale.std.item() == pytest.approx(held.std(correction=0).item())
    assert rows["obs"].mean().item() == pytest.approx(0, abs=1e-6)
    assert rows["obs"].std(correction=0).item() == pytest.approx(1)


def test_a_constant_column_stays_finite_and_classes_stay_one_hot():
    memory = make(normalize=True)
    walk(memory, [0])  # every step leads 1 further: the target is constant
    rows = every(memory)
    assert rows["target"].tolist() == [[0]] * 4
    assert memory.target_scale.std.item() == 1
    assert set(rows["action"].flatten().tolist()) == {0, 1}


def test_numbers_of_an_action_are_scaled_beside_its_classes():
    actions = spaces.Dict(move=spaces.Box(-9, 9, (1,), np.float32), which=spaces.Discrete(2))
    memory = make(normalize=True, actions=actions)
    for step, move in enumerate([1.0, 3.0, 5.0, 7.0]):
        obs = np.full((1, 1), step, np.float32)
        action = {"move": np.array([[move]], np.float32), "which": np.array([step % 2])}
        memory.add(obs, action, [0.0], [False], [False], obs + 1)
    memory.fit_scales()
    action = memory.read(memory.ring.ids()).action
    assert action[:, 0].tolist() == pytest.approx([(move - 4) / 5**0.5 for move in (1, 3, 5, 7)])
    assert action[:, 1:].tolist() == [[1, 0], [0, 1]] * 2


@pytest.mark.parametrize("size", [1e-7, 1e-30])
def test_small_numbers_are_scaled_too(size):
    memory = make(normalize=True)
    obs = np.random.default_rng(0).normal(0, size, (201, 1)).astype(np.float32)
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.full(200, 5), "reward": obs[:-1, 0]}
    memory.add_rows({**rows, "terminated": np.zeros(200, bool), "truncated": np.zeros(200, bool)})
    for column in ("obs", "target", "reward"):
        assert every(memory)[column].std(correction=0).item() == pytest.approx(1, abs=1e-3)


def test_a_step_that_differs_by_rounding_alone_is_constant():
    memory = make(normalize=True)
    obs = (1000 + 0.1 * np.arange(50)).astype(np.float32)[:, None]
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.full(49, 5), "reward": np.full(49, 0.1)}
    memory.add_rows({**rows, "terminated": np.zeros(49, bool), "truncated": np.zeros(49, bool)})
    memory.fit_scales()
    assert memory.target_scale.std.item() == memory.reward_scale.std.item() == 1


@pytest.mark.parametrize(("dtype", "step"), [(np.float64, 0.25), (np.int64, 3)])
def test_a_step_is_measured_before_it_is_rounded(dtype, step):
    memory = make(space=spaces.Box(-(10**9), 10**9, (1,), dtype))
    obs, over = np.array([[10**8]], dtype), np.array([False])
    memory.add(obs, [5], [0.0], over, over, obs + dtype(step))
    assert memory.read(memory.ring.ids()).target.tolist() == [[step]]


def test_scales_follow_when_rows_are_added_and_stay_while_none_are():
    memory = make(normalize=True)
    walk(memory, [0])
    list(memory.batches())
    assert memory.obs_scale.mean.item() == 1.5
    fitted = memory.obs_scale.mean
    list(memory.batches())
    assert memory.obs_scale.mean is fitted
    walk(memory, [4])
    list(memory.batches())
    assert memory.obs_scale.mean.item() == 3.5


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("target", ["delta", "next_obs"])
def test_a_perfect_answer_stands_for_the_next_observation(target, normalize):
    memory = make(target=target, normalize=normalize)
    walk(memory, [0])
    memory.fit_scales()
    batch = memory.read(memory.ring.ids())
    assert memory.predicted(batch.obs, batch.target)[:, 0].tolist() == pytest.approx([1, 2, 3, 4])


def test_a_normalizer_agrees_with_numpy_however_the_rows_are_cut_up():
    values = np.random.default_rng(0).normal(1e4, [1.0, 1e-3, 5.0], (1000, 3))
    scale = Normalizer(3)
    scale.fit(torch.from_numpy(part) for part in np.split(values, [1, 10, 700]))
    assert scale.mean.numpy() == pytest.approx(values.mean(0), rel=1e-6)
    assert scale.std.numpy() == pytest.approx(
        [values.std(0)[0], 1.0, values.std(0)[2]], rel=1e-5
    )  # the second: constant
    assert scale.undo(scale.apply(torch.ones(1, 3))).tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("space", "values", "encoded"),
    [
        (spaces.Discrete(3, start=-1), torch.tensor([-1, 1]), [[1, 0, 0], [0, 0, 1]]),
        (spaces.MultiDiscrete([2, 3], start=[0, 4]), torch.tensor([[1, 6]]), [[0, 1, 0, 0, 1]]),
        (spaces.MultiBinary(2), torch.tensor([[0, 1]]), [[0, 1]]),
        (spaces.Box(0, 255, (2, 2), np.uint8), torch.tensor([[[1, 2], [3, 4]]], dtype=torch.uint8), [[1, 2, 3, 4]]),
        (
            spaces.Dict(a=spaces.Box(0, 1, (1,)), b=spaces.Tuple((spaces.Discrete(2),))),
            {"a": torch.tensor([[0.5]]), "b.0": torch.tensor([1])},
            [[0.5, 0, 1]],
        ),
    ],
)
def test_values_of_every_space_become_flat_vectors(space, values, encoded):
    encoding = Encoding(space)
    assert encoding(values).tolist() == encoded
    assert encoding.width == len(encoded[0])


# fitting, saving, refusing


def test_fitting_stops_when_patience_runs_out():
    stop = EarlyStop(epochs=10, patience=2)
    better = []
    for loss in (3.0, 2.0, 2.5, math.nan, 1.0):
        if not stop.goes_on:
            break
        better.append(stop.tell(loss))
    assert better == [True, True, False, False]
    assert (stop.epoch, stop.best, stop.best_epoch) == (4, 2.0, 2)


@pytest.mark.parametrize(("epochs", "patience", "told"), [(3, None, 3), (3, 5, 3), (5, 1, 2)])
def test_fitting_ends_after_its_epochs(epochs, patience, told):
    memory = make(epochs=epochs, patience=patience, validation=0.2)
    stop = memory.early_stop()
    while stop.goes_on:
        stop.tell(1.0)
    assert stop.epoch == told


@pytest.mark.parametrize("split_by", ["episode", "transition"])
def test_a_loaded_dataset_goes_on_as_the_saved_one(split_by):
    keys = {"validation": 0.3, "normalize": True, "members": 2, "split_by": split_by}
    memory, other = make(**keys), make(**keys, seed=9)
    for episode in range(20):
        walk(memory, [10 * episode])
    list(memory.batches())
    other.load_state_dict(memory.state_dict())
    for _ in range(2):
        for batches in ({"epochs": 2}, {"member": 1}, {"part": "validation"}):
            a, b = every(memory, **batches), every(other, **batches)
            assert all(torch.equal(a[name], b[name]) for name in a)
        for kept in (memory, other):
            walk(kept, [500])


def test_a_reset_dataset_begins_anew():
    memory = make(validation=0.5, normalize=True)
    for _ in range(5):
        walk(memory, [0])
    memory.reset()
    assert memory.size == 0
    walk(memory, [70])
    assert sorted(memory.ids_of("train").tolist()) == [20, 21, 22, 23]
    list(memory.batches())
    assert memory.obs_scale.mean.item() == 71.5


def test_rows_on_disk_are_the_same(tmp_path):
    block = {"name": "ModelBasedReplay", "storage": "disk", "validation": 0.0, "normalize": False}
    memory = make_memory(block, LINE, THREE, path=tmp_path)
    for episode in range(400):  # it grows beyond its first size
        walk(memory, [10 * episode])
    assert sorted(every(memory)["obs"][:, 0].tolist())[-2:] == [3992, 3993]
    memory.close()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"space": spaces.Discrete(4)}, "target: the difference of two classes means nothing"),
        ({"validation": 1.0}, "validation: "),
        ({"bootstrap": "poisson"}, "bootstrap: "),
        ({"patience": 3}, "patience waits for a better validation loss, and validation 0 leaves no rows to measure it"),
        ({"n_step": 3}, "n_step: no such key"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(keys, message):
    with pytest.raises(InvalidMemorySpec) as caught:
        make(**keys)
    assert message in str(caught.value)


@pytest.mark.parametrize("keys", [{"member": 2}, {"member": -1}, {"part": "test"}])
def test_a_part_or_member_that_there_is_not_is_refused(keys):
    memory = make(members=2)
    walk(memory, [0])
    with pytest.raises(InvalidMemorySpec):
        memory.batches(**keys)


@pytest.mark.parametrize("size", [0, -3, 2.5])
def test_minibatches_without_rows_are_refused(size):
    memory = make()
    walk(memory, [0])
    with pytest.raises(InvalidMemorySpec, match=r"batches: batch_size .* was given; a whole number of at least 1"):
        memory.batches(size)


def test_a_dataset_that_held_all_rows_holds_so_many_after_a_resize():
    memory = make()
    walk(memory, [0], steps=30)
    memory.resize(20)
    assert (memory.size, memory.max_size) == (20, 20)
    walk(memory, [100], steps=50)
    assert (memory.size, memory.max_size) == (20, 20)
    assert sorted(every(memory)["obs"][:, 0].tolist()) == list(range(130, 150))
