"""An algorithm with its memory, built from the spec and the env's spaces: acts, remembers, learns."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pydantic import ValidationError

from slm_lab.agent.algorithm.algorithm import Algorithm, Site
from slm_lab.agent.algorithm.recurrent import Carried
from slm_lab.agent.common import Common
from slm_lab.agent.memory import make_memory
from slm_lab.agent.memory.store import Store
from slm_lab.agent.memory.window import HIDDEN
from slm_lab.agent.stack import Stack
from slm_lab.errors import Mistake, RunError
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
        common: Mapping[str, Common] | None = None,
    ):
        """`goal_functions`: the env's compute_reward and compute_terminated, for a memory that relabels goals;
        `memory_folder`: where a memory on disk keeps its rows, a temporary folder if None; `common`: by learner, what
        other sessions train too."""
        settings = spec.agent.algorithm
        num_envs = spec.env.num_envs
        # Each session of a distributed trial plays its part of the frames; schedules go by those of all of them.
        self.sessions = spec.meta.max_session if spec.meta.shares else 1
        self.algorithm = make_algorithm(spec, observation_space, action_space, seed, common)
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
                training_start_step=-(-settings.first_learning_frame() // self.sessions),
                compute_reward=goal_functions[0],
                compute_terminated=goal_functions[1],
            )

    def stack_with(self, stack: Stack) -> None:
        """Take learn steps together with the agents of other sessions, where the loss sees no other net than its own:
        one that sees the nets of other learners, as an actor's sees the critics, belongs to its own session."""
        learners = self.algorithm.named_learners
        if len(learners) == 1 and not self.algorithm.stays_alone:
            for name, learner in learners.items():
                learner.stack_with(stack, name)

    def first_carried(self, num_envs: int) -> Carried | None:
        """What a recurrent net carries from step to step, as episodes begin; None where nothing is carried."""
        return Carried(num_envs, self.algorithm.state_size) if self.algorithm.state_size else None

    def act(self, obs: Any, frame: int, explore: bool = True, carried: Carried | None = None) -> np.ndarray:
        """(N, ...) an action for each observation. `carried` goes on a step; without it, episodes begin."""
        if carried is None:
            return self.algorithm.act(obs, self.sessions * frame, explore)
        act: Callable[..., np.ndarray] = self.algorithm.act  # of one that takes nets with a state
        return act(obs, self.sessions * frame, explore, carried)

    def remember(self, obs: Any, action: np.ndarray, step: Step, carried: Carried | None = None) -> None:
        """Keep a step to learn from. What is carried begins anew where an episode ended."""
        if self.memory is not None:
            self.memory.add_step(obs, action, step, **self.extras_of_rows(carried))
            self.algorithm.remember(obs, action, step)
        if carried is not None:
            carried.begin_anew(step.terminated | step.truncated)

    def extras_of_rows(self, carried: Carried | None) -> dict[str, np.ndarray]:
        """The state that each row was acted in, where learning begins its sequences from it."""
        if carried is None or not (self.memory.on_policy or HIDDEN in self.memory.needed_extras()):
            return {}
        return {HIDDEN: carried.before}

    def learn(self, frame: int) -> None:
        """As many learn rounds as are due at this frame."""
        if self.memory is not None:
            for _ in range(self.memory.due(frame)):
                self.algorithm.learn(self.memory, self.sessions * frame)

    def report(self, frame: int) -> dict[str, float]:
        """What the algorithm reports at this frame."""
        return self.algorithm.report(self.sessions * frame)

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


