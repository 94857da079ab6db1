"""Drawing by episode: each as often as any other, and each of its rows alike."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def by_episode(lab):
    def make(**keys):
        return lab.make("NStepReplay", sample_by="episode", storage="ram", n_step=1, batch_size=1, **keys)

    return make


def frequencies(memory, draws=60_000):
    obs, counts = np.unique(memory.sample(draws).obs.numpy(), return_counts=True)
    return dict(zip(obs.tolist(), (counts / draws).tolist(), strict=True))


def test_an_episode_s_length_does_not_matter(lab, by_episode):
    memory = by_episode(max_size=100)
    for obs, ends in ((0, True), (1, False), (2, False), (3, False), (4, True), (5, False), (6, False)):
        lab.add(memory, obs, terminated=ends)
    assert frequencies(memory) == pytest.approx(
        {0: 1 / 3, 1: 1 / 12, 2: 1 / 12, 3: 1 / 12, 4: 1 / 12, 5: 1 / 6, 6: 1 / 6}, abs=0.01
    )


def test_episodes_of_all_envs_and_what_is_left_of_overwritten_ones(lab, by_episode):
    memory = by_episode(max_size=8, num_envs=2)
    for t in range(6):  # env 0 holds rows 2 to 5, ended at 2; env 1 one episode
        lab.add(memory, [t, 10 + t], terminated=[t == 2, False])
    expected = {2: 1 / 3} | {3.0 + k: 1 / 9 for k in range(3)} | {12.0 + k: 1 / 12 for k in range(4)}
    assert frequencies(memory) == pytest.approx(expected, abs=0.01)


def test_a_cut_found_later_ends_an_episode(lab, by_episode):
    memory = by_episode(max_size=8)
    lab.add(memory, 0)
    lab.add(memory, 1)
    memory.sample(1)
    lab.add(memory, 50)
    assert frequencies(memory) == pytest.approx({0: 1 / 4, 1: 1 / 4, 50: 1 / 2}, abs=0.01)


def test_many_short_episodes_and_the_state(lab, by_episode):
    memory, copy = (by_episode(max_size=300, seed=seed) for seed in (1, 2))
    for obs in range(1000):
        lab.add(memory, obs, terminated=obs % 3 == 2)
        if obs % 50 == 0:
            memory.sample(1)
    assert memory.describe()["episodes_to_draw"] == 101  # 700; 701; 702 to 704 ...: 699 was overwritten
    copy.load_state_dict(memory.state_dict())
    assert memory.sample(40).ids.tolist() == copy.sample(40).ids.tolist()
    memory.reset()
    lab.add(memory, 5)
    assert frequencies(memory) == {5: 1}


def test_envs_that_hold_nothing_have_no_episode_to_draw(lab, by_episode):
    memory = by_episode(max_size=9, num_envs=3)
    assert memory.describe()["episodes_to_draw"] == 0
    memory.add_rows(
        {"obs": [[0.0]], "action": [0], "reward": [0], "terminated": [0], "truncated": [0], "next_obs": [[1.0]]}, env=1
    )
    assert memory.describe()["episodes_to_draw"] == 1
    memory.reset()
    assert memory.describe()["episodes_to_draw"] == 0
