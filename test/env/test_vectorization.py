"""Whichever way sub-envs are stepped, the same comes of it: their episodes, their ends, their faults, their state."""

import os
import re
import signal
from functools import partial

import gymnasium
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

    def __init__(self, fault=None, reset_fault=None, good_resets=0, every=1):
        """After so many good resets those fail that draw a multiple of `every`."""
        self.fault, self.reset_fault, self.good_resets, self.every = fault, reset_fault, good_resets, every
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drawn, self.steps = int(self.np_random.integers(1, 1000)), 0
        obs = np.array([self.drawn, 0], np.float32)
        self.resets += 1
        if os.environ.get("COUNTDOWN_DIES"):
            os._exit(7)
        if self.resets > self.good_resets and self.drawn % self.every == 0:
            if self.reset_fault == "raises":
                raise RuntimeError("no wheels")
            if self.reset_fault == "exits":
                raise SystemExit("bye")
            if self.reset_fault == "observes NaN":
                obs[1] = np.nan
            if self.reset_fault == "observes too much":
                obs = np.zeros(3, np.float32)
            if self.reset_fault == "tells no info":
                return obs
        return obs, {}

    def step(self, action):
        self.steps += 1
        obs = np.array([self.drawn, self.steps], np.float32)
        over = self.steps == 2 + self.drawn % 10
        if action == 1:
            if self.fault == "raises":
                raise RuntimeError("the physics exploded")
            if self.fault == "exits":
                raise SystemExit("bye")
            if self.fault == "ends twice":
                return obs, 1.0, np.array([False, True]), False, {}
            if self.fault == "tells nothing":
                return obs, 1.0, True, False, None
            if self.fault == "rewards twice":
                return obs, np.array([1.0, 2.0]), False, False, {}
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
        ("exits", "SystemExit: bye"),
        ("rewards NaN", "its reward is nan"),
        ("rewards twice", r"its reward is array.*, not a number"),
        ("ends twice", r"its terminated is array.*, not true or false"),
        ("tells nothing", "its info is None, not a dict"),
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


RESET_FAULTS = [
    ("raises", "RuntimeError: no wheels"),
    ("exits", "SystemExit: bye"),
    ("observes NaN", r"its observation is \[ *\d+\. +nan\]"),
    ("observes too much", r"its observation has shape \(3,\), its space says \(2,\)"),
    ("tells no info", r"it gave ndarray, not \(observation, info\)"),
]
OF_EACH_WAY = [*(("sync", *fault) for fault in RESET_FAULTS), ("async", *RESET_FAULTS[2])]


@pytest.mark.parametrize(("way", "fault", "told"), OF_EACH_WAY)
def test_a_reset_that_fails_is_told_with_its_place(vector, way, fault, told):
    envs = vector(way, reset_fault=fault)
    with pytest.raises(EnvFault, match=f"failed in reset: {told} .sub-env 0, episode 0, step 0"):
        envs.reset()


@pytest.mark.parametrize(("way", "fault", "told"), OF_EACH_WAY)
def test_a_reset_that_fails_later_leaves_the_state_of_the_moment_before(vector, way, fault, told):
    envs = vector(way, reset_fault=fault, good_resets=2)
    envs.reset()
    fault = ""
    while not fault:
        before, obs = envs.state_dict(), envs.current_obs()
        try:
            envs.step(no(envs))
        except EnvFault as problem:
            fault = str(problem)
    assert re.search(f"failed in reset: {told} .sub-env ., episode 2, step 0", fault)
    assert envs.state_dict()["episode"] == before["episode"]
    assert envs.current_obs().tolist() == obs.tolist()


