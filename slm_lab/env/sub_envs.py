"""Sub-envs of a vector env, stepped one after the other in this process; each episode has its own seed."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from slm_lab.env.arrays import Misfit, first_not_finite, make_gather, make_scatter
from slm_lab.env.atari import GOES_ON
from slm_lab.env.make import FOREIGN, EnvFault, make_env
from slm_lab.lib import seeds
from slm_lab.lib.trees import mapped
from slm_lab.spec.schema import EnvSpec
from slm_lab.types import Arrays, Lost, Step

RESETS = 3  # of a sub-env, one episode after the other, that may fail before it is given up


class SubEnvs:
    """Those with these `indices` of a vector env; N is how many they are. Actions are the policy's."""

    def __init__(
        self,
        spec: EnvSpec,
        seed: int,
        indices: Sequence[int],
        *,
        stream: str = "train",
        training: bool = True,
        restarts: bool = False,
        render_mode: str | None = None,
    ):
        """`restarts`: a sub-env that fails is given its next episode; else EnvFault is raised."""
        self.name, self.seed, self.stream = spec.name, seed, stream
        self.indices = list(indices)
        self.restarts = restarts
        self._resets = RESETS if restarts else 1
        self._unbegun: list[Lost] = []
        self.envs = [make_env(spec, None if index else render_mode, training=training) for index in self.indices]
        self._steps = [env.step for env in self.envs]
        self._gather = make_gather(self.envs[0].observation_space)
        self._scatter = make_scatter(self.envs[0].action_space)
        self.episode = [-1] * len(self.envs)  # number of the current episode of each
        self._no = np.zeros(len(self.envs), np.bool_)
        self._now = 0  # vector steps so far
        self._begun = [0] * len(self.envs)  # `_now` when the current episode began
        self._obs: list[Any] = [None] * len(self.envs)

    def begin(self, numbers: Sequence[int], stream: str) -> Arrays:
        """(N, ...) the first observations of these episodes of the stream."""
        self.stream, self._unbegun = stream, []
        for place, number in enumerate(numbers):
            self._begin(place, number, self._resets)
        return self.current_obs()

    def replay(self, numbers: Sequence[int], actions: Sequence[Arrays], stream: str) -> Arrays:
        """(N, ...) the observations after these actions, (T, ...) each, in these episodes; -1: before the first."""
        self.stream = stream
        for place, (number, taken) in enumerate(zip(numbers, actions, strict=True)):
            if number < 0:
                self.episode[place], self._obs[place] = -1, None
                continue
            self._begin(place, number, 1)
            choices = self._scatter(taken)
            self._begun[place] = self._now - len(choices)
            for choice in choices:
                try:
                    self._obs[place], _, terminal, cut, info = self._steps[place](choice)
                except FOREIGN as problem:
                    raise EnvFault(self._told(place, "a step that it had made before", problem, choice)) from problem
                if terminal or cut:
                    self._end(place, info)
        self._unbegun = []  # who replays knows the numbers of the episodes
        return self.current_obs()

    def take_unbegun(self) -> list[Lost]:
        """Episodes since the last call that were passed over, because their reset failed."""
        taken, self._unbegun = self._unbegun, []
        return taken

    def current_obs(self) -> Arrays:
        """(N, ...) the observations to act on now."""
        if any(obs is None for obs in self._obs):
            return None
        return self._gather(self._obs)

    def step(self, action: Arrays) -> Step:
        """Step each; one whose episode ends is reset within the same call. Where none ended, `obs` is `next_obs`."""
        current = self._obs
        before = [mapped(_kept, obs) for obs in current] if self.restarts else current
        given: list[Any] = []  # rewards
        ended: dict[int, tuple[Any, Any, dict]] = {}  # terminated, truncated and info of those that are
        lost: list[Lost] = []
        chosen = self._scatter(action)
        for place, (step, choice) in enumerate(zip(self._steps, chosen, strict=True)):
            try:
                obs, gain, terminal, cut, info = step(choice)
            except FOREIGN as problem:  # whatever an env raises is told with its place
                lost.append(self._lose(place, problem, choice))
                obs, gain, terminal, cut, info = before[place], 0.0, False, True, {}
            current[place] = obs
            given.append(gain)
            try:
                if terminal or cut:
                    ended[place] = terminal, cut, info
            except ValueError:  # an array of several is neither true nor false, which is told below
                ended[place] = terminal, cut, info
        while True:
            try:
                next_obs = obs = self._gather(current)
                _check_finite(next_obs, current)
                reward = _rewards(given)
                if ended:
                    _check_ends(ended)
                break
            except Misfit as problem:  # in the memory it would spoil the nets long before anybody saw it
                place = problem.index
                lost.append(self._lose(place, problem, chosen[place]))
                current[place], given[place], ended[place] = before[place], 0.0, (False, True, {})
        self._now += 1
        terminated, truncated = self._no.copy(), self._no.copy()
        if not ended:
            return Step(obs, next_obs, reward, terminated, truncated)
        goes_on = None
        for place, (terminal, cut, info) in ended.items():
            terminated[place], truncated[place] = terminal, cut
            if self._end(place, info):
                goes_on = self._no.copy() if goes_on is None else goes_on
                goes_on[place] = True
        return Step(self._gather(current), next_obs, reward, terminated, truncated, goes_on=goes_on, lost=tuple(lost))

    def render(self) -> Any:
        return self.envs[0].render()

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _begin(self, place: int, number: int, resets: int) -> None:
        """This episode, or where its reset fails one of the next, as long as there are resets left."""
        self.episode[place] = number
        self._begun[place] = self._now
        try:
            self._reset(place, seed=seeds.derive(self.seed, self.stream, self.indices[place], number))
        except FOREIGN as problem:
            reason = self._told(place, "reset", problem)
            if resets <= 1:
                raise EnvFault(reason) from problem
            self._unbegun.append(Lost(self.indices[place], reason))
            self._begin(place, number + 1, resets - 1)

    def _reset(self, place: int, **keywords: Any) -> None:
        told = self.envs[place].reset(**keywords)
        if not isinstance(told, tuple | list) or len(told) != 2:
            raise Misfit(place, f"it gave {type(told).__name__}, not (observation, info)")
        obs, _ = told
        _check_finite(self._gather([obs]), [obs])
        self._obs[place] = obs

    def _end(self, place: int, info: dict) -> bool:
        """Begin what comes after an episode; whether that is the same game with a life less."""
        if not info.get(GOES_ON):
            self._begin(place, self.episode[place] + 1, self._resets)
            return False
        try:
            self._reset(place, options={GOES_ON: True})
        except FOREIGN as problem:
            raise EnvFault(self._told(place, "reset", problem)) from problem
        return True

    def _lose(self, place: int, problem: BaseException, choice: Any) -> Lost:
        reason = self._told(place, "step", problem, choice)
        if not self.restarts:
            raise EnvFault(reason) from problem
        return Lost(self.indices[place], reason)

    def _told(self, place: int, call: str, problem: BaseException, *choice: Any) -> str:
        kind = "" if isinstance(problem, Misfit) else f"{type(problem).__name__}: "
        where = f"sub-env {self.indices[place]}, episode {self.episode[place]}, step {self._now - self._begun[place]}"
        action = f", action {choice[0]}" if choice else ""
        return f"env {self.name} failed in {call}: {kind}{problem} ({where}{action})"


