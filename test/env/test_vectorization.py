"""Whichever way sub-envs are stepped, the same comes of it: their episodes, their ends, their faults, their state."""

import os
import signal
from functools import partial

import numpy as np
import pytest

from slm_lab.env import EnvFault, VectorEnv
from slm_lab.env.vector import how_to_step
from slm_lab.errors import SpecError
from slm_lab.spec.schema import EnvSpec

TOYS = '''
import gymnasium, numpy as np, os
from gymnasium import spaces


class Countdown(gymnasium.Env):
    """Observation: (a number drawn at the reset, steps taken); ends after as many steps as its last digit, and 2."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault=None):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drawn, self.steps = int(self.np_random.integers(1, 1000)), 0
        return np.array([self.drawn, 0], np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.array([self.drawn, self.steps], np.float32)
        over = self.steps == 2 + self.drawn % 10
        if action == 1:
            if self.fault == "raises":
                raise RuntimeError("the physics exploded")
            if self.fault == "dies":
                os._exit(7)
            if self.fault == "observes too much":
                obs = np.zeros(3, np.float32)
            if self.fault == "observes text":
                obs = "north"
            if self.fault == "rewards NaN":
                return obs, float("nan"), False, False, {}
        return obs, 1.0, over and self.drawn % 2 == 0, over and self.drawn % 2 == 1, {}
'''
WAYS = ("sync", "async")


@pytest.fixture
def vector(tmp_path):
    """Makes vector envs of Countdown, closed in the end."""
    (tmp_path / "toys.py").write_text(TOYS)
    made = []

    def make(way="sync", num_envs=3, restarts=False, **kwargs):
        name = f"{tmp_path}/toys.py:Countdown"
        spec = EnvSpec(name=name, num_envs=num_envs, vectorization=way, max_frame=1, kwargs=kwargs)
        made.append(VectorEnv(spec, 7, restarts=restarts))
        return made[-1]

    yield make
    for env in made:
        env.close()


def no(envs):
    return np.zeros(envs.num_envs, np.int64)


def played(envs, steps):
    """Every number that comes out."""
    arrays = [array for _ in range(steps) for array in envs.step(no(envs))[:5]]
    return [array.tolist() for array in arrays]


def test_workers_give_what_one_process_gives(vector):
    here, there = (vector(way) for way in WAYS)
    assert here.reset().tolist() == there.reset().tolist()
    assert played(here, 30) == played(there, 30)
    assert here.episode == there.episode
    assert min(here.episode) >= 2


@pytest.mark.parametrize("way", WAYS)
def test_an_episodes_end_gives_its_true_final_observation_and_the_next_ones_first(vector, way):
    envs = vector(way)
    obs = envs.reset()
    for _ in range(30):
        step = envs.step(no(envs))
        ended = step.terminated | step.truncated
        assert (step.next_obs - obs == np.array([0, 1])).all()
        assert (step.obs[~ended] == step.next_obs[~ended]).all()
        assert (step.obs[ended, 1] == 0).all()
        assert (ended == (step.next_obs[:, 1] == 2 + step.next_obs[:, 0] % 10)).all()
        assert (step.truncated[ended] == (step.next_obs[ended, 0] % 2 == 1)).all()
        obs = step.obs


@pytest.mark.parametrize("way", WAYS)
def test_a_state_saved_in_one_way_goes_on_in_the_other(vector, way):
    envs, other = vector(way), vector(WAYS[1 - WAYS.index(way)])
    envs.reset()
    played(envs, 17)
    other.load_state_dict(envs.state_dict())
    assert other.strayed == []
    assert other.current_obs().tolist() == envs.current_obs().tolist()
    assert played(other, 20) == played(envs, 20)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raises", "RuntimeError: the physics exploded"),
        ("rewards NaN", "its reward is nan"),
        ("observes too much", r"its observation has shape \(3,\), its space says \(2,\)"),
        ("observes text", r"its observation has shape \(\), its space says \(2,\)"),
    ],
)
def test_a_fault_is_told_with_its_place_and_leaves_the_state_of_the_moment_before(vector, way, fault, told):
    envs = vector(way, fault=fault)
    envs.reset()
    played(envs, 1)
    before, obs = envs.state_dict(), envs.current_obs()
    with pytest.raises(EnvFault, match=f"{told} .sub-env 1, episode 0, step 1, action 1"):
        envs.step(np.array([0, 1, 0]))
    after = envs.state_dict()
    assert after["episode"] == before["episode"]
    envs.load_state_dict(after)
    assert envs.strayed == []
    assert envs.current_obs().tolist() == obs.tolist()


def test_a_worker_that_dies_is_told_with_its_sub_envs(vector):
    envs = vector("async", fault="dies")
    envs.reset()
    with pytest.raises(EnvFault, match=r"worker process of sub-env.* ended with exit code 7 .episodes 0"):
        envs.step(np.array([0, 0, 1]))


def test_a_worker_that_is_killed_is_told(vector):
    envs = vector("async")
    envs.reset()
    os.kill(envs._rows._workers[0].process.pid, signal.SIGKILL)
    with pytest.raises(EnvFault, match="was ended by signal 9"):
        envs.step(no(envs))


@pytest.mark.parametrize(("way", "fault"), [("sync", "raises"), ("sync", "rewards NaN"), ("async", "dies")])
def test_where_faults_are_to_be_survived_the_episode_is_lost_and_the_next_begins(vector, way, fault):
    envs = vector(way, restarts=True, fault=fault, num_envs=2)
    obs = envs.reset()
    step = envs.step(np.array([0, 1]))
    lost = [entry.env for entry in step.lost]
    assert 1 in lost
    assert envs.episode == [int(0 in lost), 1]
    assert step.truncated.tolist() == [0 in lost, True]
    assert not step.terminated.any()
    assert step.next_obs[1].tolist() == obs[1].tolist()
    assert step.obs[1, 0] != obs[1, 0]
    assert step.obs[1, 1] == 0
    assert envs.step(no(envs)).lost == ()


def test_a_worker_tells_what_it_cannot_make(tmp_path):
    with pytest.raises(SpecError, match=r"there is no file nowhere\.py"):
        VectorEnv(EnvSpec(name="nowhere.py:Env", num_envs=2, vectorization="async", max_frame=1), 0)


def test_auto_takes_workers_for_atari_alone(monkeypatch):
    monkeypatch.setattr("slm_lab.env.vector.usable_cores", lambda: 8)
    auto = partial(EnvSpec, vectorization="auto", max_frame=1)
    assert how_to_step(auto(name="CartPole-v1"), 64) == "sync"
    pytest.importorskip("ale_py")
    from slm_lab.env.names import find_package

    find_package("ALE/Pong-v5")
    assert [how_to_step(auto(name="ALE/Pong-v5"), count) for count in (1, 8)] == ["sync", "async"]
    monkeypatch.setattr("slm_lab.env.vector.usable_cores", lambda: 2)
    assert how_to_step(auto(name="ALE/Pong-v5"), 8) == "sync"


def test_an_env_that_does_not_repeat_itself_goes_on_with_its_next_episode(vector):
    envs, other = vector(), vector()
    envs.reset()
    played(envs, 1)
    state = envs.state_dict()
    state["obs"][2] = "another"
    other.load_state_dict(state)
    assert other.strayed == [2]
    assert other.episode == [0, 0, 1]
    assert other.current_obs()[:, 1].tolist() == [1, 1, 0]
    assert other.current_obs()[:2].tolist() == envs.current_obs()[:2].tolist()
