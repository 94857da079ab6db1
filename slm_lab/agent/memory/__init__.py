"""Experience: stored once, drawn fast, exact at every boundary. Usable alone; see docs/memory.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium import spaces
from pydantic import ValidationError

from slm_lab.agent.memory.memory import Memory
from slm_lab.errors import InvalidMemorySpec, Mistake
from slm_lab.spec import registry
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
) -> Memory:
    """The memory that a spec's block names, for rows of `num_envs` envs with these (single-env) spaces.

    `training_frequency` counts frames for replay memories, vector steps for OnPolicyBatchReplay, complete episodes for
    OnPolicyReplay; `training_start_step` counts frames.
    """
    name = block.get("name", "Replay") if isinstance(block, dict) else block.name
    preset = registry.find("memory", name)
    return preset(
        _settings(preset, block) if isinstance(block, dict) else block,
        observation_space,
        action_space,
        num_envs=num_envs,
        gamma=gamma,
        seed=seed,
        training_frequency=training_frequency,
        training_start_step=training_start_step,
        path=path,
    )


def _settings(preset: type[Memory], block: dict[str, Any]) -> Settings:
    try:
        return preset.Settings.model_validate(block)
    except ValidationError as problem:
        raise InvalidMemorySpec(
            [_mistake(error, list(preset.Settings.model_fields)) for error in problem.errors()]
        ) from None


def _mistake(error: Any, keys: list[str]) -> Mistake:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        guess = registry.nearest(path, keys)
        return Mistake(path, "no such key; " + (f"did you mean '{guess}'?" if guess else f"known: {', '.join(keys)}"))
    return Mistake(path, error["msg"].removeprefix("Value error, "))
