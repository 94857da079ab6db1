"""Small envs whose numbers can be checked by hand."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces


class Countdown(gymnasium.Env):
    """Observation: (a number drawn at the reset, steps taken). Reward: 1, 2, 4, 8 ... Ends after `length` steps."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=3, truncates=False):
        self.length, self.truncates = length, truncates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drawn, self.steps = self.np_random.integers(1, 1000), 0
        return np.array([self.drawn, 0], np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == self.length
        obs = np.array([self.drawn, self.steps], np.float32)
        return obs, 2.0 ** (self.steps - 1), over and not self.truncates, over and self.truncates, {}


class Echo(gymnasium.Env):
    """Nested spaces on both sides; the observation is the action as the env received it."""

    action_space = spaces.Dict(
        {
            "move": spaces.Box(-1, 1, (2,), np.float32),
            "mode": spaces.Discrete(3),
            "pair": spaces.Tuple((spaces.MultiDiscrete([4, 5]), spaces.MultiBinary(3))),
        }
    )
    observation_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        nothing = (np.zeros(2, np.int64), np.zeros(3, np.int8))
        return {"move": np.zeros(2, np.float32), "mode": 0, "pair": nothing}, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return action, 0.0, False, False, {}


class Line(gymnasium.Env):
    """The observation is the action as the env received it, for the action space given."""

    SPACES = {  # noqa: RUF012
        "box": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 3], np.float32)),
        "multi_discrete": spaces.MultiDiscrete([4, 5]),
        "multi_binary": spaces.MultiBinary(2),
    }

    def __init__(self, space="box"):
        self.action_space = self.observation_space = self.SPACES[space]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, self.observation_space.dtype), {}

    def step(self, action):
        return action, 0.0, False, False, {}


class Faulty(Countdown):
    """Goes wrong in its third step, in the way it is told."""

    def __init__(self, fault):
        super().__init__(length=100)
        self.fault = fault

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.steps == 3:
            if self.fault == "raises":
                raise RuntimeError("the physics exploded")
            if self.fault == "observes NaN":
                obs[1] = np.nan
            if self.fault == "observes infinity":
                obs[1] = np.inf
            if self.fault == "rewards NaN":
                reward = np.float64("nan")
        return obs, reward, terminated, truncated, info


class Wordy(Countdown):
    observation_space = spaces.Text(8)


class Needy(Countdown):
    def __init__(self):
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`")


@pytest.fixture(autouse=True, scope="session")
def toys():
    for toy in (Countdown, Echo, Line, Faulty, Wordy, Needy):
        gymnasium.register(f"toy/{toy.__name__}-v0", entry_point=toy)
