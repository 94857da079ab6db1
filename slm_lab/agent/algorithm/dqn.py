"""Deep Q-learning. DQN adds a target net to VanillaDQN; DoubleDQN values the next state in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import Algorithm, AlgorithmSettings, Site, acting_forward, seeded_net
from slm_lab.agent.algorithm.policy import VALUE_POLICIES
from slm_lab.agent.algorithm.schedule import ScheduleSpec
from slm_lab.agent.learner import ERRORS, Learner
from slm_lab.agent.net.make import make_net
from slm_lab.agent.net.settings import LOSSES, NetSettings
from slm_lab.errors import Mistake
from slm_lab.types import Batch


class VanillaDQNSettings(AlgorithmSettings):
    name: Literal["VanillaDQN"] = "VanillaDQN"
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
    training_start_step: int = Field(0, ge=0, description="frames before the first learn round")
    training_iter: int = Field(1, ge=1, description="batches drawn in a learn round")
    training_batch_iter: int = Field(1, ge=1, description="updates on each batch")

    def first_learning_frame(self) -> int:
        return self.training_start_step

    def opt_steps(self, max_frame: int, num_envs: int) -> float:
        return max_frame / self.training_frequency * self.training_iter * self.training_batch_iter


class DQNSettings(VanillaDQNSettings):
    name: Literal["DQN"] = "DQN"


class DoubleDQNSettings(VanillaDQNSettings):
    name: Literal["DoubleDQN"] = "DoubleDQN"


class VanillaDQN(Algorithm):
    """Q-learning on replayed rows, without a target net (Mnih 2013)."""

    Settings = VanillaDQNSettings
    on_policy = False
    heads = ("q",)
    reports = ("explore_var",)
    has_target = False

    def __init__(self, settings: VanillaDQNSettings, net_settings: NetSettings, site: Site):
        super().__init__(settings, net_settings, site)
        self.first_action = int(site.action_space.start)
        num_actions = int(site.action_space.n)
        net = seeded_net(site.seed, lambda: make_net(net_settings, site.observation_space, {"q": num_actions}))
        loss_function = LOSSES[net_settings.loss_spec.name]
        self.learner = Learner(
            net,
            lambda net, target, batch, scalars: self.loss(net, target, batch, loss_function),
            net_settings,
            has_target=self.has_target,
            device=site.device,
            compiled=site.compiled,
        )
        self._choose = VALUE_POLICIES[settings.action_policy]
        self._values = acting_forward(net.numpy_forward("q"), net, self.learner.device)

    @classmethod
    def check(cls, settings: VanillaDQNSettings, action_space: spaces.Space) -> list[Mistake]:
        if isinstance(action_space, spaces.Discrete):
            return []
        kind = type(action_space).__name__
        return [Mistake("agent.algorithm.name", f"{settings.name} needs Discrete actions; the env's are {kind}")]

    def act(self, obs: Any, frame: int, explore: bool = True) -> np.ndarray:
        values = self._values(obs)
        if not explore:
            return values.argmax(-1) + self.first_action
        return self._choose(values, self.settings.explore_var_spec.at(frame), self.rng) + self.first_action

    def learn(self, memory: Any, frame: int) -> None:
        for _ in range(self.settings.training_iter):
            batch = memory.sample()
            for _ in range(self.settings.training_batch_iter):
                errors = self.learner.step(batch, frame)
            memory.update_priorities(batch.ids, errors)

    def loss(self, net: Callable, target: Callable, batch: Batch, loss_function: Callable):
        """The weighted loss between Q(s, a) and its target; `errors` is (B,) how far apart they are."""
        index = batch.action - self.first_action if self.first_action else batch.action
        q = net(batch.obs).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            wanted = torch.addcmul(batch.reward, batch.discount, self.next_value(net, target, batch.next_obs))
        loss = (batch.weight * loss_function(q, wanted, reduction="none")).mean()
        return loss, {ERRORS: (wanted - q.detach()).abs()}

    def next_value(self, net: Callable, target: Callable, next_obs: Tensor) -> Tensor:
        """(B,) the best value that the target net sees, or without one the net itself."""
        return target(next_obs).amax(-1)

    def variables(self, frame: int) -> dict[str, float]:
        return {"explore_var": self.settings.explore_var_spec.at(frame)}


class DQN(VanillaDQN):
    """With a target net (Mnih 2015)."""

    Settings = DQNSettings
    has_target = True


class DoubleDQN(DQN):
    """The net chooses the action, the target net values it (van Hasselt 2016)."""

    Settings = DoubleDQNSettings

    def next_value(self, net: Callable, target: Callable, next_obs: Tensor) -> Tensor:
        """(B,) the target net's value of the action that the net likes best."""
        best = net(next_obs).argmax(-1, keepdim=True)
        return target(next_obs).gather(-1, best).squeeze(-1)
