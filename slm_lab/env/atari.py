"""Atari games as the field plays them (Mnih 2015, Machado 2018): what is done between ALE and the learner.

Deterministic given the seed of a reset. Which of a game's frames count is the env's own business: sticky actions come
by its id (0.25 for ALE/…-v5, none for …NoFrameskip-v4) or by `repeat_action_probability` in env.kwargs.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing

from slm_lab.errors import Mistake, SpecError

FRAME_SKIP, MOST_NO_OPS, SIZE = 4, 30, (84, 84)
GOES_ON = "goes_on"  # in an info: what ended is not the game; in the options of a reset: so let it go on
FIRE = 1


def is_atari(env_id: str) -> bool:
    spec = gymnasium.registry.get(env_id)
    return spec is not None and str(spec.entry_point).startswith("ale_py")


def own_keywords(given: dict[str, Any]) -> dict[str, Any]:
    """What the game itself is made with: the frames between are skipped here, so that the last two can be merged."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else it prints who it is with each env
    return {"obs_type": "grayscale", **given, "frameskip": 1}


def frame_skip(given: dict[str, Any]) -> int:
    """For how many frames an action is done."""
    frames = given.get("frameskip", FRAME_SKIP)
    if type(frames) is not int or frames < 1:
        problem = "the lab skips one whole number of frames; for chance set repeat_action_probability"
        raise SpecError([Mistake("env.kwargs.frameskip", f"{frames}: {problem}")])
    return frames


def preprocessed(env: gymnasium.Env, frame_skip: int, size: tuple[int, int]) -> gymnasium.Env:
    """Up to 30 no-ops at the start, an action for `frame_skip` frames, the brighter of the last two in grey."""
    height, width = size
    return AtariPreprocessing(env, noop_max=MOST_NO_OPS, frame_skip=frame_skip, screen_size=(width, height))


def for_training(env: gymnasium.Env) -> gymnasium.Env:
    """A lost life ends an episode, and a game that waits for FIRE is given it."""
    env = EpisodicLife(env)
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    return FireReset(env) if len(meanings) > FIRE and meanings[FIRE] == "FIRE" else env


def is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) in (2, 3)


class EpisodicLife(gymnasium.Wrapper):
    """A lost life ends the learner's episode, not the game: the next reset, with the option to go on, goes on."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.lives, self.last = 0, (None, dict[str, Any]())

    def step(self, action: Any):
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
        if 0 < lives < self.lives and not (terminated or truncated):
            terminated = info[GOES_ON] = True
        self.lives, self.last = lives, (obs, info)
        return obs, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if options and options.get(GOES_ON):
            return self.last
        self.last = self.env.reset(seed=seed, options=options)
        self.lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
        return self.last


class FireReset(gymnasium.Wrapper):
    """Presses FIRE as an episode begins."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.env.reset(seed=seed, options=options)
        obs, _, _, _, info = self.env.step(FIRE)
        return obs, info
