"""What the algorithms that act on values of actions share: the keys, the net and its learner, exploration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from pydantic import Field, model_validator
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import Algorithm, AlgorithmSettings, Site, acting_forward, seeded_net
from slm_lab.agent.algorithm.policy import VALUE_POLICIES
from slm_lab.agent.algorithm.recurrent import Carried, carrying_forward
from slm_lab.agent.algorithm.schedule import ScheduleSpec
from slm_lab.agent.learner import Learner
from slm_lab.agent.net.make import make_net
from slm_lab.agent.net.settings import LOSSES, NetSettings
from slm_lab.errors import Mistake
from slm_lab.types import Batch


class ValueSettings(AlgorithmSettings):
    """Keys of the algorithms that learn values of actions."""

    action_pdtype: Literal["default", "Argmax", "Categorical"] = Field(
        "default", description="SLM Lab's key, read and passed over: action_policy says all"
    )
    action_policy: Literal["default", "epsilon_greedy", "boltzmann"] = Field(
        "epsilon_greedy", description="how actions follow from values; default: always the best one"
    )
    explore_var_spec: ScheduleSpec = Field(
        ScheduleSpec(name="linear_decay", start_val=1.0, end_val=0.05, start_step=0, end_step=10000),
        description="epsilon of epsilon_greedy, or temperature of boltzmann",
    )

    @model_validator(mode="after")
    def _explores(self) -> ValueSettings:
        try:
            self.explore_var_spec.must_stay(0, 1 if self.action_policy == "epsilon_greedy" else math.inf)
        except ValueError as problem:
            raise ValueError(f"explore_var_spec of {self.action_policy}: {problem}") from problem
        return self


class ValueBased(Algorithm):
    """Acts on the values of actions; subclasses say in `learn` and `loss` how these are learned."""

    Settings = ValueSettings
    heads = ("q",)
    lacks_order = None
    reports = ("explore_var",)
    has_target = False
    parts = 1  # outputs of the net for each action

    def __init__(self, settings: Any, net_settings: NetSettings, site: Site):
        super().__init__(settings, net_settings, site)
        self.first_action = int(site.action_space.start)
        self.num_actions = int(site.action_space.n)
        units = self.num_actions if self.parts == 1 else (self.num_actions, self.parts)
        net = seeded_net(site.seed, lambda: make_net(net_settings, site.observation_space, {"q": units}))
        loss_function = LOSSES[net_settings.loss_spec.name]
        self.learner: Learner = Learner(
            net,
            lambda net, target, batch, scalars: self.loss(net, target, batch, loss_function),
            net_settings,
            has_target=self.has_target,
            device=site.device,
            compiled=site.compiled,
            common=site.common.get("learner"),
        )
        self._choose = VALUE_POLICIES[settings.action_policy]
        self.state_size = getattr(net, "state_size", 0)
        if self.state_size:
            self._values = carrying_forward(net, self.learner.device)
        else:
            self._values = acting_forward(net.numpy_forward("q"), net, self.learner.device)

    @classmethod
    def check(cls, settings: ValueSettings, action_space: spaces.Space) -> list[Mistake]:
        if isinstance(action_space, spaces.Discrete):
            return []
        name, kind = getattr(settings, "name", cls.__name__), type(action_space).__name__
        return [Mistake("agent.algorithm.name", f"{name} needs Discrete actions; the env's are {kind}")]

    def act(self, obs: Any, frame: int, explore: bool = True, carried: Carried | None = None) -> np.ndarray:
        values = self.values(obs, carried)
        if not explore:
            return values.argmax(-1) + self.first_action
        return self._choose(values, self.settings.explore_var_spec.at(frame), self.rng) + self.first_action

    def values(self, obs: Any, carried: Carried | None = None) -> np.ndarray:
        """(N, actions) what each action is worth."""
        return self._values(obs) if carried is None else self._values(obs, carried)

    def loss(self, net: Callable, target: Callable, batch: Batch, loss_function: Callable):
        raise NotImplementedError

    def index(self, batch: Batch) -> Tensor:
        """(B,) the actions, counted from 0."""
        return batch.action - self.first_action if self.first_action else batch.action

    def variables(self, frame: int) -> dict[str, float]:
        return {"explore_var": self.settings.explore_var_spec.at(frame)}
