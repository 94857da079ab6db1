"""Whose rows they are, what the env discounts, and rows that are not in time order. Gamma is one half."""

from __future__ import annotations

import numpy as np
import pytest

from slm_lab.errors import EmptyMemory, InvalidRow


def two_sources(lab, name="Replay", **keys):
    """Rows 0 to 7: 0, 1 and 4, 5 are from source 0, 2, 3 and 6, 7 from source 1; one env walks on and on."""
    memory = lab.make(name, max_size=8, **keys)
    for obs in range(8):
        lab.add(memory, obs, reward=1, source=obs // 2 % 2)
    return memory


def test_no_horizon_crosses_a_change_of_source(lab):
    memory = two_sources(lab)
    rows = lab.read(memory, n_step=3)
    assert rows[0] == (0, 1.5, 2, 0.25, 2)
    assert rows[1] == (1, 1, 2, 0.5, 1)
    assert memory.all().end.tolist() == [False, True] * 4


@pytest.mark.parametrize("name", ["Replay", "PrioritizedReplay"])
def test_only_rows_of_the_source_that_is_asked_for_are_drawn(lab, name):
    memory = two_sources(lab, name)
    batch = memory.sample(400, source=1)
    counts = np.bincount(batch.ids.numpy(), minlength=8)
    assert np.flatnonzero(counts).tolist() == [2, 3, 6, 7]
    assert ((counts[counts > 0] - 100) ** 2 / 100).sum() < 16.3  # 3 degrees of freedom, p = 0.001
    assert set(batch.extras["source"].tolist()) == {1}
    assert set(memory.sample(400).ids.tolist()) == set(range(8))


@pytest.mark.parametrize("name", ["Replay", "PrioritizedReplay"])
def test_source_that_is_rare_is_found_too(lab, name):
    memory = lab.make(name, max_size=2000)
    for obs in range(2000):
        lab.add(memory, obs, source=int(obs in (7, 1999)))
    assert set(memory.sample(4, source=1).ids.tolist()) <= {7, 1999}
    with pytest.raises(EmptyMemory, match="holds 2000 rows, none of them from source 5"):
        memory.sample(source=5)


@pytest.mark.parametrize("few", [2, 4000])
def test_priorities_decide_within_a_source_as_among_all(lab, few):
    memory = two_sources(lab, "PrioritizedReplay", alpha=1.0, epsilon=1e-9, beta=1.0)
    memory.update_priorities(np.arange(8), np.array([9.0, 9, 1, 2, 9, 9, 3, 4]))
    drawn = np.concatenate([memory.sample(few, source=1).ids.numpy() for _ in range(4000 // few)])
    expected = np.array([400, 800, 1200, 1600])
    assert ((np.bincount(drawn)[[2, 3, 6, 7]] - expected) ** 2 / expected).sum() < 16.3
    batch = memory.sample(400, source=1)
    weight_of = dict(zip(batch.ids.tolist(), batch.weight.tolist(), strict=True))
    assert [weight_of[row] for row in (2, 3, 6, 7)] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])


def test_combined_replay_takes_the_newest_row_of_the_source(lab):
    memory = lab.make(max_size=50, num_envs=2, use_cer=True)
    for obs in range(20):
        lab.add(memory, obs, source=[0, 1])
    assert memory.sample(4, source=0).ids.tolist()[-1] == 38


def test_rows_without_a_source_count_as_source_0_of_a_memory_that_has_sources(lab):
    memory = lab.make(max_size=4)
    lab.add(memory, 0, source=3)
    lab.add(memory, 1)
    assert memory.all().extras["source"].tolist() == [3, 0]
    plain = lab.make(max_size=4)
    lab.add(plain, 0)
    assert plain.sample(source=0).ids.tolist() == [0]
    assert "source" not in plain.all().extras
    with pytest.raises(InvalidRow, match="source"):
        lab.add(plain, 1, source=1)


def test_discount_of_the_env_multiplies_gamma_at_its_step(lab):
    memory = lab.make(max_size=8)
    for obs, (reward, discount) in enumerate([(1, 1.0), (2, 0.5), (4, 0.0), (8, 1.0)]):
        lab.add(memory, obs, reward=reward, discount=discount)
    assert lab.read(memory, n_step=2)[:3] == [
        (0, 1 + 0.5 * 2, 2, 0.5 * 0.25, 2),
        (1, 2 + 0.25 * 4, 3, 0.25 * 0, 2),
        (2, 4, 4, 0, 2),
    ]
    assert lab.read(memory, n_step=4)[0] == (0, 1 + 0.5 * 2 + 0.125 * 4 + 0, 4, 0, 4)


@pytest.mark.parametrize("bad", [-0.5, 1.5, np.nan])
def test_discount_outside_of_its_range_is_refused(lab, bad):
    memory = lab.make(max_size=8)
    with pytest.raises(InvalidRow, match=r"discount: .* lies in \[0, 1\]"):
        lab.add(memory, 0, discount=bad)
    assert memory.seen == 0


def test_rows_that_are_not_in_time_order_each_keep_their_own_next_obs(lab):
    memory = lab.make(max_size=5)
    lab.add(memory, 0, reward=1)
    obs = np.array([[1], [2], [9], [4]], np.float32)
    memory.add_rows(
        {
            "obs": obs,  # row 2 begins where row 1 led to by chance
            "action": np.zeros(4, int),
            "reward": np.array([2.0, 4, 8, 16]),
            "terminated": np.array([False, False, True, False]),
            "truncated": np.zeros(4, bool),
            "next_obs": np.array([[2], [30], [90], [40]], np.float32),
        },
        ordered=False,
    )
    assert lab.read(memory, n_step=3) == [
        (0, 1, 1, 0.5, 1),
        (1, 2, 2, 0.5, 1),
        (2, 4, 30, 0.5, 1),
        (9, 8, 90, 0, 1),
        (4, 16, 40, 0.5, 1),
    ]
    for obs in range(40, 44):
        lab.add(memory, obs, reward=1)
    assert lab.read(memory, n_step=2)[:2] == [(4, 16, 40, 0.5, 1), (40, 1.5, 42, 0.25, 2)]
    assert memory.describe()["episodes"] == 0
