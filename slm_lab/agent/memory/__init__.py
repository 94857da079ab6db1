"""Experience: stored once, drawn fast, exact at every boundary. Usable alone; see docs/memory.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymnasium import spaces

from slm_lab.agent.memory.memory import Memory
from slm_lab.errors import InvalidMemorySpec, Mistake, SpecError
from slm_lab.spec import registry
from slm_lab.spec.schema import read_block
from slm_lab.spec.settings import Settings

__all__ = ["Memory", "make_memory"]


def make_memory(
    block: dict[str, Any] | Settings,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_envs: int = 1,
    gamma: float = 0.99,
    seed: int = 0,
    path: Path | None = None,
    *,
    training_frequency: int = 1,
    training_start_step: int = 0,
    compute_reward: Callable | None = None,
    compute_terminated: Callable | None = None,
) -> Memory:
    """The memory that a spec's block names, for rows of `num_envs` envs with these (single-env) spaces.

    `training_frequency` counts frames for replay memories, vector steps for OnPolicyBatchReplay, complete episodes for
    OnPolicyReplay; `training_start_step` counts frames. `compute_reward` and `compute_terminated` are a goal env's own:
    (achieved goals, desired goals, infos) -> one value for each, with a leading axis.
    """
    settings = block if isinstance(block, Settings) else _read(block)
    return registry.find("memory", settings.name)(
        settings,
        observation_space,
        action_space,
        num_envs=num_envs,
        gamma=gamma,
        seed=seed,
        training_frequency=training_frequency,
        training_start_step=training_start_step,
        path=path,
        compute_reward=compute_reward,
        compute_terminated=compute_terminated,
    )


def _read(block: Any) -> Settings:
    try:
        return read_block("memory", {"name": "Replay", **block} if isinstance(block, dict) else block)
    except SpecError as problem:
        mistakes = [Mistake(mistake.path.lstrip("."), mistake.problem) for mistake in problem.mistakes]
        raise InvalidMemorySpec(mistakes) from None
