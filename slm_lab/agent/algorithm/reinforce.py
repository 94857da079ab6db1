"""REINFORCE: each action is made more likely in proportion to the return that followed it (Williams 1992)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import Algorithm, Site, acting_forward, seeded_net
from slm_lab.agent.algorithm.distribution import make_distribution
from slm_lab.agent.algorithm.policy import Policy, PolicySettings, check_policy
from slm_lab.agent.algorithm.recurrent import Carried, carrying_forward, mean, outputs, to_learn_from
from slm_lab.agent.algorithm.returns import returns_to_go, standardize
from slm_lab.agent.learner import Learner
from slm_lab.agent.net.actor_critic import Actor
from slm_lab.agent.net.settings import NetSettings
from slm_lab.errors import Mistake
from slm_lab.types import Batch


class ReinforceSettings(PolicySettings):
    name: Literal["Reinforce"] = "Reinforce"
    center_return: bool = Field(True, description="subtract the batch's mean return: a baseline, the same for all rows")
    standardize_returns: bool = Field(False, description="also divide by the batch's standard deviation")


class Reinforce(Algorithm):
    Settings = ReinforceSettings
    on_policy = True
    heads = ("policy",)
    lacks_order = None
    reports = ("entropy_coef", "entropy", "policy_loss")

    def __init__(self, settings: ReinforceSettings, net_settings: NetSettings, site: Site):
        super().__init__(settings, net_settings, site)
        self.distribution = make_distribution(settings.action_pdtype, site.action_space)
        actor = seeded_net(
            site.seed,
            lambda: Actor(
                net_settings, site.observation_space, self.distribution.units, log_stds=self.distribution.log_stds
            ),
        )
        # never compiled: whole episodes make batches of ever other sizes
        self.learner = Learner(actor, self.loss, net_settings, device=site.device, common=site.common.get("learner"))
        self.state_size = actor.state_size
        if self.state_size:
            forward = carrying_forward(actor, self.learner.device)
        else:
            forward = acting_forward(actor.numpy_policy(), actor, self.learner.device)
        self.policy = Policy(self.distribution, forward, self.rng)

    @classmethod
    def check(cls, settings: ReinforceSettings, action_space: spaces.Space) -> list[Mistake]:
        return check_policy(settings.name, settings.action_pdtype, action_space)

    def act(self, obs: Any, frame: int, explore: bool = True, carried: Carried | None = None) -> np.ndarray:
        return self.policy.act(obs, explore, carried)

    def learn(self, memory: Any, frame: int) -> None:
        batch = memory.drain()
        reward, discount, end = (column.numpy() for column in (batch.reward, batch.discount, batch.end))
        returns = returns_to_go(reward, discount, end, np.zeros_like(reward))
        if self.settings.standardize_returns:
            returns = standardize(returns)
        elif self.settings.center_return:
            returns = returns - returns.mean()
        batch.extras["return"] = torch.from_numpy(returns)
        batch = to_learn_from(batch, self.net_settings)
        self.learner.step(batch, frame, entropy_coef=self.settings.entropy_coef_spec.at(frame))

    def loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        """Minus the mean of return * log pi(a|s), less the entropy bonus."""
        out = outputs(net, batch)
        policy_loss = -mean(batch.extras["return"] * self.distribution.log_prob(out, batch.action), batch)
        entropy = mean(self.distribution.entropy(out), batch)
        return policy_loss - scalars["entropy_coef"] * entropy, {"policy_loss": policy_loss, "entropy": entropy}

    def variables(self, frame: int) -> dict[str, float]:
        return {"entropy_coef": self.settings.entropy_coef_spec.at(frame)}