def make_algorithm(
    spec: Spec,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    seed: int,
    common: Mapping[str, Common] | None = None,
) -> Algorithm:
    """The algorithm by itself. Raises RunError where it keeps to itself what it is given in `common`."""
    settings, meta = spec.agent.algorithm, spec.meta
    compiled, device = compile_pays(spec), device_name(meta.device)
    site = Site(
        observation_space,
        action_space,
        seed,
        device,
        compiled,
        spec.env.num_envs,
        common or {},
        spec.agent.imagined_memory,
    )
    algorithm = registry.find("algorithm", settings.name)(settings, spec.agent.net, site)
    learners = algorithm.named_learners
    apart = [name for name, learner in learners.items() if common is not None and learner.common is None]
    if apart:
        raise RunError(f"{settings.name} does not hand site.common to its {', '.join(apart)}: it cannot be distributed")
    return algorithm


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
        if spec.agent.net is not None:
            mistakes += registry.find("net", spec.agent.net.type).check(spec.agent.net, observation_space)
        mistakes += _check_net(spec.agent, algorithm)
        mistakes += algorithm.check_fit(spec.agent, observation_space)
        if spec.meta.compile is True and _carries_state(spec.agent):
            problem = f"torch does not compile the cells of {spec.agent.net.type}; use 'auto' or false"
            mistakes.append(Mistake("meta.compile", f"true: {problem}"))
        if spec.meta.shares:
            mistakes += _check_distributed(spec, algorithm)
        if spec.meta.distributed == "actors":
            mistakes += _check_actors(spec, algorithm)
    return mistakes + check_place(spec.meta)


def with_stacks(spec: Spec, stack: int) -> Spec:
    """The spec with a memory that holds each of so many stacked frames once, unless it says itself what is stacked."""
    memory = spec.agent.memory
    if stack == 1 or memory is None or "frame_stack" not in type(memory).model_fields:
        return spec
    if "frame_stack" in memory.model_fields_set:
        return spec
    try:
        fitted = type(memory).model_validate({**memory.model_dump(), "frame_stack": stack})
    except ValidationError:  # as with hindsight: it holds whole stacks
        return spec
    return spec.model_copy(update={"agent": spec.agent.model_copy(update={"memory": fitted})})


def check_parts(agent: AgentSpec) -> list[Mistake]:
    """Which parts of the agent do not fit each other, whatever the env."""
    algorithm = registry.find("algorithm", agent.algorithm.name)
    if not algorithm.needs_learning:
        return []
    return _check_memory(agent, algorithm) + _check_net(agent, algorithm)


def check_place(meta: MetaSpec) -> list[Mistake]:
    """What the spec asks for that this machine, or this version of the lab, does not have."""
    mistakes = []
    if meta.shares and device_name(meta.device) != "cpu":
        mistakes.append(Mistake("meta.device", "distributed sessions meet in the CPU's memory: use 'cpu'"))
    if (meta.parallel == "ray" or meta.distributed == "actors") and importlib.util.find_spec("ray") is None:
        key = "parallel" if meta.parallel == "ray" else "distributed"
        mistakes.append(Mistake(f"meta.{key}", "runs on Ray: pip install 'slm-lab[search]'"))
    if meta.compile is True and not has_compiler():
        mistakes.append(Mistake("meta.compile", "true needs a C++ compiler on the PATH, and there is none; use false"))
    try:
        torch.zeros(1, device=device_name(meta.device))
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).splitlines()[0]
        mistakes.append(Mistake("meta.device", f"'{meta.device}' cannot be used here ({reason}); use 'cpu'"))
    return mistakes


def _check_distributed(spec: Spec, algorithm: Any) -> list[Mistake]:
    mistakes = []
    if algorithm.stays_alone:
        problem = f"{spec.agent.algorithm.name} {algorithm.stays_alone}; use false"
        mistakes.append(Mistake("meta.distributed", problem))
    sessions, max_frame, net = spec.meta.max_session, spec.env.max_frame, spec.agent.net
    if max_frame < sessions:
        mistakes.append(Mistake("env.max_frame", f"{max_frame} cannot be shared out among {sessions} sessions"))
    for key in ("optim_spec", "actor_optim_spec", "critic_optim_spec"):
        optimizer = getattr(net, key, None)
        if optimizer is not None and optimizer.name == "Lookahead":
            problem = "Lookahead goes back to parameters of its own, over what other sessions have learned"
            mistakes.append(Mistake(f"agent.net.{key}.name", f"{problem}; use {optimizer.inner_name()}"))
    return mistakes


