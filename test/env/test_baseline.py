import numpy as np
import pytest

from slm_lab.env import baseline
from slm_lab.errors import SpecError
from slm_lab.lib.files import read_json


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
