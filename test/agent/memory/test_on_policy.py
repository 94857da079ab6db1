"""Rows to learn from once: when they are ready, what is returned, what stays."""

from __future__ import annotations

import pytest
import torch

from slm_lab.errors import EmptyMemory


def test_batch_replay_is_ready_after_its_vector_steps_with_any_number_of_envs(lab):
    memory = lab.make("OnPolicyBatchReplay", num_envs=3, training_frequency=2)
    lab.add(memory, 0)
    assert (memory.ready(3), memory.due(3)) == (False, 0)
    lab.add(memory, 1)
    assert (memory.ready(6), memory.due(6)) == (True, 1)
    memory.drain()
    assert (memory.size, memory.ready(6)) == (0, False)


def test_drained_rows_are_env_by_env_in_time_order_with_their_ends(lab):
    memory = lab.make("OnPolicyBatchReplay", num_envs=2, training_frequency=3)
    lab.add(memory, [0, 100], reward=[1, 10], value=[5, 6])
    lab.add(memory, [1, 101], next_obs=[2, 999], reward=[2, 20], truncated=[False, True], value=[5, 6])
    lab.add(memory, [2, 0], reward=[4, 40], value=[5, 6])
    batch = memory.drain()
    assert batch.obs[:, 0].tolist() == [0, 1, 2, 100, 101, 0]
    assert batch.next_obs[:, 0].tolist() == [1, 2, 3, 101, 999, 1]
    assert batch.reward.tolist() == [1, 2, 4, 10, 20, 40]
    assert batch.end.tolist() == [False, False, True, False, True, True]
    assert batch.discount.tolist() == [0.5] * 6
    assert batch.extras["value"].tolist() == [5, 5, 5, 6, 6, 6]


def test_episode_goes_on_after_a_drain_without_a_cut(lab):
    memory = lab.make("OnPolicyBatchReplay", training_frequency=1)
    for obs in range(3):
        lab.add(memory, obs)
        assert memory.drain().next_obs.item() == obs + 1


def test_episode_replay_is_ready_after_complete_episodes_of_all_envs_together(lab):
    memory = lab.make("OnPolicyReplay", num_envs=2, training_frequency=2)
    lab.add(memory, 0, terminated=[True, False])
    assert not memory.ready(2)
    lab.add(memory, [0, 1], truncated=[False, True])
    assert memory.ready(4)


def test_rows_of_unfinished_episodes_stay_for_the_next_time(lab):
    memory = lab.make("OnPolicyReplay", num_envs=2, training_frequency=1)
    lab.add(memory, [0, 100])
    lab.add(memory, [1, 101], terminated=[True, False])
    lab.add(memory, [50, 102])
    first = memory.drain()
    assert first.obs[:, 0].tolist() == [0, 1]
    assert first.end.tolist() == [False, True]
    assert not memory.ready(6)
    lab.add(memory, [51, 103], terminated=[False, True])
    assert memory.drain().obs[:, 0].tolist() == [100, 101, 102, 103]
    assert memory.size == 2


def test_episode_replay_without_a_complete_episode_has_nothing_to_learn_from(lab):
    memory = lab.make("OnPolicyReplay")
    lab.add(memory, 0)
    with pytest.raises(EmptyMemory, match="holds 1 rows, none of them"):
        memory.all()


def test_episodes_longer_than_the_first_table_are_kept_whole(lab):
    memory = lab.make("OnPolicyReplay", num_envs=2)
    for obs in range(1000):
        lab.add(memory, obs, reward=1, terminated=[obs == 999, False])
    batch = memory.drain()
    assert batch.obs[:, 0].tolist() == list(range(1000))
    assert batch.next_obs[-1].item() == 1000
    assert memory.size == 1000


def test_each_row_appears_once_an_epoch_with_what_the_algorithm_added(lab):
    memory = lab.make("OnPolicyBatchReplay", num_envs=2, training_frequency=5)
    for obs in range(5):
        lab.add(memory, [obs, obs + 5])
    batch = memory.drain()
    batch.extras["advantage"] = batch.obs[:, 0] * 10
    minibatches = list(memory.batches(4, epochs=2, of=batch))
    assert [len(mini.reward) for mini in minibatches] == [4, 4, 2, 4, 4, 2]
    epochs = [torch.cat([mini.obs[:, 0] for mini in minibatches[at : at + 3]]).tolist() for at in (0, 3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
    assert all((mini.extras["advantage"] == mini.obs[:, 0] * 10).all() for mini in minibatches)


def test_cross_entropy_returns_the_best_episodes_in_time_order_and_forgets_the_rest(lab):
    memory = lab.make("OnPolicyCrossEntropy", num_envs=2, training_frequency=4, cross_entropy=0.5)
    lab.add(memory, [0, 100], reward=[1, 4], terminated=[False, True])
    lab.add(memory, [1, 200], reward=[2, 1], truncated=[True, False])  # env 0: return 3, env 1: return 4
    lab.add(memory, [10, 201], reward=[9, 1], terminated=[True, True])  # env 0: return 9, env 1: return 2
    lab.add(memory, [20, 300], reward=[50, 50])  # unfinished
    assert memory.ready(8)
    batch = memory.drain()
    assert batch.obs[:, 0].tolist() == [10, 100]
    assert batch.end.tolist() == [True, True]
    assert memory.size == 2


@pytest.mark.parametrize(("share", "kept"), [(0.01, 1), (0.34, 2), (0.2, 1), (1.0, 5)])
def test_cross_entropy_keeps_its_share_rounded_up_and_at_least_one(lab, share, kept):
    memory = lab.make("OnPolicyCrossEntropy", cross_entropy=share)
    for obs in range(5):
        lab.add(memory, obs, reward=obs, terminated=True)
    assert memory.all().obs[:, 0].tolist() == [0, 1, 2, 3, 4][5 - kept :]


def test_cross_entropy_leaves_out_pieces_whose_end_is_unknown(lab):
    memory = lab.make("OnPolicyCrossEntropy")
    lab.add(memory, 0, reward=100)
    lab.add(memory, 50, reward=1, terminated=True)  # begins elsewhere: the piece before was cut
    assert memory.all().obs[:, 0].tolist() == [50]
