"""Runs that are killed at random moments come to what they would have come to: the same tables and parameters, byte for
byte. `python benchmark/kill.py` does it as often as one likes."""

from random import Random

import pytest

KILLS = 3  # of a run, of five kinds


@pytest.mark.parametrize(
    "name", ["ddqn_per_cartpole", "ppo_cartpole", "sac_pendulum", "dqn_lunar_disk", "reinforce_cartpole"]
)
def test_a_killed_run_comes_to_the_same_bytes(kill, tmp_path, name):
    whole = kill.run_whole(name, tmp_path)
    outcome = kill.run_killed(name, tmp_path, kills=KILLS, rng=Random(name))
    assert outcome.kills == KILLS
    assert list(kill.differences(whole, outcome.run)) == []


def test_what_differs_is_noticed(kill, tmp_path):
    first = kill.run_whole("reinforce_cartpole", tmp_path / "first")
    second = kill.run_whole("reinforce_cartpole", tmp_path / "second")
    table = second / "t0" / "s0" / "train.csv"
    assert list(kill.differences(first, second)) == []
    content = table.read_text()
    table.write_text(content[: content.rindex(",")] + ",0.5\n")
    assert list(kill.differences(first, second)) == ["train.csv differs"]
