"""How good an agent is: whole episodes, played greedily, on envs that training never sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slm_lab.agent.agent import Agent
from slm_lab.env import Statistics, VectorEnv
from slm_lab.env.vector import STEPS_WITHOUT_LIMIT
from slm_lab.spec.schema import EnvSpec


def step_limit(env: VectorEnv) -> float:
    """Where an episode is ended that the env may never end; infinity where the env has a time limit."""
    return STEPS_WITHOUT_LIMIT if env.time_limit is None else math.inf


def cut_note(env: VectorEnv) -> str:
    """What to tell a user of episodes that were ended there."""
    ends = f"evaluation episodes end after {STEPS_WITHOUT_LIMIT:,} steps"
    return f"{env.name} sets no time limit: {ends}; set env.max_t"


@dataclass(frozen=True)
class Evaluation:
    returns: np.ndarray  # (episodes,)  of those that were not lost
    lengths: np.ndarray  # (episodes,)  steps
    note: str = ""  # what a user should know of it
    lost: tuple[str, ...] = ()  # what became of episodes whose env failed

    def row(self) -> dict[str, float | None]:
        """Its columns of the eval table; empty ones where all episodes were lost."""
        if not len(self.returns):
            return {"episodes": 0, **dict.fromkeys(("return", "return_std", "return_min", "return_max", "length"))}
        return {
            "episodes": len(self.returns),
            "return": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "return_min": float(self.returns.min()),
            "return_max": float(self.returns.max()),
            "length": float(self.lengths.mean()),
        }


class Evaluator:
    """Plays `episodes` greedy episodes, one on each of as many envs.

    Which episodes they are depends on the session's seed and the frame alone, so there is no state to save.
    """

    def __init__(
        self, spec: EnvSpec, episodes: int, seed: int, statistics: Statistics | None = None, restarts: bool = False
    ):
        """`statistics`: of the env that trains, by which observations are normalized; they are used as they are.
        `restarts`: where an env fails its episode does not count; else EnvFault is raised."""
        keywords: dict[str, Any] = {"stream": "eval", "training": False, "statistics": statistics, "restarts": restarts}
        self.env = VectorEnv(spec, seed, num_envs=episodes, **keywords)
        self.limit = step_limit(self.env)

    def run(self, agent: Agent, frame: int, stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """The evaluation, or None if it was asked to `stop`: done again, it gives what it would have given."""
        env = self.env
        obs = env.begin_stream(f"eval at {frame}")
        carried = agent.first_carried(env.num_envs)  # of the one episode that counts in each
        returns = np.zeros(env.num_envs)
        lengths = np.zeros(env.num_envs, np.int64)
        playing = np.ones(env.num_envs, np.bool_)
        counted = np.ones(env.num_envs, np.bool_)
        lost = [f"an episode of the evaluation at {frame} is passed over: {late.reason}" for late in env.take_unbegun()]
        while playing.any():
            if stop():
                return None
            step = env.step(agent.act(obs, frame, explore=False, carried=carried))
            returns += np.where(playing, step.reward, 0)
            lengths += playing
            for entry in step.lost:
                if playing[entry.env]:
                    counted[entry.env] = False
                    lost.append(f"an episode of the evaluation at {frame} does not count: {entry.reason}")
            playing &= ~(step.terminated | step.truncated) & (lengths < self.limit)
            obs = step.obs
        returns, lengths = returns[counted], lengths[counted]
        return Evaluation(returns, lengths, cut_note(env) if (lengths >= self.limit).any() else "", tuple(lost))

    def close(self) -> None:
        self.env.close()
