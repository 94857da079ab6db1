"""N copies of one env stepped together, each episode of each with its own seed.

Because an episode is fixed by (seed, env index, episode number), the state of every sub-env at any moment is that
triple plus the actions since its reset: a few hundred bytes, restored by replaying them. It works for envs that cannot
be pickled, wherever they are stepped.
"""

from __future__ import annotations

import multiprocessing
from hashlib import blake2b
from typing import Any

import gymnasium
import numpy as np

from slm_lab.env.action_log import ActionLog
from slm_lab.env.arrays import policy_space
from slm_lab.env.make import goal_functions, make_env, time_limit, today
from slm_lab.env.native import Native, refuse
from slm_lab.env.scaling import ObsScaling, RewardScaling, Statistics
from slm_lab.env.sub_envs import SubEnvs
from slm_lab.env.workers import Workers
from slm_lab.env.wrappers import reward_scale
from slm_lab.errors import RunError
from slm_lab.lib.machine import usable_cores
from slm_lab.lib.trees import mapped
from slm_lab.spec.schema import EnvSpec
from slm_lab.types import Arrays, Lost, Step

FORGOTTEN = 4096  # steps after which those that no episode needs any more are dropped from the log of actions
# Envs of which a step takes much longer than to hand it to another process and back (benchmark/env.py measures it).
HEAVY = ("ale_py",)
STEPS_WITHOUT_LIMIT = 10_000  # of an episode that the env may never end, where nobody learns from it
FEWEST_FOR_WORKERS = 4  # sub-envs, and cores: with two, whatever else runs makes all wait for the slower worker


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
        training: bool = True,
        statistics: Statistics | None = None,
        gamma: float = 0.99,
        restarts: bool = False,
    ):
        """`training`: rewards are scaled as the spec says, lost lives may end episodes, and statistics are gathered;
        else observations are scaled by `statistics` of the env that trains, as they are, and rewards are the env's.
        `gamma`: of the return that `normalize_reward` goes by. `restarts`: one that fails begins its next episode.
        """
        self.spec, _ = today(spec)
        self.num_envs = num_envs or spec.num_envs
        self.name = self.spec.name
        self.seed, self.stream, self.training = seed, stream, training
        keywords: dict[str, Any] = {"stream": stream, "training": training, "restarts": restarts}
        self._rows: SubEnvs | Workers | Native
        way = "sync" if render_mode else how_to_step(self.spec, self.num_envs)
        if way == "native":
            refuse(self.spec)
        if way != "sync":
            self.envs = [make_env(self.spec, training=training)]  # to be asked, not stepped
            kind = {"async": Workers, "native": Native}[way]
            self._rows = kind(self.spec, seed, self.num_envs, **keywords)
        else:
            self._rows = SubEnvs(self.spec, seed, range(self.num_envs), render_mode=render_mode, **keywords)
            self.envs = self._rows.envs
        space = self.envs[0].observation_space
        if spec.normalize_obs and statistics is None:
            statistics = Statistics(space)
        self.statistics = statistics
        self._scale_obs = ObsScaling(space, statistics, spec.clip_obs)
        scale = reward_scale(self.spec) if training else 1.0
        keys = (spec.normalize_reward, spec.clip_reward) if training else (False, None)
        self._scale_reward = RewardScaling(scale, *keys, gamma, self.num_envs)
        self.scales = self._scale_obs.changes or self._scale_reward.changes
        self.observation_space = self._scale_obs.space
        self.action_space = policy_space(self.envs[0].action_space)
        self.goal_functions = goal_functions(self.envs[0], self.spec)
        self.time_limit = time_limit(self.envs[0])
        self.episode = [-1] * self.num_envs  # number of the current episode of each sub-env
        self.unbegun: list[Lost] = []  # episodes passed over since the last `take_unbegun`: their reset failed
        self.strayed: list[int] = []  # sub-envs that a saved state could not be restored to: they began anew
        self._obs: Arrays = None  # (N, ...) to act on now, as the envs gave them
        self._actions = ActionLog(self.action_space, self.num_envs)
        self._begun = [0] * self.num_envs  # step of the log that was the first since the sub-env's reset

    def reset(self) -> Arrays:
        """(N, ...) the first observations of the next episode of every sub-env."""
        self.episode = [number + 1 for number in self.episode]
        self._actions.clear()
        self._begun = [0] * self.num_envs
        self._obs = self._rows.begin(self.episode, self.stream)
        self._pass_over()
        if self.training and self.statistics is not None:
            self.statistics.add(self._obs)
        return self.current_obs()

    def begin_stream(self, stream: str) -> Arrays:
        """(N, ...) the first observations of another stream of episodes, which begins at its episode 0."""
        self.stream = stream
        self.episode, self.unbegun = [-1] * self.num_envs, []
        return self.reset()

    def step(self, action: Arrays) -> Step:
        """Step every sub-env; one whose episode ends is reset within the same call (its `obs` is then the new first).

        Where no episode ended, `obs` and `next_obs` are the same arrays. Raises EnvFault where an env fails; the state
        is then still that of the moment before.
        """
        step = self._rows.step(action)
        self._actions.append(action)
        self._obs = step.obs
        if step.obs is not step.next_obs:
            self._count_episodes(step)
        return self._scaled(step) if self.scales else step

    def current_obs(self) -> Arrays:
        """(N, ...) the observations to act on now."""
        return self._scale_obs(self._obs) if self._scale_obs.changes else _copy(self._obs)

    def take_unbegun(self) -> list[Lost]:
        """Episodes that were passed over since the last call, because their reset failed."""
        taken, self.unbegun = self.unbegun, []
        return taken

    def render(self) -> Any:
        return self._rows.render()

    def close(self) -> None:
        self._rows.close()
        if not isinstance(self._rows, SubEnvs):
            self.envs[0].close()

    def _count_episodes(self, step: Step) -> None:
        over = step.terminated | step.truncated
        if step.goes_on is not None:
            over &= ~step.goes_on
        for index in over.nonzero()[0].tolist():
            self.episode[index] += 1
            self._begun[index] = self._actions.steps
        self._pass_over()
        if self._actions.steps > FORGOTTEN and min(self._begun) > FORGOTTEN // 2:
            oldest = min(self._begun)
            self._actions.forget(oldest)
            self._begun = [begun - oldest for begun in self._begun]

    def _pass_over(self) -> None:
        for lost in self._rows.take_unbegun():
            self.episode[lost.env] += 1
            self.unbegun.append(lost)

    def _scaled(self, step: Step) -> Step:
        obs, next_obs = step.obs, step.next_obs
        if self._scale_obs.changes:
            if self.training and self.statistics is not None:
                self.statistics.add(obs)
            next_obs = self._scale_obs(next_obs)
            obs = next_obs if step.obs is step.next_obs else self._scale_obs(obs)
        if not self._scale_reward.changes:
            return step._replace(obs=obs, next_obs=next_obs)
        reward = self._scale_reward(step.reward, step.terminated | step.truncated)
        return step._replace(obs=obs, next_obs=next_obs, reward=reward, score=step.reward)

    def statistics_state(self) -> dict | None:
        """What the best policy knows observations by; None where they are as the env gives them."""
        return None if self.statistics is None else self.statistics.state_dict()

    def state_dict(self) -> dict:
        begun = self.episode[0] >= 0
        actions = [self._actions.since(start, index) for index, start in enumerate(self._begun)]
        return {
            "episode": list(self.episode),
            "actions": actions if begun else [],
            "obs": [_digest(self._obs, index) for index in range(self.num_envs)] if begun else [],
            "statistics": self.statistics_state(),
            "reward": self._scale_reward.state_dict(),
        }

    def load_state_dict(self, tree: dict) -> None:
        """Go back to that moment: reset each sub-env with its episode's seed and replay the actions since.

        An env that does not come to the same observation again, which a few simulators do not, begins its next episode
        instead; `strayed` tells which.
        """
        numbers = [int(number) for number in tree["episode"]]
        if min(numbers, default=-1) < -1 or len({number < 0 for number in numbers}) > 1:
            raise RunError(f"the checkpoint holds episodes {numbers}, of which there are none")
        if len(numbers) != self.num_envs or (numbers[0] >= 0 and len(tree["obs"]) != self.num_envs):
            raise RunError(f"the checkpoint holds {len(numbers)} sub-envs, the spec asks for {self.num_envs}")
        if self.statistics is not None and tree["statistics"] is not None:
            self.statistics.load_state_dict(tree["statistics"])
        self._scale_reward.load_state_dict(tree["reward"])
        self.episode, self.strayed = numbers, []
        if numbers[0] < 0:  # saved before the first reset
            self._obs = None
            return
        self._obs = self._rows.replay(numbers, tree["actions"], self.stream)
        self._begun = self._actions.take_up(tree["actions"])
        self.strayed = [index for index, was in enumerate(tree["obs"]) if _digest(self._obs, index) != was]
        if self.strayed:
            self._begin_anew(tree["actions"])
            self._scale_reward.forget(self.strayed)

    def _begin_anew(self, actions: list[Arrays]) -> None:
        """The next episode in sub-envs that strayed; the others go through what they have come to again."""
        for index in self.strayed:
            self.episode[index] += 1
            actions[index] = mapped(lambda part: part[:0], actions[index])
        self._obs = self._rows.replay(self.episode, actions, self.stream)
        self._begun = self._actions.take_up(actions)


