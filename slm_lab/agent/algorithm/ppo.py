"""Proximal policy optimisation: several epochs over each batch, with a clipped ratio (Schulman 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from gymnasium import spaces
from pydantic import Field, field_validator
from torch import Tensor

from slm_lab.agent.algorithm.actor_critic import ActorCritic, ActorCriticSettings
from slm_lab.agent.algorithm.recurrent import mean, minibatches, outputs
from slm_lab.agent.algorithm.schedule import ScheduleSpec, constant
from slm_lab.errors import Mistake
from slm_lab.spec.schema import AgentSpec
from slm_lab.types import Batch


class PPOSettings(ActorCriticSettings):
    name: Literal["PPO"] = "PPO"
    lam: float | None = Field(0.95, ge=0, le=1, description="lambda of the generalised advantage estimates")
    clip_eps_spec: ScheduleSpec = Field(
        constant(0.2), description="how far the ratio of new to old policy may go from 1"
    )
    clip_vloss: bool = Field(False, description="also keep values within clip_eps of the old ones")
    time_horizon: int = Field(
        128,
        ge=1,
        le=10**7,
        description="a learn round every so many vector steps (OnPolicyBatchReplay) or complete episodes "
        "(OnPolicyReplay); takes training_frequency's place",
    )
    minibatch_size: int = Field(
        64,
        ge=1,
        description="rows of each update; with a recurrent net as many whole sequences as have room for so many",
    )
    training_epoch: int = Field(4, ge=1, description="passes over the rows of a learn round")

    @field_validator("clip_eps_spec")
    @classmethod
    def _positive(cls, clip_eps: ScheduleSpec) -> ScheduleSpec:
        clip_eps.must_stay(0, 1)
        return clip_eps

    def rows_to_learn(self, num_envs: int) -> int:
        return self.time_horizon

    def opt_steps(self, max_frame: int, num_envs: int) -> float:
        return max_frame / min(self.minibatch_size, self.time_horizon * num_envs) * self.training_epoch


class PPO(ActorCritic):
    Settings = PPOSettings
    reports = (*ActorCritic.reports, "clip_eps", "approx_kl", "clip_fraction")

    @classmethod
    def check_fit(cls, agent: AgentSpec, observation_space: spaces.Space) -> list[Mistake]:
        mistakes = super().check_fit(agent, observation_space)
        if getattr(agent.net, "batch_norm", False):
            problem = "the ratio of new to old policy would be that of two batches' statistics; use layer_norm"
            mistakes.append(Mistake("agent.net.batch_norm", problem))
        return mistakes

    def learn(self, memory: Any, frame: int) -> None:
        batch = self.add_estimates(memory.drain())
        scalars = self.variables(frame)
        size, epochs = self.settings.minibatch_size, self.settings.training_epoch
        for minibatch in minibatches(memory, batch, size, epochs, self.net_settings):
            self.learner.step(minibatch, frame, **scalars)

    def loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        out, value = outputs(net, batch)
        old, clip_eps = batch.extras, scalars["clip_eps"]
        log_ratio = self.distribution.log_prob(out, batch.action) - old["log_prob"]
        ratio = log_ratio.exp()
        clipped = torch.clamp(ratio, 1 - clip_eps, 1 + clip_eps)
        policy_loss = -mean(torch.minimum(old["advantage"] * ratio, old["advantage"] * clipped), batch)
        value_loss = self.value_loss(value, old["target"], reduction="none")
        if self.settings.clip_vloss:
            near = old["value"] + torch.clamp(value - old["value"], -clip_eps, clip_eps)
            value_loss = torch.maximum(value_loss, self.value_loss(near, old["target"], reduction="none"))
        info = {
            "approx_kl": mean(ratio - 1 - log_ratio, batch),  # Schulman 2020, http://joschu.net/blog/kl-approx.html
            "clip_fraction": mean(((ratio - 1).abs() > clip_eps).float(), batch),
        }
        entropy = mean(self.distribution.entropy(out), batch)
        return self.total(policy_loss, mean(value_loss, batch), entropy, scalars, info)

    def variables(self, frame: int) -> dict[str, float]:
        return {**super().variables(frame), "clip_eps": self.settings.clip_eps_spec.at(frame)}
