"""An algorithm with its memory, built from the spec and the env's spaces: acts, remembers, learns."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from slm_lab.agent.algorithm.algorithm import Site
from slm_lab.agent.memory import make_memory
from slm_lab.agent.memory.store import Store
from slm_lab.errors import Mistake
from slm_lab.lib import seeds
from slm_lab.spec import registry
from slm_lab.spec.schema import AgentSpec, MetaSpec, Spec
from slm_lab.types import Step

GoalFunctions = tuple[Callable | None, Callable | None]
STEPS_THAT_PAY = 50_000  # compiling takes some 12 s (3 s once cached) and saves about 0.25 ms a learn step


class Agent:
    def __init__(
        self,
        spec: Spec,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        seed: int,
        goal_functions: GoalFunctions = (None, None),
        memory_folder: Path | None = None,
    ):
        """`goal_functions`: the env's compute_reward and compute_terminated, for a memory that relabels goals;
        `memory_folder`: where a memory on disk keeps its rows, a temporary folder if None."""
        settings = spec.agent.algorithm
        num_envs = spec.env.num_envs
        device = device_name(spec.meta.device)
        site = Site(observation_space, action_space, seed, device, compile_pays(spec), num_envs)
        self.algorithm = registry.find("algorithm", settings.name)(settings, spec.agent.net, site)
        self.memory = None
        if self.algorithm.needs_learning:
            self.memory = make_memory(
                spec.agent.memory,
                observation_space,
                action_space,
                num_envs=num_envs,
                gamma=settings.gamma,
                seed=seeds.derive(seed, "memory"),
                path=memory_folder,
                training_frequency=settings.rows_to_learn(num_envs),
                training_start_step=settings.first_learning_frame(),
                compute_reward=goal_functions[0],
                compute_terminated=goal_functions[1],
            )

    def act(self, obs: Any, frame: int, explore: bool = True) -> np.ndarray:
        """(N, ...) an action for each observation."""
        return self.algorithm.act(obs, frame, explore)

    def remember(self, obs: Any, action: np.ndarray, step: Step) -> None:
        if self.memory is not None:
            self.memory.add(obs, action, step.reward, step.terminated, step.truncated, step.next_obs)
            self.algorithm.remember(obs, action, step)

    def learn(self, frame: int) -> None:
        """As many learn rounds as are due at this frame."""
        if self.memory is not None:
            for _ in range(self.memory.due(frame)):
                self.algorithm.learn(self.memory, frame)

    def keep_rows_in(self, folder: Path) -> None:
        """From now on `state_dict` leaves a replay memory's rows there, in files that only grow, and tells of them."""
        if self.memory is not None and not self.memory.on_policy:
            self.memory.ring.store = Store(folder)

    def saved(self) -> None:
        """The last `state_dict` is on the disk, and what only the ones before its predecessor need can go."""
        if self.memory is not None and self.memory.ring.store is not None:
            self.memory.ring.store.confirm()

    def describe_memory(self) -> dict:
        """What the memory holds, as JSON values; nothing where there is no memory."""
        return {} if self.memory is None else self.memory.describe()

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()

    def state_dict(self) -> dict:
        return {
            "algorithm": self.algorithm.state_dict(),
            "memory": None if self.memory is None else self.memory.state_dict(),
        }

    def load_state_dict(self, tree: dict) -> None:
        self.algorithm.load_state_dict(tree["algorithm"])
        if self.memory is not None:
            self.memory.load_state_dict(tree["memory"])


def check_agent(
    spec: Spec,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    goal_functions: GoalFunctions = (None, None),
) -> list[Mistake]:
    """Which parts of the agent do not fit each other or the env; empty where all do."""
    algorithm = registry.find("algorithm", spec.agent.algorithm.name)
    mistakes = list(algorithm.check(spec.agent.algorithm, action_space))
    if algorithm.needs_learning:
        unfitting = _check_memory(spec.agent, algorithm)
        if not unfitting:
            memory = registry.find("memory", spec.agent.memory.name)
            found = memory.check(spec.agent.memory, observation_space, *goal_functions)
            mistakes += [Mistake(f"agent.memory.{mistake.path}".rstrip("."), mistake.problem) for mistake in found]
        mistakes += unfitting
        mistakes += registry.find("net", spec.agent.net.type).check(spec.agent.net, observation_space)
        mistakes += _check_net(spec.agent, algorithm)
    return mistakes + check_place(spec.meta)


def check_parts(agent: AgentSpec) -> list[Mistake]:
    """Which parts of the agent do not fit each other, whatever the env."""
    algorithm = registry.find("algorithm", agent.algorithm.name)
    if not algorithm.needs_learning:
        return []
    return _check_memory(agent, algorithm) + _check_net(agent, algorithm)


def check_place(meta: MetaSpec) -> list[Mistake]:
    """What the spec asks for that this machine, or this version of the lab, does not have."""
    mistakes = []
    if meta.distributed:
        mistakes.append(Mistake("meta.distributed", "sessions that share one net are not available; use false"))
    if meta.compile is True and not has_compiler():
        mistakes.append(Mistake("meta.compile", "true needs a C++ compiler on the PATH, and there is none; use false"))
    try:
        torch.zeros(1, device=device_name(meta.device))
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).splitlines()[0]
        mistakes.append(Mistake("meta.device", f"'{meta.device}' cannot be used here ({reason}); use 'cpu'"))
    return mistakes


def _check_net(agent: AgentSpec, algorithm: Any) -> list[Mistake]:
    net = registry.find("net", agent.net.type)
    if net.needs_head in (None, *algorithm.heads):
        return []
    problem = f"shapes the '{net.needs_head}' head; {agent.algorithm.name} asks for {' and '.join(algorithm.heads)}"
    return [Mistake("agent.net.type", f"{agent.net.type} {problem}: use MLPNet")]


def _check_memory(agent: AgentSpec, algorithm: Any) -> list[Mistake]:
    name = agent.memory.name
    memory = registry.find("memory", name)
    if memory.gives != algorithm.learns_from:
        problem = f"gives {memory.gives}; {agent.algorithm.name} learns from {algorithm.learns_from}"
        return [Mistake("agent.memory.name", f"'{name}' {problem}: use {_that_fit(algorithm)}")]
    if algorithm.on_policy is None or memory.on_policy == algorithm.on_policy:
        return []
    kind = "on-policy, from its newest rows" if algorithm.on_policy else "off-policy, from rows drawn again and again"
    return [
        Mistake(
            "agent.memory.name",
            f"{agent.algorithm.name} learns {kind}: '{name}' does not fit; use {_that_fit(algorithm)}",
        )
    ]


def _that_fit(algorithm: Any) -> str:
    known = {name: registry.find("memory", name) for name in registry.names("memory")}
    fitting = [
        name
        for name, memory in known.items()
        if memory.gives == algorithm.learns_from and algorithm.on_policy in (None, memory.on_policy)
    ]
    return " or ".join(fitting)


def device_name(device: str) -> str:
    """The device that 'auto' stands for here; any other name as it is."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def compile_pays(spec: Spec) -> bool:
    """Whether to compile the learn step: as the spec says, or for `auto` where the run is long enough for it."""
    algorithm = spec.agent.algorithm
    if spec.meta.compile != "auto" or not hasattr(algorithm, "opt_steps"):
        return spec.meta.compile is True
    return has_compiler() and algorithm.opt_steps(spec.env.max_frame, spec.env.num_envs) >= STEPS_THAT_PAY


def has_compiler() -> bool:
    """Whether there is the C++ compiler that torch.compile calls."""
    return shutil.which("clang++" if sys.platform == "darwin" else "g++") is not None