def spaces_of(env: gymnasium.Env, spec: EnvSpec) -> tuple[gymnasium.Space, gymnasium.Space]:
    """The spaces of observations and actions as a vector env of such envs has them: an agent's own."""
    statistics = Statistics(env.observation_space) if spec.normalize_obs else None
    return ObsScaling(env.observation_space, statistics, spec.clip_obs).space, policy_space(env.action_space)


def how_to_step(spec: EnvSpec, num_envs: int) -> str:
    """By sync, async or native: as the spec says; for "auto", as was measured to be faster (docs/environments.md)."""
    if spec.vectorization != "auto":
        return "sync" if spec.vectorization == "async" and num_envs == 1 else spec.vectorization
    known = gymnasium.registry.get(spec.name)
    heavy = known is not None and str(known.entry_point).startswith(HEAVY)
    alone = multiprocessing.parent_process() is None  # else other sessions have the other cores
    enough = min(num_envs, usable_cores()) >= FEWEST_FOR_WORKERS
    return "async" if heavy and alone and enough else "sync"


def _copy(values: Arrays) -> Arrays:
    return mapped(np.array, values)


def _digest(obs: Arrays, index: int) -> str:
    """A few letters that tell observations apart."""
    parts = obs.values() if isinstance(obs, dict) else (obs,)
    return blake2b(b"".join(part[index].tobytes() for part in parts), digest_size=8).hexdigest()
