"""Advantage actor-critic (Mnih 2016), with n-step returns or generalised advantage estimates (Schulman 2016)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field, model_validator
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import Algorithm, Site, acting_forward, seeded_net
from slm_lab.agent.algorithm.distribution import make_distribution
from slm_lab.agent.algorithm.policy import Policy, PolicySettings, check_policy
from slm_lab.agent.algorithm.recurrent import (
    Carried,
    carrying_forward,
    mean,
    outputs,
    outputs_after,
    outputs_of_each,
    to_learn_from,
)
from slm_lab.agent.algorithm.returns import gae, n_step_returns, returns_to_go, standardize
from slm_lab.agent.learner import WHOLE, Learner
from slm_lab.agent.net.actor_critic import ActorCriticNet
from slm_lab.agent.net.optim import OptimSpec
from slm_lab.agent.net.settings import LOSSES, NetSettings
from slm_lab.errors import Mistake
from slm_lab.types import Batch


class ActorCriticSettings(PolicySettings):
    name: Literal["ActorCritic"] = "ActorCritic"
    lam: float | None = Field(None, ge=0, le=1, description="lambda of the generalised advantage estimates")
    num_step_returns: int | None = Field(
        None,
        ge=1,
        description="steps of n-step returns; with neither this nor lam: returns to the end of the rows held",
    )
    policy_loss_coef: float = Field(1.0, ge=0, description="weight of the policy loss")
    val_loss_coef: float = Field(0.5, ge=0, description="weight of the value loss")
    standardize_advantages: bool = Field(True, description="advantages of a learn round to zero mean, unit deviation")

    @model_validator(mode="after")
    def _one_estimate(self) -> ActorCriticSettings:
        if self.lam is not None and self.num_step_returns is not None:
            raise ValueError("lam and num_step_returns are two ways to estimate advantages: set one, the other to null")
        return self


class ActorCritic(Algorithm):
    Settings = ActorCriticSettings
    on_policy = True
    heads = ("policy", "value")
    lacks_order = None
    reports = ("entropy_coef", "entropy", "policy_loss", "value_loss")

    def __init__(self, settings: ActorCriticSettings, net_settings: NetSettings, site: Site):
        super().__init__(settings, net_settings, site)
        self.distribution = make_distribution(settings.action_pdtype, site.action_space)
        self.value_loss = LOSSES[net_settings.loss_spec.name]
        net = seeded_net(
            site.seed,
            lambda: ActorCriticNet(
                net_settings, site.observation_space, self.distribution.units, log_stds=self.distribution.log_stds
            ),
        )
        self.learner = Learner(
            net,
            self.loss,
            net_settings,
            optim_specs=optimizers_of(net_settings),
            device=site.device,
            compiled=site.compiled,
            common=site.common.get("learner"),
        )
        self.state_size = net.state_size
        if self.state_size:
            forward = carrying_forward(net, self.learner.device)
        else:
            forward = acting_forward(net.actor.numpy_policy(), lambda obs: net(obs)[0], self.learner.device)
        self.policy = Policy(self.distribution, forward, self.rng)

    @classmethod
    def check(cls, settings: ActorCriticSettings, action_space: spaces.Space) -> list[Mistake]:
        return check_policy(settings.name, settings.action_pdtype, action_space)

    def act(self, obs: Any, frame: int, explore: bool = True, carried: Carried | None = None) -> np.ndarray:
        return self.policy.act(obs, explore, carried)

    def learn(self, memory: Any, frame: int) -> None:
        batch = to_learn_from(self.add_estimates(memory.drain()), self.net_settings)
        self.learner.step(batch, frame, entropy_coef=self.settings.entropy_coef_spec.at(frame))

    @torch.no_grad()
    def add_estimates(self, batch: Batch) -> Batch:
        """The batch with extras (B,) as of now: `advantage`, `target` (of the value), `value` and `log_prob`."""
        on_device = self.learner.to_device(batch)
        (out, value), after = outputs_of_each(self.learner.net, on_device)
        _, next_value = outputs_after(self.learner.net, on_device.next_obs, after)
        advantage, target = self.estimate(batch, value.cpu().numpy(), next_value.cpu().numpy())
        if self.settings.standardize_advantages:
            advantage = standardize(advantage)
        batch.extras |= {
            "advantage": torch.from_numpy(advantage),
            "target": torch.from_numpy(target),
            "value": value.cpu(),
            "log_prob": self.distribution.log_prob(out, on_device.action).cpu(),
        }
        return batch

    def estimate(self, batch: Batch, value: np.ndarray, next_value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(B,) advantages and (B,) value targets, in the way that the spec chose."""
        reward, discount, end = (column.numpy() for column in (batch.reward, batch.discount, batch.end))
        if self.settings.lam is not None:
            advantage = gae(reward, discount, end, value, next_value, self.settings.lam)
            return advantage, advantage + value
        if self.settings.num_step_returns is not None:
            returns = n_step_returns(reward, discount, end, next_value, self.settings.num_step_returns)
        else:
            returns = returns_to_go(reward, discount, end, next_value)
        return returns - value, returns

    def loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        out, value = outputs(net, batch)
        log_prob = self.distribution.log_prob(out, batch.action)
        policy_loss = -mean(batch.extras["advantage"] * log_prob, batch)
        value_loss = mean(self.value_loss(value, batch.extras["target"], reduction="none"), batch)
        entropy = mean(self.distribution.entropy(out), batch)
        return self.total(policy_loss, value_loss, entropy, scalars, {})

    def total(self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor, scalars: dict[str, Tensor], info: dict):
        """The weighted sum of the losses less the entropy bonus, and what the train table shows."""
        loss = (
            self.settings.policy_loss_coef * policy_loss
            + self.settings.val_loss_coef * value_loss
            - scalars["entropy_coef"] * entropy
        )
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, **info}

    def variables(self, frame: int) -> dict[str, float]:
        return {"entropy_coef": self.settings.entropy_coef_spec.at(frame)}


def optimizers_of(settings: NetSettings) -> dict[str, OptimSpec]:
    """An optimizer each for actor and critic, where they are two nets and the spec does not ask for a common one."""
    actor = settings.actor_optim_spec or settings.optim_spec
    if settings.shared or settings.use_same_optim:
        return {WHOLE: actor}
    return {"actor": actor, "critic": settings.critic_optim_spec or settings.optim_spec}