def _check_actors(spec: Spec, algorithm: Any) -> list[Mistake]:
    name, problems = spec.agent.algorithm.name, list[str]()
    if algorithm.on_policy is not False:
        problems.append(f"'actors' send rows that older parameters have acted in, and {name} learns from its own alone")
    elif algorithm.stays_alone:
        problems.append(f"{name} {algorithm.stays_alone}")
    if _carries_state(spec.agent):
        problems.append(f"'actors' keep no state from step to step, which {spec.agent.net.type} carries")
    mistakes = [Mistake("meta.distributed", problem) for problem in problems]
    for key in ("normalize_obs", "normalize_reward"):
        if getattr(spec.env, key):
            mistakes.append(Mistake(f"env.{key}", "has statistics that 'actors' do not share: leave it out"))
    if spec.meta.on_env_error != "stop":
        mistakes.append(Mistake("meta.on_env_error", "with 'actors' an env that fails stops the run: use 'stop'"))
    return mistakes


def _check_net(agent: AgentSpec, algorithm: Any) -> list[Mistake]:
    if agent.net is None or not algorithm.needs_net:
        return []
    net = registry.find("net", agent.net.type)
    if _carries_state(agent) and algorithm.lacks_order:
        problem = f"{agent.net.type} carries a state from step to step; {agent.algorithm.name} {algorithm.lacks_order}"
        return [Mistake("agent.net.type", f"{problem}: use MLPNet")]
    unknown = [head for head in getattr(agent.net, "own_heads", ()) if head not in algorithm.heads]
    if unknown:
        problem = f"'{unknown[0]}' is no head of {agent.algorithm.name}, which has {' and '.join(algorithm.heads)}"
        return [Mistake("agent.net.hid_layers", problem)]
    if net.needs_head in (None, *algorithm.heads):
        return []
    problem = f"shapes the '{net.needs_head}' head; {agent.algorithm.name} asks for {' and '.join(algorithm.heads)}"
    return [Mistake("agent.net.type", f"{agent.net.type} {problem}: use MLPNet")]


def _check_memory(agent: AgentSpec, algorithm: Any) -> list[Mistake]:
    name = agent.memory.name
    memory = registry.find("memory", name)
    wanted = _learns_from(agent, algorithm)
    if memory.gives != wanted:
        learner = f"{agent.algorithm.name} with {agent.net.type}" if _carries_state(agent) else agent.algorithm.name
        problem = f"gives {memory.gives}; {learner} learns from {wanted}"
        return [Mistake("agent.memory.name", f"'{name}' {problem}: use {_that_fit(algorithm, wanted)}")]
    if wanted == "sequences" and agent.memory.n_step > agent.memory.sequence_length:
        problem = f"{agent.memory.n_step} is more than sequence_length {agent.memory.sequence_length}"
        return [Mistake("agent.memory.n_step", f"{problem}: what lies between would be in no window; lower it")]
    if algorithm.on_policy is None or memory.on_policy == algorithm.on_policy:
        return []
    kind = "on-policy, from its newest rows" if algorithm.on_policy else "off-policy, from rows drawn again and again"
    return [
        Mistake(
            "agent.memory.name",
            f"{agent.algorithm.name} learns {kind}: '{name}' does not fit; use {_that_fit(algorithm, wanted)}",
        )
    ]


def _carries_state(agent: AgentSpec) -> bool:
    return agent.net is not None and getattr(registry.find("net", agent.net.type), "carries_state", False)


def _learns_from(agent: AgentSpec, algorithm: Any) -> str:
    """What the memory is to give: a net that carries a state learns from replayed rows in their order alone."""
    if _carries_state(agent) and algorithm.on_policy is False and not algorithm.lacks_order:
        return "sequences"
    return algorithm.learns_from


def _that_fit(algorithm: Any, wanted: str) -> str:
    known = {name: registry.find("memory", name) for name in registry.names("memory")}
    fitting = [
        name
        for name, memory in known.items()
        if memory.gives == wanted and algorithm.on_policy in (None, memory.on_policy)
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
    return (
        has_compiler()
        and not _carries_state(spec.agent)
        and algorithm.opt_steps(spec.env.max_frame, spec.env.num_envs) >= STEPS_THAT_PAY
    )


def has_compiler() -> bool:
    """Whether there is the C++ compiler that torch.compile calls."""
    return shutil.which("clang++" if sys.platform == "darwin" else "g++") is not None
