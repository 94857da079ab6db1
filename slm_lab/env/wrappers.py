"""What lies between a single env and the lab, by the keys of the spec's `env` block; all that gymnasium has is its own.

From the env outwards: Atari's own, the user's `wrappers`, text left out, `image_downsize`, `time_aware`, `frame_op`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from slm_lab.env import atari
from slm_lab.errors import Mistake, SpecError
from slm_lab.spec import registry
from slm_lab.spec.schema import EnvSpec


def wrapped(env: gymnasium.Env, spec: EnvSpec, *, training: bool, notes: list[str]) -> gymnasium.Env:
    """The env with all that the spec wants around it. SpecError where something does not go with it."""
    plays_atari = atari.is_atari(spec.name) and atari.is_image(env.observation_space)
    if plays_atari:
        env = atari.preprocessed(env, atari.frame_skip(spec.kwargs), spec.image_downsize or atari.SIZE)
        if spec.max_t:
            env = wrappers.TimeLimit(env, spec.max_t)
        env = atari.for_training(env) if training else env
    for place, wrapper in enumerate(spec.wrappers):
        path = f"env.wrappers[{place}]"
        env = _own(path, partial(_by_name, block=wrapper, path=path), env)
    env = _without_text(env, spec.name, notes)
    if spec.image_downsize and not plays_atari:
        env = _own("env.image_downsize", lambda env: _downsized(env, spec.image_downsize), env)
    if spec.time_aware:
        env = _own("env.time_aware", _time_aware, env)
    if frame_op(spec) is not None:
        env = _own("env.frame_op", lambda env: _of_frames(env, spec), env)
    return env


def frame_op(spec: EnvSpec) -> str | None:
    """What is done with the last frames: as the spec says, or else as the field does."""
    if spec.frame_op_len == 1:
        return None
    image = spec.kwargs.get("obs_type", "rgb") != "ram"
    return spec.frame_op or ("stack" if atari.is_atari(spec.name) and image else None)


def frame_stack(spec: EnvSpec) -> int:
    """Frames along the first axis of an observation that are each the env's, one after the other; 1: no stacks.

    Normalized ones do not count: what a frame is normalized by changes from step to step. Nor do those of a native
    vector env, of which an episode does not begin with its first frame repeated.
    """
    each_once = not spec.normalize_obs and spec.vectorization != "native"
    return spec.frame_op_len if frame_op(spec) == "stack" and each_once else 1


def reward_scale(spec: EnvSpec) -> float | str:
    if spec.reward_scale is not None:
        return spec.reward_scale
    return "sign" if atari.is_atari(spec.name) else 1.0


def _own(path: str, wrap: Callable[[gymnasium.Env], gymnasium.Env], env: gymnasium.Env) -> gymnasium.Env:
    try:
        return wrap(env)
    except SpecError:
        raise
    except Exception as problem:  # wrappers check what they are given in their own ways
        raise SpecError([Mistake(path, f"does not go with this env: {problem or type(problem).__name__}")]) from problem


def _by_name(env: gymnasium.Env, block: dict[str, Any], path: str) -> gymnasium.Env:
    module, _, name = block["name"].replace(":", ".").rpartition(".")
    try:
        made = registry.load("wrapper", f"{module or 'gymnasium.wrappers'}:{name}")
    except registry.UnknownName as problem:
        guess = registry.nearest(name, wrappers.__all__)
        hint = f"; did you mean 'gymnasium.wrappers.{guess}'?" if guess else ""
        raise ValueError(f"{problem}{hint}") from problem
    if getattr(made, "__module__", "").startswith(("gymnasium.", "slm_lab.")) and not _is_wrapper(made):
        raise ValueError(f"'{block['name']}' is no wrapper of gymnasium")
    for normalizes, key in NORMALIZERS.items():
        if isinstance(made, type) and issubclass(made, normalizes):
            reason = "goes by statistics of each copy's own, which evaluation does not have and no checkpoint holds"
            raise SpecError([Mistake(path, f"'{block['name']}' {reason}: set env.{key} instead")])
    return made(env, **{key: value for key, value in block.items() if key != "name"})


NORMALIZERS = {wrappers.NormalizeObservation: "normalize_obs", wrappers.NormalizeReward: "normalize_reward"}


def _is_wrapper(made: Any) -> bool:
    return isinstance(made, type) and issubclass(made, gymnasium.Wrapper)


def _without_text(env: gymnasium.Env, name: str, notes: list[str]) -> gymnasium.Env:
    """Text has no fixed shape: the parts of a Dict that are text are left out."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict):
        return env
    text = [key for key, part in space.spaces.items() if _is_text(part)]
    if not text or len(text) == len(space.spaces):
        return env
    notes.append(f"env '{name}': its text ({', '.join(text)}) is left out of the observations")
    return wrappers.FilterObservation(env, [key for key in space.spaces if key not in text])


def _is_text(space: spaces.Space) -> bool:
    known = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)
    return isinstance(space, spaces.Text) or (not isinstance(space, known) and isinstance(space.sample(), str))


def _downsized(env: gymnasium.Env, size: tuple[int, int]) -> gymnasium.Env:
    if not atari.is_image(env.observation_space):
        raise ValueError(f"its observations are no images: {env.observation_space}")
    return wrappers.ResizeObservation(env, size)


def _time_aware(env: gymnasium.Env) -> gymnasium.Env:
    shape = env.observation_space.shape
    return wrappers.TimeAwareObservation(env, flatten=shape is not None and len(shape) < 2, normalize_time=True)


def _of_frames(env: gymnasium.Env, spec: EnvSpec) -> gymnasium.Env:
    if frame_op(spec) == "stack":
        return wrappers.FrameStackObservation(env, spec.frame_op_len)
    return ConcatenatedFrames(env, spec.frame_op_len)


class ConcatenatedFrames(gymnasium.Wrapper):
    """The last k observations (..., d) as one, (..., k d), oldest first; the first is repeated as an episode begins."""

    def __init__(self, env: gymnasium.Env, count: int):
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) not in (1, 3):
            raise ValueError(f"'concat' is for rows of numbers and images with channels, not {space}: use 'stack'")
        self.frames: deque[np.ndarray] = deque(maxlen=count)
        low, high = (np.concatenate([bound] * count, -1) for bound in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def step(self, action: Any):
        obs, *rest = self.env.step(action)
        self.frames.append(obs)
        return np.concatenate(self.frames, -1), *rest

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.frames.extend([obs] * (self.frames.maxlen or 1))
        return np.concatenate(self.frames, -1), info
