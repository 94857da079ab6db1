"""What is told of envs whose episodes cannot be repeated."""

import gymnasium
import numpy as np
import pytest

from slm_lab.env import make_env, why_not_repeated
from slm_lab.env.make import today
from slm_lab.spec.schema import EnvSpec


class Drifting(gymnasium.Env):
    """What it shows at the start depends on how often it was reset."""

    observation_space, action_space = gymnasium.spaces.Box(0, 100, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, what="obs"):
        self.what, self.resets = what, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets, self.steps = self.resets + 1, 0
        return self._obs(), {}

    def _obs(self):
        return np.array([self.resets if self.what == "obs" else 0], np.float32)

    def step(self, action):
        self.steps += 1
        if self.what == "fault":
            raise RuntimeError("later")
        if self.what == "exit":
            raise SystemExit("bye")
        over = self.steps == (5 if self.what != "length" else 5 + self.resets)
        return self._obs(), float(self.what == "reward" and self.resets), over, False, {}


gymnasium.register("toy/Drifting-v0", Drifting)


def reason(name, **keys):
    spec, _ = today(EnvSpec(name=name, max_frame=1, **keys))
    env = make_env(spec)
    try:
        return why_not_repeated(env, spec)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("obs", "from the same seed and actions it came to something else at step 0"),
        ("reward", "from the same seed and actions it came to something else at step 1"),
        ("length", "from the same seed and actions it came to something else at step 6"),
        ("fault", ""),
        ("exit", ""),
        ("nothing", ""),
    ],
)
def test_an_env_of_one_s_own_is_tried(what, told):
    assert reason("toy/Drifting-v0", kwargs={"what": what}) == told


COUNTING = """
import gymnasium


class Counting(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        obs, _, *rest = self.env.step(action)
        return obs, float(self.steps), *rest
"""


def test_a_familiar_env_in_a_wrapper_that_outlives_episodes_is_tried(tmp_path, monkeypatch):
    (tmp_path / "counting_wrapper.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(tmp_path)
    wrapped = {"wrappers": [{"name": "counting_wrapper.Counting"}]}
    assert reason("CartPole-v1", **wrapped) == "from the same seed and actions it came to something else at step 1"
    assert reason("CartPole-v1", wrappers=[{"name": "ClipReward", "max_reward": 1.0}]) == ""


def test_known_envs_are_not_tried_and_the_one_that_strays_is_named():
    assert reason("CartPole-v1") == ""
    assert reason("BitFlipping-v0") == ""
    assert reason("BipedalWalker-v3") == "Box2D keeps contacts from one episode to the next"
