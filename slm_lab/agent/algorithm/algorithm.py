"""What all algorithms share: the face that the agent sees, and the keys that each block has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import nn

from slm_lab.agent.common import Common
from slm_lab.agent.learner import Learner
from slm_lab.agent.net.settings import NetSettings
from slm_lab.errors import Mistake
from slm_lab.lib import seeds
from slm_lab.lib.trees import mapped
from slm_lab.spec.schema import AgentSpec
from slm_lab.spec.settings import Settings
from slm_lab.types import Step


class AlgorithmSettings(Settings):
    """Keys of every algorithm that learns."""

    gamma: float = Field(0.99, ge=0, le=1, description="discount of future rewards, per step")
    training_frequency: int = Field(
        1,
        ge=1,
        description="a learn round every so many frames (replay memories), vector steps (OnPolicyBatchReplay) "
        "or complete episodes (OnPolicyReplay)",
    )

    def rows_to_learn(self, num_envs: int) -> int:
        """What the memory's trigger counts up to; its unit is the memory's."""
        return self.training_frequency

    def first_learning_frame(self) -> int:
        """Frames that a replay memory is filled for before anything is learned."""
        return 0

    def opt_steps(self, max_frame: int, num_envs: int) -> float:
        """About how many optimizer steps a session takes: what decides whether compiling them pays."""
        return max_frame / (self.training_frequency * num_envs)


@dataclass(frozen=True)
class Site:
    """Where an algorithm is built: the env's spaces (of a single env), a seed, and how to compute."""

    observation_space: spaces.Space
    action_space: spaces.Space
    seed: int
    device: str = "cpu"
    compiled: bool = False
    num_envs: int = 1
    common: Mapping[str, Common] = field(default_factory=dict)  # by learner: what other sessions train too
    imagined_memory: Settings | None = None  # for an algorithm that imagines


class Algorithm:
    """Acts, and learns from a memory. Subclasses give `Settings`, `act`, `learn` and say what they can be used with."""

    Settings: ClassVar[type[Settings]]
    on_policy: ClassVar[bool | None]  # which memories fit; None: any, or none at all
    learns_from: ClassVar[str] = "transitions"  # what the memory gives
    needs_learning: ClassVar[bool] = True
    needs_net: ClassVar[bool] = True  # where there is learning: a net by the spec's block `net`
    imagines: ClassVar[bool] = False  # has a memory of imagined rows, by the spec's block `imagined_memory`
    heads: ClassVar[tuple[str, ...]] = ()  # what it asks of a net
    lacks_order: ClassVar[str | None] = "learns from rows one by one"  # why it takes no net that carries a state
    stays_alone: ClassVar[str | None] = None  # why sessions cannot train one set of its parameters
    reports: ClassVar[tuple[str, ...]] = ()  # what `report` gives besides loss, lr and grad_norm: columns of the table
    learner: Learner | None = None
    state_size: int = 0  # numbers that the net carries from step to step in each sub-env

    def __init__(self, settings: Any, net_settings: NetSettings | None, site: Site):
        self.others: dict[str, Learner] = {}  # further learners, by what their columns of the table begin with
        self.settings = settings
        self.net_settings = net_settings
        self.site = site
        self.rng = seeds.generator(site.seed, "policy")

    @classmethod
    def check(cls, settings: Any, action_space: spaces.Space) -> list[Mistake]:
        """Why this algorithm cannot act in such an env; empty where it can."""
        return []

    @classmethod
    def check_fit(cls, agent: AgentSpec, observation_space: spaces.Space) -> list[Mistake]:
        """What it can do nothing with of the agent's other parts and the env's observations; empty where all fit."""
        return []

    def act(self, obs: Any, frame: int, explore: bool = True) -> np.ndarray:
        """(N, ...) actions for (N, ...) observations; without `explore`, the best ones known, and no random draw.

        Those that take nets with a state have one more parameter, `carried`: what these nets carry, if they do.
        """
        raise NotImplementedError

    def remember(self, obs: Any, action: np.ndarray, step: Step) -> None:
        """Keep of a vector step what the memory does not; most algorithms need nothing else."""

    def learn(self, memory: Any, frame: int) -> None:
        """One round of learning."""
        raise NotImplementedError

    def variables(self, frame: int) -> dict[str, float]:
        """The values of the schedules at this frame, under the names of the train table's columns."""
        return {}

    def report(self, frame: int) -> dict[str, float]:
        """Means since the last call of what learning reports, and the schedules' present values."""
        learned = {} if self.learner is None else {**self.learner.report(), "lr": self.learner.learning_rate(frame)}
        for name, learner in self.others.items():
            means = learner.report()
            learned |= {f"{name}_{column}" if column in learned else column: mean for column, mean in means.items()}
        return {**learned, **self.variables(frame)}

    @property
    def learners(self) -> list[Learner]:
        return list(self.named_learners.values())

    @property
    def named_learners(self) -> dict[str, Learner]:
        return {} if self.learner is None else {"learner": self.learner, **self.others}

    def share(self, *, synced: bool) -> dict[str, Common]:
        """By learner, copies of what is learned in shared memory, for the sessions of a distributed trial."""
        return {name: learner.share(synced=synced) for name, learner in self.named_learners.items()}

    @property
    def acting(self) -> Learner | None:
        """The learner of the net that acting needs."""
        return self.learner

    @property
    def opt_step(self) -> int:
        return 0 if self.learner is None else self.learner.opt_step

    def state_dict(self) -> dict:
        learner = None if self.learner is None else self.learner.state_dict()
        others = {name: other.state_dict() for name, other in self.others.items()}
        return {"learner": learner, "others": others, "rng": seeds.generator_state(self.rng)}

    def load_state_dict(self, tree: dict) -> None:
        if self.learner is not None:
            self.learner.load_state_dict(tree["learner"])
        for name, other in self.others.items():
            other.load_state_dict(tree["others"][name])
        seeds.set_generator_state(self.rng, tree["rng"])

    def policy_state(self) -> dict:
        """The part of the state that acting needs."""
        learner = {"parameters": [], "buffers": []} if self.acting is None else self.acting.state_dict()
        return {"parameters": learner["parameters"], "buffers": learner["buffers"]}

    def load_policy_state(self, tree: dict) -> None:
        if self.acting is not None:
            self.acting.load_parameters(tree["parameters"], tree.get("buffers", []))


def seeded_net(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """The net with initial parameters that depend on the seed alone; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.derive(seed, "net"))
        return make()


def acting_forward(
    fast: Callable[[np.ndarray], np.ndarray] | None, forward: Callable, device: torch.device
) -> Callable[[np.ndarray], np.ndarray]:
    """obs -> outputs as numpy arrays: the net's own numpy function, or torch where it has none."""
    if fast is not None:
        return fast

    @torch.no_grad()
    def through_torch(obs: Any) -> np.ndarray:
        return forward(on_device(obs, device)).cpu().numpy()

    return through_torch


def on_device(obs: Any, device: torch.device) -> Any:
    return mapped(lambda part: torch.as_tensor(part, device=device), obs)
