"""Deterministic policies from the gradient of the critics: DDPG, and TD3, which distrusts the critics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from gymnasium import spaces
from pydantic import Field, field_validator
from torch import Tensor

from slm_lab.agent.algorithm.replay_actor_critic import ReplayActorCritic, ReplayActorCriticSettings
from slm_lab.agent.algorithm.schedule import ScheduleSpec, constant
from slm_lab.agent.algorithm.squash import TanhPoint, check_bounded_box
from slm_lab.errors import Mistake
from slm_lab.types import Batch


class DDPGSettings(ReplayActorCriticSettings):
    name: Literal["DDPG"] = "DDPG"
    explore_var_spec: ScheduleSpec = Field(
        constant(0.1), description="deviation of the noise on actions in training, in units of half their range"
    )

    @field_validator("explore_var_spec")
    @classmethod
    def _not_negative(cls, explore_var: ScheduleSpec) -> ScheduleSpec:
        explore_var.must_stay(0, math.inf)
        return explore_var


class TD3Settings(DDPGSettings):
    name: Literal["TD3"] = "TD3"
    policy_delay: int = Field(2, ge=1, description="updates of the critics for each one of the actor and the targets")
    target_noise: float = Field(
        0.2, ge=0, description="deviation of the noise on the target's actions, in units of half their range"
    )
    target_noise_clip: float = Field(0.5, ge=0, description="largest such noise, in units of half their range")


class DDPG(ReplayActorCritic):
    """The target is r + discount * Q'(s', mu'(s')); the actor climbs Q(s, mu(s)) (Lillicrap 2016, algorithm 1).

    Exploration is Gaussian, not the paper's Ornstein-Uhlenbeck process, which does no better (Fujimoto 2018, sec. 6.1).
    """

    Settings = DDPGSettings
    num_critics = 1
    actor_has_target = True
    targets_wait = True
    reports = (*ReplayActorCritic.reports, "explore_var")

    @classmethod
    def check(cls, settings: DDPGSettings, action_space: spaces.Space) -> list[Mistake]:
        return check_bounded_box(settings.name, action_space)

    def make_distribution(self) -> TanhPoint:
        return TanhPoint(self.site.action_space)

    def explore(self, out: np.ndarray, frame: int) -> np.ndarray:
        return self.distribution.sample(out, self.rng, self.settings.explore_var_spec.at(frame))

    def next_value(self, target: Callable, batch: Batch) -> Tensor:
        action = self.distribution.action(self.actor.target(batch.next_obs))
        return target(batch.next_obs, action).amin(-1)

    def actor_loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        """Minus the first critic's value of what the actor would do."""
        action = self.distribution.action(net(batch.obs))
        return -self.critics_as_seen(batch.obs, action)[:, 0].mean(), {}

    def variables(self, frame: int) -> dict[str, float]:
        return {"explore_var": self.settings.explore_var_spec.at(frame)}


class TD3(DDPG):
    """DDPG with the lower of two critics, targets for actions nearby, and delayed updates (Fujimoto 2018, alg. 1)."""

    Settings = TD3Settings
    num_critics = 2

    def next_value(self, target: Callable, batch: Batch) -> Tensor:
        limit = self.settings.target_noise_clip
        noise = (self.settings.target_noise * batch.extras["next_noise"]).clamp(-limit, limit)
        action = self.distribution.action(self.actor.target(batch.next_obs), noise)
        return target(batch.next_obs, action).amin(-1)