def _kept(part: Any) -> Any:
    """As it is now: some envs write all their observations into one array."""
    return part.copy() if isinstance(part, np.ndarray) else part


def _rewards(given: list[Any]) -> np.ndarray:
    """(N,) rewards. Raises Misfit where one is no number, NaN or infinite."""
    try:
        reward = np.array(given, np.float64)
        if reward.ndim == 1 and isfinite(sum(given)):
            return reward
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([_reward(place, gain) for place, gain in enumerate(given)], np.float64)


def _reward(place: int, gain: Any) -> float:
    try:
        value = np.asarray(gain)
    except ValueError:
        value = np.asarray(None)
    if value.dtype.kind not in "biuf" or value.size != 1:
        raise Misfit(place, f"its reward is {gain!r}, not a number")
    if not isfinite(value.item()):
        raise Misfit(place, f"its reward is {gain}")
    return float(value.item())


def _check_finite(obs: Arrays, given: list[Any]) -> None:
    """Raise Misfit where an observation is NaN or infinite."""
    faulty = first_not_finite(obs)
    if faulty is not None:
        raise Misfit(faulty, f"its observation is {given[faulty]}")


def _check_ends(ended: dict[int, tuple[Any, Any, dict]]) -> None:
    """Raise Misfit where what is told of an episode's end is not what gymnasium's envs tell."""
    for place, (terminal, cut, info) in ended.items():
        for label, flag in (("terminated", terminal), ("truncated", cut)):
            if np.size(flag) != 1:
                raise Misfit(place, f"its {label} is {flag!r}, not true or false")
        if not isinstance(info, dict):
            raise Misfit(place, f"its info is {info!r}, not a dict")
