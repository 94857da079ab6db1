"""N copies of one env stepped together, each episode of each with its own seed.

Because an episode is fixed by (seed, env index, episode number), the state of every sub-env at any moment is that
triple plus the actions since its reset: a few hundred bytes, restored by replaying them. It works for envs that cannot
be pickled.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from slm_lab.env.arrays import first_not_finite, make_gather, make_scatter
from slm_lab.env.make import EnvFault, goal_functions, make_env, time_limit
from slm_lab.errors import RunError
from slm_lab.lib import seeds
from slm_lab.spec.schema import EnvSpec
from slm_lab.types import Arrays, Step


class VectorEnv:
    """A single env is a vector of one: there is no second code path.

    `stream` keeps the episodes of different uses apart: "train" and "eval" never meet the same episode seeds.
    """

    def __init__(
        self,
        spec: EnvSpec,
        seed: int,
        *,
        num_envs: int | None = None,
        stream: str = "train",
        render_mode: str | None = None,
    ):
        self.num_envs = num_envs or spec.num_envs
        self.name = spec.name
        self.seed = seed
        self.stream = stream
        self.envs = [make_env(spec, render_mode if index == 0 else None) for index in range(self.num_envs)]
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self.goal_functions = goal_functions(self.envs[0])
        self.time_limit = time_limit(self.envs[0])
        self._gather = make_gather(self.observation_space)
        self._gather_actions = make_gather(self.action_space)
        self._scatter = make_scatter(self.action_space)
        self.episode = [-1] * self.num_envs  # number of the current episode of each sub-env
        self._actions: list[list[Any]] = [[] for _ in self.envs]  # since its reset
        self._obs: list[Any] = [None] * self.num_envs

    def reset(self) -> Arrays:
        """(N, ...) the first observations of the next episode of every sub-env."""
        for index in range(self.num_envs):
            self._begin(index)
        return self.current_obs()

    def begin_stream(self, stream: str) -> Arrays:
        """(N, ...) the first observations of another stream of episodes, which begins at its episode 0."""
        self.stream = stream
        self.episode = [-1] * self.num_envs
        return self.reset()

    def step(self, action: Arrays) -> Step:
        """Step every sub-env; one whose episode ends is reset within the same call (its `obs` is then the new first).

        Where no episode ended, `obs` and `next_obs` are the same arrays.
        """
        current, actions = self._obs, self._actions
        reward = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, np.bool_)
        truncated = np.empty(self.num_envs, np.bool_)
        ended = []
        chosen = self._scatter(action)
        for index, (env, choice) in enumerate(zip(self.envs, chosen, strict=True)):
            try:
                obs, gain, terminal, cut, _ = env.step(choice)
            except Exception as problem:  # an env is foreign code: whatever it raises is told with its place
                raise EnvFault(self._told(index, "step", problem, action=choice)) from problem
            current[index], reward[index], terminated[index], truncated[index] = obs, gain, terminal, cut
            actions[index].append(choice)
            if terminal or cut:
                ended.append(index)
            if not isfinite(gain):
                raise EnvFault(self._told(index, "step", ValueError(f"its reward is {gain}"), action=choice))
        next_obs = obs = self._gather(current)
        faulty = first_not_finite(next_obs)
        if faulty is not None:  # in the memory it would spoil the nets long before anybody saw it
            fault = ValueError(f"its observation is {current[faulty]}")
            raise EnvFault(self._told(faulty, "step", fault, action=chosen[faulty]))
        if ended:
            for index in ended:
                self._begin(index)
            obs = self._gather(current)
        return Step(obs, next_obs, reward, terminated, truncated)

    def current_obs(self) -> Arrays:
        """(N, ...) the observations to act on now."""
        return self._gather(self._obs)

    def render(self) -> Any:
        return self.envs[0].render()

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _begin(self, index: int) -> None:
        self.episode[index] += 1
        self._actions[index] = []
        episode_seed = seeds.derive(self.seed, self.stream, index, self.episode[index])
        try:
            self._obs[index], _ = self.envs[index].reset(seed=episode_seed)
        except Exception as problem:  # foreign code, as in step
            raise EnvFault(self._told(index, "reset", problem)) from problem

    def _told(self, index: int, call: str, problem: Exception, **more: Any) -> str:
        place = {"sub-env": index, "episode": self.episode[index], "actions since its reset": len(self._actions[index])}
        details = ", ".join(f"{key} {value}" for key, value in (place | more).items())
        return f"env {self.name} failed in {call}: {type(problem).__name__}: {problem} ({details})"

    def state_dict(self) -> dict:
        return {
            "episode": list(self.episode),
            "actions": [self._gather_actions(actions) for actions in self._actions],
        }

    def load_state_dict(self, tree: dict) -> None:
        """Go back to that moment: reset each sub-env with its episode's seed and replay the actions since."""
        if len(tree["episode"]) != self.num_envs:
            raise RunError(f"the checkpoint holds {len(tree['episode'])} sub-envs, the spec asks for {self.num_envs}")
        for index, (number, actions) in enumerate(zip(tree["episode"], tree["actions"], strict=True)):
            self.episode[index] = int(number) - 1
            if number < 0:  # saved before the first reset
                self.episode[index], self._actions[index], self._obs[index] = -1, [], None
                continue
            self._begin(index)
            for action in self._scatter(actions):
                self._obs[index] = self.envs[index].step(action)[0]
                self._actions[index].append(action)
