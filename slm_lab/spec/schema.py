"""The outer shape of a spec, as typed and frozen models; the agent's three blocks belong to the classes they name."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator

from slm_lab.spec.settings import Settings

DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


class AgentSpec(Settings):
    """Who learns: an algorithm, the memory it learns from and the net it trains."""

    name: str = Field("agent", description="a name for the agent; the lab only prints it")
    algorithm: SerializeAsAny[Settings] = Field(description="the algorithm's block, chosen by its 'name'")
    memory: SerializeAsAny[Settings] | None = Field(None, description="the memory's block, chosen by its 'name'")
    net: SerializeAsAny[Settings] | None = Field(None, description="the net's block, chosen by its 'type'")


class EnvSpec(Settings):
    """Where it learns: a gymnasium env, how many copies of it, and for how long."""

    name: str = Field(description="id of a gymnasium env, such as CartPole-v1")
    num_envs: int = Field(1, ge=1, description="copies of the env that are stepped together")
    max_t: int | None = Field(None, ge=1, description="longest episode, in steps of one copy; null: as the env says")
    max_frame: int = Field(ge=1, description="length of a session in frames: env steps, all copies together")
    kwargs: dict[str, Any] = Field({}, description="keywords for the env itself, as gymnasium.make takes them")


class MetaSpec(Settings):
    """How the lab runs it: seeds, sessions, how often to log and evaluate, where to compute."""

    seed: int | None = Field(None, ge=0, description="seeds everything; null: one is drawn, printed and saved")
    max_session: int = Field(1, ge=1, description="sessions of a trial: the same spec with different seeds")
    max_trial: int = Field(1, ge=1, description="trials of a search; 1 where nothing is searched")
    log_frequency: int | None = Field(None, ge=1, description="frames between rows of the train table; null: automatic")
    eval_frequency: int = Field(10000, ge=1, description="frames between evaluations, which are also the checkpoints")
    rigorous_eval: int = Field(
        8,
        ge=0,
        description="greedy episodes of an evaluation, on envs of its own; 0: no such envs, "
        "the moving average of the training returns counts",
    )
    distributed: Literal[False, "shared", "synced"] = Field(
        False, description="sessions that share one net: 'shared' (Hogwild) or 'synced' gradients; false: each its own"
    )
    compile: bool | Literal["auto"] = Field(
        "auto", description="compile the learn step; auto: where the run is long enough to pay for it"
    )
    device: str = Field("cpu", description="where to compute: 'auto', 'cpu', 'cuda', 'cuda:0', 'mps'")

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not DEVICE.fullmatch(device):
            raise ValueError("must be one of 'auto', 'cpu', 'cuda', 'cuda:0' (or another number), 'mps'")
        return device


class Spec(Settings):
    """One experiment: everything that it takes to run it again."""

    name: str = Field(description="the key of the spec in its file")
    description: str | None = Field(None, description="one line for the list of specs")
    agent: AgentSpec
    env: EnvSpec
    meta: MetaSpec = MetaSpec()
    search: dict[str, Any] | None = Field(None, description="search space over the keys of the spec, SLM Lab's grammar")
    spec_params: dict[str, Any] | None = Field(None, description="values for ${name} places of a spec template")
