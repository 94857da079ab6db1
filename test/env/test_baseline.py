import numpy as np
import pytest

from slm_lab.env import baseline
from slm_lab.errors import SpecError
from slm_lab.lib.files import read_json
from slm_lab.spec.schema import EnvSpec

PAYING = """
import gymnasium


class Paying(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 3.0, True, False, {}
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "SHIPPED", tmp_path / "shipped.json")
    return tmp_path / "cache" / "baselines.json"


def test_it_is_measured_once_and_then_remembered(cache):
    measured, place = baseline.random_baseline("toy/Countdown-v0", cache, episodes=6)
    assert measured == baseline.Baseline(7.0, 0.0, 6)  # 1 + 2 + 4 in every episode
    assert place == "measured"
    assert baseline.random_baseline("toy/Countdown-v0", cache, episodes=6) == (measured, "cached")
    assert list(read_json(cache)) == ["toy/Countdown-v0"]
    assert baseline.random_baseline("toy/Countdown-v0", cache, episodes=7)[1] == "measured"


def test_it_counts_so_many_whole_episodes():
    measured = baseline.measure("CartPole-v1", episodes=30)
    assert measured.episodes == 30
    assert 15 < measured.mean < 32  # 22 over many


def test_what_ships_is_not_measured_again(tmp_path):
    shipped, place = baseline.random_baseline("CartPole-v1", tmp_path / "none.json")
    assert place == "shipped"
    assert np.isclose(shipped.mean, 22, atol=5)
    assert not (tmp_path / "none.json").exists()


def test_an_unknown_env_is_refused_and_leaves_nothing(cache):
    with pytest.raises(SpecError, match="did you mean 'CartPole-v1'"):
        baseline.random_baseline("CartPol-v1", cache)
    assert not cache.exists()


def test_an_old_name_has_the_baseline_of_the_env_that_lives_on(tmp_path):
    old = baseline.random_baseline("CartPole-v0", tmp_path / "none.json")
    assert old == baseline.random_baseline("CartPole-v1", tmp_path / "none.json")
    assert old[1] == "shipped"
    assert baseline.known_baseline(EnvSpec(name="CartPole-v0", max_frame=1)) == old[0].mean


def test_a_class_in_a_file_is_measured_each_time(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(baseline, "user_cache", lambda: cache)
    cache.parent.mkdir()
    baseline.keep(cache, {"paying.py:Paying": baseline.Baseline(9.0, 0.0, 100)})
    (tmp_path / "paying.py").write_text(PAYING)
    assert baseline.random_baseline("paying.py:Paying", cache, episodes=2) == (
        baseline.Baseline(3.0, 0.0, 2),
        "measured",
    )
    assert read_json(cache)["paying.py:Paying"]["mean"] == 9
    assert baseline.known_baseline(EnvSpec(name="paying.py:Paying", max_frame=1)) is None


def test_a_baseline_that_cannot_be_kept_is_told_all_the_same(cache):
    cache.parent.write_text("no folder")
    measured, place = baseline.random_baseline("toy/Countdown-v0", cache, episodes=2)
    assert measured.mean == 7
    assert place.startswith("measured; it could not be kept: ")