@pytest.mark.parametrize(("way", "fault", "told"), OF_EACH_WAY)
def test_where_faults_are_to_be_survived_an_episode_that_does_not_begin_is_passed_over(vector, way, fault, told):
    whole, envs = vector(way), vector(way, restarts=True, reset_fault=fault, every=4)
    firsts = {whole.reset()[0, 0]} | {whole.step(no(whole)).obs[0, 0] for _ in range(100)}
    obs, passed = envs.reset(), []
    for _ in range(40):
        assert (obs[:, 0] % 4 != 0).all()
        assert obs[0, 0] in firsts
        passed += envs.take_unbegun()
        obs = envs.step(no(envs)).obs
    assert len(passed) >= 3
    assert all("failed in reset" in lost.reason for lost in passed)
    other = vector(way, restarts=True)
    other.load_state_dict(envs.state_dict())
    assert other.strayed == []
    assert other.current_obs().tolist() == obs.tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_sub_env_of_which_three_resets_fail_is_given_up(vector, way):
    envs = vector(way, restarts=True, reset_fault="raises", good_resets=1)
    envs.reset()
    with pytest.raises(EnvFault, match=r"no wheels .sub-env ., episode 3, step 0"):
        played(envs, 30)


def test_a_state_can_be_taken_up_after_resets_that_failed(vector):
    envs = vector(restarts=True, reset_fault="raises", good_resets=2)
    envs.reset()
    before = envs.state_dict()
    with pytest.raises(EnvFault):
        played(envs, 60)
    for env in envs.envs:
        env.unwrapped.reset_fault = None
    envs.load_state_dict(before)
    played(envs, 30)
    assert envs.episode == envs._rows.episode


class OneBuffer(gymnasium.Env):
    """Writes all its observations into one array."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.buffer = np.zeros(2, np.float32)
        return self.buffer, {}

    def step(self, action):
        self.buffer[:] = np.nan if action == 1 else 0.5
        return self.buffer, 1.0, False, False, {}


def test_an_observation_that_is_written_over_is_lost_with_its_episode_alone():
    gymnasium.register("toy/OneBuffer-v0", OneBuffer)
    envs = VectorEnv(EnvSpec(name="toy/OneBuffer-v0", num_envs=2, max_frame=1), 7, restarts=True)
    envs.reset()
    envs.step(no(envs))
    step = envs.step(np.array([0, 1]))
    assert [entry.env for entry in step.lost] == [1]
    assert step.next_obs.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert step.obs.tolist() == [[0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("way", WAYS)
def test_after_a_state_was_taken_up_a_fault_is_told_with_the_step_of_its_episode(vector, way):
    envs, other = vector(way), vector(way, fault="raises")
    envs.reset()
    played(envs, 17)
    other.load_state_dict(envs.state_dict())
    steps = int(other.current_obs()[1, 1])
    assert steps > 0
    with pytest.raises(EnvFault, match=f"sub-env 1, episode {other.episode[1]}, step {steps}, action 1"):
        other.step(np.array([0, 1, 0]))


def test_a_worker_that_dies_is_told_with_its_sub_envs(vector, monkeypatch):
    monkeypatch.setattr("slm_lab.env.workers.usable_cores", lambda: 2)
    envs = vector("async", fault="dies")
    envs.reset()
    obs = envs.step(no(envs)).obs
    while (obs[:2, 1] == obs[0, 1]).all():
        obs = envs.step(no(envs)).obs
    first, second = (f"sub-env {i}, episode {envs.episode[i]}, step {obs[i, 1]:.0f}, action" for i in range(2))
    with pytest.raises(EnvFault, match=rf"worker process ended with exit code 7 \({first} 0; {second} 1\)"):
        envs.step(np.array([0, 1, 0]))


def test_a_worker_that_dies_after_a_state_was_taken_up_is_told_with_the_step_of_its_episode(vector):
    envs, other = vector("async"), vector("async", fault="dies")
    envs.reset()
    played(envs, 17)
    other.load_state_dict(envs.state_dict())
    steps = int(other.current_obs()[2, 1])
    assert steps > 0
    with pytest.raises(EnvFault, match=rf"sub-env 2, episode {other.episode[2]}, step {steps}, action 1\)"):
        other.step(np.array([0, 0, 1]))


def test_a_worker_that_dies_again_as_its_episodes_begin_is_told(vector, monkeypatch):
    envs = vector("async", restarts=True, fault="dies")
    envs.reset()
    monkeypatch.setenv("COUNTDOWN_DIES", "yes")
    with pytest.raises(
        EnvFault, match=r"action 1\); the one in its place ended with exit code 7 as its episodes began"
    ):
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
