"""N copies of one env stepped together, each episode of each with its own seed.

Because an episode is fixed by (seed, env index, episode number), the state of every sub-env at any moment is that
triple plus the actions since its reset: a few hundred bytes, restored by replaying them. It works for envs that cannot
be pickled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.env.make import EnvFault, make_env
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
        self._gather = make_gather(self.observation_space)
        self._scatter = make_scatter(self.action_space)
        self.episode = [-1] * self.num_envs  # number of the current episode of each sub-env
        self._actions: list[list[Any]] = [[] for _ in self.envs]  # since its reset
        self._obs: list[Any] = [None] * self.num_envs

    def reset(self) -> Arrays:
        """(N, ...) the first observations of the next episode of every sub-env."""
        for index in range(self.num_envs):
            self._begin(index)
        return self._gather(self._obs)

    def step(self, action: Arrays) -> Step:
        """Step every sub-env; one whose episode ends is reset within the same call (its `obs` is then the new first)."""
        count = self.num_envs
        reward = np.empty(count, np.float64)
        terminated = np.zeros(count, np.bool_)
        truncated = np.zeros(count, np.bool_)
        current = self._obs
        ended = []
        for index, (env, chosen) in enumerate(zip(self.envs, self._scatter(action), strict=True)):
            try:
                current[index], reward[index], terminated[index], truncated[index], _ = env.step(chosen)
            except Exception as problem:  # an env is foreign code: whatever it raises is told with its place
                raise EnvFault(self._where(index, chosen, problem)) from problem
            self._actions[index].append(chosen)
            if terminated[index] or truncated[index]:
                ended.append(index)
        next_obs = obs = self._gather(current)
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
        self._obs[index], _ = self.envs[index].reset(seed=self._episode_seed(index))

    def _episode_seed(self, index: int) -> int:
        return seeds.derive(self.seed, self.stream, index, self.episode[index])

    def _where(self, index: int, action: Any, problem: Exception) -> str:
        step = len(self._actions[index])
        return (
            f"env {self.name} raised {type(problem).__name__}: {problem} "
            f"(sub-env {index}, episode {self.episode[index]}, step {step}, action {action})"
        )

    def state_dict(self) -> dict:
        return {"episode": list(self.episode), "actions": [np.asarray(actions) for actions in self._actions]}

    def load_state_dict(self, tree: dict) -> None:
        """Go back to that moment: reset each sub-env with its episode's seed and replay the actions since."""
        if len(tree["episode"]) != self.num_envs:
            raise RunError(f"the checkpoint holds {len(tree['episode'])} sub-envs, the spec asks for {self.num_envs}")
        for index, (number, actions) in enumerate(zip(tree["episode"], tree["actions"], strict=True)):
            self.episode[index] = int(number) - 1
            self._begin(index)
            for action in self._replayable(actions):
                self._obs[index] = self.envs[index].step(action)[0]
                self._actions[index].append(action)

    def _replayable(self, actions: np.ndarray) -> list[Any]:
        return actions.tolist() if isinstance(self.action_space, spaces.Discrete) else list(actions)


def make_gather(space: spaces.Space):
    """A function that stacks one observation per sub-env to arrays with a leading axis; dotted keys for nested spaces."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        gathers = {key: make_gather(part) for key, part in parts}

        def gather_parts(observations: list[Any]) -> dict[str, Any]:
            return flatten_keys({str(key): gather([obs[key] for obs in observations]) for key, gather in gathers.items()})

        return gather_parts
    shape, dtype = space.shape or (), space.dtype

    def gather(observations: list[Any]) -> np.ndarray:
        out = np.empty((len(observations), *shape), dtype)
        for index, obs in enumerate(observations):
            out[index] = obs
        return out

    return gather


def flatten_keys(tree: dict[str, Any]) -> dict[str, Any]:
    """{"a": {"b": x}} -> {"a.b": x}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": leaf for inner, leaf in value.items()})
        else:
            flat[key] = value
    return flat


def make_scatter(space: spaces.Space):
    """A function that splits actions with a leading axis into what each sub-env's `step` takes.

    Box actions are clipped to the env's bounds here, so the memory keeps the action as the policy drew it.
    """
    if isinstance(space, spaces.Discrete):
        return lambda action: action.tolist()
    if isinstance(space, spaces.Box):
        low, high, dtype = space.low, space.high, space.dtype
        return lambda action: list(np.clip(action, low, high).astype(dtype, copy=False))
    return list
