"""Sub-envs that an env's own vector env steps, in threads: ale-py's, for Atari.

It draws the no-ops of a start in its own way, pads the first stack of an episode with zeros, and after a lost life goes
on with the frames from before it. So its games are others than those of SubEnvs with the same seeds, though as good,
and as repeatable: each has its own seed, and a state is restored by replaying the actions of all sub-envs together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from slm_lab.env import atari
from slm_lab.env.make import EnvFault
from slm_lab.errors import Mistake, SpecError
from slm_lab.lib import seeds
from slm_lab.spec.schema import EnvSpec
from slm_lab.types import Arrays, Lost, Step

LEFT_OUT = ("wrappers", "time_aware", "max_t")  # keys for what would have to come between
KEYWORDS = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")  # that it takes too


class Native:
    """Has the face of SubEnvs; `refuse` tells where it cannot be."""

    def __init__(self, spec: EnvSpec, seed: int, num_envs: int, *, stream: str, training: bool, **others: Any):
        from ale_py.vector_env import AtariVectorEnv

        known = gymnasium.registry[spec.name].kwargs
        height, width = spec.image_downsize or atari.SIZE
        self.name, self.seed, self.stream = spec.name, seed, stream
        self.envs = AtariVectorEnv(
            num_envs=num_envs,
            autoreset_mode="SameStep",
            img_height=height,
            img_width=width,
            stack_num=spec.frame_op_len,
            frameskip=atari.frame_skip(spec.kwargs),
            noop_max=atari.MOST_NO_OPS,
            life_loss_info=training,
            use_fire_reset=training,
            reward_clipping=False,
            **{key: value for key, value in {**known, **spec.kwargs}.items() if key in ("game", *KEYWORDS)},
        )
        self.episode = [-1] * num_envs
        self._frames = np.zeros(num_envs, np.int64)  # (N,) of the games, so far
        self._obs: Arrays = None

    def begin(self, numbers: Sequence[int], stream: str) -> Arrays:
        self.stream, self.episode = stream, list(numbers)
        self._obs = self._reset(np.ones(len(numbers), np.bool_), None)
        return self._obs

    def replay(self, numbers: Sequence[int], actions: Sequence[np.ndarray], stream: str) -> Arrays:
        """All step as often as the one with most actions; the others begin when there are as many left as theirs."""
        obs = self.begin(numbers, stream)
        longest = max(len(taken) for taken in actions)
        for place in range(longest):
            begins = np.array([0 < longest - len(taken) == place for taken in actions])
            if begins.any():
                self._reset(begins, obs)
            now = [taken[len(taken) - longest + place] if len(taken) >= longest - place else 0 for taken in actions]
            obs, _, _, _, info = self.envs.step(np.array(now, np.int64))
            self._frames = np.array(info["episode_frame_number"])
        begins = np.array([0 < longest == longest - len(taken) for taken in actions])
        self._obs = self._reset(begins, obs) if begins.any() else obs.copy()
        return self._obs

    def step(self, action: np.ndarray) -> Step:
        try:
            obs, reward, terminated, truncated, info = self.envs.step(np.asarray(action, np.int64))
        except Exception as problem:  # foreign code
            raise EnvFault(f"env {self.name} failed in step: {type(problem).__name__}: {problem}") from problem
        obs = next_obs = obs.copy()  # it writes the next ones to the same place
        before, self._frames = self._frames, np.array(info["episode_frame_number"])
        ended = terminated | truncated
        goes_on = None
        if ended.any():
            goes_on = ended & (self._frames > before)
            over = ended & ~goes_on
            for index in over.nonzero()[0]:
                self.episode[index] += 1
            if over.any():  # it has begun games of its own, which the first of ours take the place of
                next_obs = np.where(over[:, None, None, None], info["final_obs"], obs)
                obs = self._reset(over, obs)
        self._obs = obs
        scores = np.asarray(reward, np.float64)
        return Step(obs, next_obs, scores, terminated.copy(), truncated.copy(), goes_on=goes_on)

    def take_unbegun(self) -> list[Lost]:
        return []

    def render(self) -> Any:
        return None

    def close(self) -> None:
        self.envs.close()

    def _reset(self, which: np.ndarray, obs: Arrays) -> Arrays:
        """(N, ...) the observations, with the first of their episodes where `which` (N,) is true."""
        own = [seeds.derive(self.seed, self.stream, int(index), self.episode[index]) for index in which.nonzero()[0]]
        options = None if obs is None else {"reset_mask": which}
        first, info = self.envs.reset(seed=np.array(own), options=options)
        self._frames = np.array(info["episode_frame_number"])
        return first.copy() if obs is None else np.where(which[:, None, None, None], first, obs)


def refuse(spec: EnvSpec) -> None:
    """Raise SpecError where there is no vector env that gives each episode a seed of its own, or it lacks a key."""
    if not atari.is_atari(spec.name) or "obs_type" in spec.kwargs:
        problem = f"'{spec.name}' has no vector env of its own that can seed each episode; use 'auto'"
        raise SpecError([Mistake("env.vectorization", f"'native': {problem}")])
    given = [key for key in LEFT_OUT if getattr(spec, key)] + ["frame_op"] * (spec.frame_op == "concat")
    if given:
        raise SpecError([Mistake(f"env.{given[0]}", "not with vectorization 'native', which steps games by itself")])
    unknown = [key for key in spec.kwargs if key not in (*KEYWORDS, "frameskip")]
    if unknown:
        problem = f"not with vectorization 'native', which takes frameskip, {', '.join(KEYWORDS)} alone"
        raise SpecError([Mistake(f"env.kwargs.{unknown[0]}", problem)])
    if spec.frame_op_len == 1:
        raise SpecError([Mistake("env.frame_op_len", "1: vectorization 'native' always stacks: 2 or more")])
