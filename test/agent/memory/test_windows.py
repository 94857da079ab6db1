"""Windows of consecutive rows: what they hold, where they begin and end, what is left blank. Gamma is one half."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slm_lab.errors import InvalidMemorySpec, InvalidRow


def walk(lab, memory, ends: dict[int, str], rows: int, **extras):
    """Rows 0, 1, 2, ... of one env, reward 1; `ends` names the rows that end an episode. A row leads to 100 + itself
    where its episode ends."""
    for obs in range(rows):
        end = {ends[obs]: True} if obs in ends else {}
        lab.add(memory, obs, next_obs=100 + obs if end else obs + 1, reward=1, **end, **extras)
    return memory


def window(memory, row: int, **keys):
    """(obs, next_obs, mask, reward, discount) of the window drawn by this row."""
    batch = memory.windows.read(np.array([row]), keys.pop("length", 3), **keys)
    columns = (batch.obs[0, :, 0], batch.next_obs[0, :, 0], batch.mask[0], batch.reward[0], batch.discount[0])
    return tuple(column.tolist() for column in columns)


def test_window_holds_the_rows_from_the_drawn_one_on(lab):
    memory = walk(lab, lab.make(max_size=8), {}, 6)
    obs, next_obs, mask, reward, discount = window(memory, 1)
    assert (obs, next_obs, mask) == ([1, 2, 3], [2, 3, 4], [True] * 3)
    assert (reward, discount) == ([1, 1, 1], [0.5, 0.5, 0.5])


@pytest.mark.parametrize(("end", "discount"), [("terminated", 0.0), ("truncated", 0.5)])
def test_what_an_episode_leaves_over_repeats_its_last_row_and_counts_for_nothing(lab, end, discount):
    memory = walk(lab, lab.make(max_size=8), {1: end}, 5)
    assert window(memory, 0) == ([0, 1, 1], [1, 101, 101], [True, True, False], [1, 1, 0], [0.5, discount, 0])
    assert window(memory, 4) == ([4, 4, 4], [5, 5, 5], [True, False, False], [1, 0, 0], [0.5, 0, 0])


def test_window_stops_at_a_cut_a_source_and_the_wrap(lab):
    memory = lab.make(max_size=4)
    for obs, source in ((0, 0), (1, 0), (2, 0), (70, 0), (71, 1), (72, 1)):
        lab.add(memory, obs, source=source)
    rows = [window(memory, row) for row in memory.ring.ids()]
    assert [(obs, sum(mask)) for obs, _, mask, _, _ in rows] == [
        ([2, 2, 2], 1),
        ([70, 70, 70], 1),
        ([71, 72, 72], 2),
        ([72, 72, 72], 1),
    ]


def test_rows_of_a_window_look_n_steps_ahead_also_beyond_its_end(lab):
    memory = walk(lab, lab.make(max_size=10), {6: "terminated"}, 7)
    obs, next_obs, _, reward, discount = window(memory, 2, n_step=3)
    assert (obs, next_obs) == ([2, 3, 4], [5, 6, 106])
    assert (reward, discount) == ([1.75] * 3, [0.125, 0.125, 0])


def test_burn_in_precedes_the_drawn_row_as_far_as_its_episode_reaches_back(lab):
    memory = walk(lab, lab.make("SequenceReplay", max_size=20, burn_in=2, sequence_length=3), {2: "truncated"}, 12)
    assert window(memory, 7)[::2] == ([5, 6, 7, 8, 9], [False, False, True, True, True], [0.5] * 5)
    assert window(memory, 4)[::2] == ([3, 4, 5, 6, 6], [False, True, True, True, False], [0.5] * 4 + [0])
    assert window(memory, 3)[::2] == ([3, 4, 5, 5, 5], [True, True, True, False, False], [0.5] * 3 + [0] * 2)
    batch = memory.windows.read(np.array([7, 4, 3]), 3)
    assert batch.extras["burn_in"].tolist() == [2, 1, 0]


def test_every_row_is_learned_from_whatever_the_burn_in(lab):
    memory = walk(lab, lab.make("SequenceReplay", max_size=40, burn_in=5, sequence_length=2), {1: "terminated"}, 4)
    batch = memory.sample(200)
    assert set(batch.obs[batch.mask][:, 0].tolist()) == {0, 1, 2, 3}
    assert batch.mask.any(dim=1).all()


def test_windows_begin_at_multiples_of_the_stride_and_at_the_first_row_of_an_episode(lab):
    memory = walk(lab, lab.make("SequenceReplay", max_size=20, stride=3, sequence_length=3), {4: "truncated"}, 11)
    begins = [window(memory, row)[0][0] for row in range(11)]
    assert begins == [0, 0, 0, 3, 3, 5, 6, 6, 6, 9, 9]


def test_without_padding_a_window_begins_earlier_where_its_episode_allows(lab):
    memory = walk(lab, lab.make("SequenceReplay", max_size=20, pad=False, sequence_length=3), {5: "truncated"}, 8)
    assert [window(memory, row)[0] for row in (5, 4, 1)] == [[3, 4, 5], [3, 4, 5], [1, 2, 3]]
    assert window(memory, 7)[::2] == ([6, 7, 7], [True, True, False], [0.5, 0.5, 0])  # too short an episode


def test_window_never_reaches_back_into_overwritten_rows(lab):
    memory = walk(lab, lab.make("SequenceReplay", max_size=4, burn_in=2, sequence_length=2, batch_size=1), {}, 11)
    assert window(memory, 7, length=2)[0] == [7, 8, 8, 8]
    assert window(memory, 8, length=2)[0] == [7, 8, 9, 9]


def test_hidden_state_is_that_of_the_windows_first_row(lab):
    memory = lab.make("SequenceReplay", max_size=9, burn_in=1, sequence_length=2, store_hidden=True)
    for obs in range(6):
        rows = {"obs": np.array([[obs]], np.float32), "next_obs": np.array([[obs + 1]], np.float32)}
        rows |= {"action": np.array([0]), "reward": np.zeros(1), "terminated": np.zeros(1, bool)}
        memory.add(**rows, truncated=np.zeros(1, bool), hidden=np.array([[obs, -obs]], np.float32), value=[obs])
    batch = memory.windows.read(np.array([0, 4]), 2)
    assert batch.extras["hidden"].tolist() == [[0, 0], [3, -3]]
    assert batch.extras["value"].tolist() == [[0, 1, 1], [3, 4, 5]]
    with pytest.raises(InvalidRow, match="hidden"):
        lab.add(lab.make("SequenceReplay", store_hidden=True), 0)


def test_sample_has_a_row_for_each_window_and_a_weight_and_id_for_each(lab):
    memory = walk(lab, lab.make(max_size=40, num_envs=2), {5: "terminated"}, 20, note=4)
    batch = memory.sample(6, sequence_length=5, n_step=2)
    for tensor in (batch.reward, batch.discount, batch.steps, batch.mask, batch.extras["note"], batch.action):
        assert tensor.shape == (6, 5)
    assert batch.obs.shape == batch.next_obs.shape == (6, 5, 1)
    assert batch.ids.shape == batch.weight.shape == (6,)
    assert torch.equal(batch.obs[:, 0, 0], (batch.ids // 2).float())


def test_loss_under_the_mask_does_not_feel_what_is_padded(lab):
    memory = walk(lab, lab.make(max_size=8), {1: "truncated"}, 2)
    batch = memory.sample(5, sequence_length=50)
    per_row = batch.reward + batch.discount * batch.next_obs[..., 0] - batch.obs[..., 0]
    by_hand = {0: [1 + 0.5 * 1 - 0, 1 + 0.5 * 101 - 1], 1: [1 + 0.5 * 101 - 1]}
    assert (per_row * batch.mask).sum().item() == sum(sum(by_hand[row]) for row in batch.ids.tolist())
    assert torch.isfinite(per_row).all()


def test_priority_of_a_window_is_that_of_all_rows_that_stand_for_it(lab):
    keys = {"prioritized": True, "alpha": 1.0, "epsilon": 1e-9, "beta": 1.0, "stride": 3, "sequence_length": 3}
    memory = walk(lab, lab.make("SequenceReplay", max_size=12, **keys), {4: "truncated"}, 8)
    memory.update_priorities(np.array([1, 3, 5, 6]), np.array([2.0, 4.0, 8.0, 16.0]))
    assert memory.sampler.priorities.held().tolist() == pytest.approx([2, 2, 2, 4, 4, 8, 16, 16])
    batch = memory.sample(54)  # one draw for each unit of priority
    assert np.bincount(batch.ids.numpy()).tolist() == [2, 2, 2, 4, 4, 8, 16, 16]
    assert batch.weight[:2].tolist() == [1, 1]
    assert batch.weight[-1].item() == pytest.approx(2 / 16)
    memory.update_priorities(batch.ids, torch.ones(54))
    assert memory.sampler.priorities.held().tolist() == pytest.approx([1] * 8)


def test_update_of_a_window_whose_rows_are_gone_is_ignored(lab):
    memory = walk(lab, lab.make("SequenceReplay", max_size=4, stride=2, sequence_length=2, prioritized=True), {}, 9)
    memory.update_priorities(np.array([1, 4]), np.array([9.0, 9.0]))
    assert memory.sampler.priorities.held().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"stride": 33}, "stride 33 is more than sequence_length 32: rows between two windows would never be learned"),
        ({"max_size": 40, "burn_in": 9}, "sequence_length 32 and burn_in 9 are more than max_size 40"),
        ({"alpha": 0.5}, "alpha means nothing where rows are drawn uniformly"),
        ({"sequence_length": 0}, "sequence_length: got 0; must be an integer >= 1"),
    ],
)
def test_senseless_combinations_are_refused_with_the_reason(lab, keys, reason):
    with pytest.raises(InvalidMemorySpec, match=reason):
        lab.make("SequenceReplay", **keys)
