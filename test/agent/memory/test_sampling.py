"""Which rows are drawn, with which weight, and when to learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slm_lab.agent.memory import priorities
from slm_lab.agent.memory.priorities import Priorities
from slm_lab.errors import InvalidRow


def four_rows(lab, **keys):
    memory = lab.make("PrioritizedReplay", **{"max_size": 4, "alpha": 1.0, "epsilon": 1e-9, "beta": 1.0, **keys})
    for obs in range(4):
        lab.add(memory, obs)
    return memory


def test_prioritized_draws_follow_the_priorities(lab):
    memory = four_rows(lab)
    memory.update_priorities(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    drawn = np.concatenate([memory.sample(1).ids.numpy() for _ in range(5000)])
    expected = np.array([500, 1000, 1500, 2000])
    chi_square = ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_stratified_draw_takes_one_row_from_each_equal_share(lab):
    memory = four_rows(lab)
    assert memory.sample(4).ids.tolist() == [0, 1, 2, 3]


def test_weights_undo_the_bias_of_the_draw(lab):
    memory = four_rows(lab)
    memory.update_priorities(np.arange(4), np.array([1.0, 1.0, 2.0, 4.0]))
    batch = memory.sample(8)  # shares of one eighth of the total: each row appears by its priority
    assert batch.ids.tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    # (N P)^-1 is 2, 2, 1, 1/2; the largest of the batch becomes 1
    assert batch.weight.tolist() == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(("weight_max", "weight"), [("batch", 1.0), ("buffer", 0.25)])
def test_largest_weight_is_one_in_the_batch_or_in_the_buffer(lab, weight_max, weight):
    memory = four_rows(lab, weight_max=weight_max)
    memory.update_priorities(np.arange(4), np.array([1.0, 4.0, 4.0, 4.0]))
    newest_only = memory.sampler.priorities.draw(np.array([0.99]), np.empty(0, np.int64), beta=1.0)
    assert newest_only[0].tolist() == [3]
    assert newest_only[1].tolist() == pytest.approx([weight])


def test_weight_relative_to_the_buffer_forgets_overwritten_rows(lab):
    memory = four_rows(lab, weight_max="buffer")
    memory.update_priorities(np.arange(4), np.array([0.5, 4.0, 4.0, 4.0]))
    lab.add(memory, 4)  # takes the place of the row with priority 0.5, at the highest priority
    assert memory.sample(4).weight.tolist() == pytest.approx([1, 1, 1, 1])


def test_new_rows_enter_at_the_highest_priority_ever_given(lab):
    memory = four_rows(lab)
    memory.update_priorities([0], [8.0])
    memory.update_priorities([0], [2.0])
    lab.add(memory, 4)
    assert memory.sampler.priorities.held().tolist() == pytest.approx([1, 1, 1, 8])


def test_update_of_an_overwritten_row_is_ignored(lab):
    memory = four_rows(lab)
    lab.add(memory, 4)  # id 4 takes the place of id 0
    memory.update_priorities([0, 1], [100.0, 3.0])
    assert memory.sampler.priorities.held().tolist() == pytest.approx([3, 1, 1, 1])
    assert memory.sampler.priorities.highest[0] == pytest.approx(3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_errors_that_are_not_finite_are_refused_and_change_nothing(lab, bad):
    memory = four_rows(lab)
    with pytest.raises(InvalidRow, match=f"errors: {bad} for row 1 of 2"):
        memory.update_priorities([0, 1], [5.0, bad])
    assert memory.sampler.priorities.held().tolist() == [1, 1, 1, 1]


def test_rows_without_error_stay_samplable(lab):
    memory = four_rows(lab, epsilon=1e-4, alpha=0.6)
    memory.update_priorities(np.arange(4), np.zeros(4))
    assert sorted(memory.sample(4).ids.tolist()) == [0, 1, 2, 3]


def test_tree_does_not_drift_over_many_updates(lab):
    memory = lab.make("PrioritizedReplay", max_size=50)
    rng = np.random.default_rng(0)
    for obs in range(70):
        lab.add(memory, obs)
    for _ in range(1000):
        memory.update_priorities(rng.integers(20, 70, 64), 10.0 ** rng.uniform(-9, 9, 64))
    priorities: Priorities = memory.sampler.priorities
    leaves = priorities.sums.size // 2
    for node in range(1, leaves):
        assert priorities.sums[node] == priorities.sums[2 * node] + priorities.sums[2 * node + 1]
    assert priorities.sums[leaves:].sum() == pytest.approx(priorities.held().sum(), rel=1e-12)


def test_draws_never_name_a_row_that_does_not_exist(lab):
    memory = lab.make("PrioritizedReplay", max_size=6, num_envs=2, batch_size=1)
    for obs in range(20):
        lab.add(memory, obs)
        batch = memory.sample(16)
        assert set(batch.ids.tolist()) <= set(memory.ring.ids().tolist())
        memory.update_priorities(batch.ids, torch.rand(16))


def test_beta_rises_to_one_over_its_frames(lab):
    memory = lab.make("PrioritizedReplay", max_size=100, beta=0.4, beta_frames=10)
    for obs in range(5):
        lab.add(memory, obs)
    assert memory.sampler.beta == pytest.approx(0.7)
    for obs in range(5, 30):
        lab.add(memory, obs)
    assert memory.sampler.beta == 1.0
    assert four_rows(lab, beta=0.4).sampler.beta == 0.4


def test_errors_mean_nothing_to_a_uniform_memory(lab):
    memory = lab.make(max_size=4)
    lab.add(memory, 0)
    memory.update_priorities([0], [1.0])


@pytest.mark.parametrize("name", ["Replay", "PrioritizedReplay"])
def test_combined_replay_puts_the_newest_rows_last_in_every_batch(lab, name):
    memory = lab.make(name, max_size=200, num_envs=2, use_cer=True)
    for obs in range(50):
        lab.add(memory, obs)
    batch = memory.sample(8)
    assert sorted(batch.ids.tolist()[-2:]) == [98, 99]
    assert len(memory.sample(1).ids) == 1


def test_frames_owe_rounds_and_fractions_carry_over(lab):
    memory = lab.make(max_size=400, num_envs=16, training_frequency=4)
    lab.add(memory, 0)
    assert [memory.due(16), memory.due(32)] == [4, 4]
    memory = lab.make(max_size=400, num_envs=3, training_frequency=2)
    lab.add(memory, 0)
    assert [memory.due(frame) for frame in (3, 6, 9, 12)] == [1, 2, 1, 2]


def test_frames_before_the_start_owe_nothing(lab):
    memory = lab.make(max_size=400, num_envs=4, training_frequency=1, training_start_step=10)
    lab.add(memory, 0)
    assert [memory.due(frame) for frame in (4, 8, 12, 16)] == [0, 0, 2, 4]
    assert [memory.ready(8), memory.ready(10)] == [False, True]


def test_learning_waits_for_a_batch_of_rows(lab):
    memory = lab.make(max_size=400, batch_size=3)
    due = []
    for frame in range(1, 6):
        lab.add(memory, frame)
        due.append(memory.due(frame))
    assert due == [0, 0, 1, 1, 1]


def test_errors_as_large_as_floats_go_leave_a_finite_total(lab):
    memory = lab.make("PrioritizedReplay", max_size=8, alpha=1.0)
    for obs in range(8):
        lab.add(memory, obs)
    memory.update_priorities(np.arange(8), np.full(8, 1.7e308))
    counts = np.bincount(memory.sample(8000).ids.numpy(), minlength=8)
    assert counts.tolist() == [1000] * 8  # one of each stratum
    assert memory.describe()["priority"]["highest_ever"] == priorities.MOST
    copy = lab.make("PrioritizedReplay", max_size=8, alpha=1.0)
    copy.load_state_dict(memory.state_dict())
    assert np.isfinite(copy.sampler.priorities.sums).all()
