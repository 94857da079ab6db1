"""Soft actor-critic: the policy is rewarded for its entropy too (Haarnoja 2018b; for Discrete Christodoulou 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor, nn

from slm_lab.agent.algorithm.algorithm import Site
from slm_lab.agent.algorithm.distribution import Categorical
from slm_lab.agent.algorithm.replay_actor_critic import ReplayActorCritic, ReplayActorCriticSettings
from slm_lab.agent.algorithm.squash import TanhNormal, check_bounded_box
from slm_lab.agent.net.optim import OptimSpec
from slm_lab.agent.net.settings import NetSettings
from slm_lab.errors import Mistake
from slm_lab.types import Batch

PDTYPES = {spaces.Box: ("default", "Normal"), spaces.Discrete: ("default", "Categorical", "GumbelSoftmax")}
# What a policy over Discrete actions keeps of it. Christodoulou's code has 0.98, with which two actions stay all but
# uniform; where one of them is better that cannot be had, and the temperature rises without end (seen on CartPole-v1).
PART_OF_MOST_ENTROPY = 0.5
AGREED = {"min": torch.amin, "mean": torch.mean}  # what several critics' values count as


class SoftActorCriticSettings(ReplayActorCriticSettings):
    name: Literal["SoftActorCritic", "SAC"] = "SoftActorCritic"
    action_pdtype: Literal["default", "Normal", "Categorical", "GumbelSoftmax"] = Field(
        "default",
        description="Normal, squashed into the bounds, for Box; Categorical for Discrete, where the expectation over "
        "actions is exact; GumbelSoftmax is read as Categorical; default: by the env's actions",
    )
    action_policy: Literal["default"] = Field("default", description="actions are drawn from the distribution itself")
    target_entropy: float | None = Field(
        None,
        description="the mean entropy that the temperature keeps the policy at, in nats; null: minus the number of "
        "parts of a Box action scaled to [-1, 1], or half of the most there is for Discrete",
    )
    critics_agree: Literal["min", "mean"] = Field(
        "min",
        description="what the two critics' values count as: the lower one, against overestimation (Fujimoto 2018), or "
        "their mean, where that makes actions of Discrete too careful (Zhou 2022)",
    )
    alpha_init: float = Field(
        1.0,
        gt=0,
        description="the temperature to start with; it takes thousands of updates to fall, and until then a policy is "
        "all but uniform where values differ by less",
    )
    log_alpha_max: float | None = Field(
        None, description="largest log of the temperature, which starts no higher; null: any"
    )


class SoftNormal(TanhNormal):
    """Box actions: the mean over the policy's actions is estimated by one draw."""

    def expected(self, out: Tensor, critics: Callable, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) the critics' value of the policy's actions, and (B,) its entropy; gradients go through both."""
        action, log_prob = self.draw(out, noise)
        return critics(obs, action), -log_prob

    def default_target_entropy(self) -> float:
        return self.log_half - self.size


class SoftCategorical(Categorical):
    """Discrete actions: the mean over the policy's actions is exact (Christodoulou 2019, eqs. 10 to 12)."""

    size = 0  # of the noise that a mean needs

    def expected(self, out: Tensor, critics: Callable, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) the critics' value of the policy's actions, and (B,) its entropy; gradients go through both."""
        log_probs = torch.log_softmax(out, -1)
        probs = log_probs.exp()
        return (probs * critics(obs)).sum(-1), -(probs * log_probs).sum(-1)

    def default_target_entropy(self) -> float:
        return PART_OF_MOST_ENTROPY * math.log(self.units)


class SoftPolicy(nn.Module):
    """obs -> (policy outputs (B, units), log of the temperature ())."""

    def __init__(self, actor: nn.Module, log_alpha: float):
        super().__init__()
        self.actor = actor
        self.temperature = Temperature(log_alpha)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.temperature.log_alpha


class Temperature(nn.Module):
    """The weight of the entropy; its log is what is learned."""

    def __init__(self, log_alpha: float):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(log_alpha))


class SoftActorCritic(ReplayActorCritic):
    """The target is r + discount * (Q' + alpha * entropy) at s' (Haarnoja 2018b, eqs. 3 and 5); the actor climbs
    Q + alpha * entropy (eq. 9); alpha rises while the policy's entropy is below its target (eq. 18). Q is what the
    critics agree on, the lower of two."""

    Settings = SoftActorCriticSettings
    reports = (*ReplayActorCritic.reports, "alpha", "entropy")

    def __init__(self, settings: SoftActorCriticSettings, net_settings: NetSettings, site: Site):
        self.log_alpha_max = math.inf if settings.log_alpha_max is None else settings.log_alpha_max
        self.log_alpha_init = min(math.log(settings.alpha_init), self.log_alpha_max)
        super().__init__(settings, net_settings, site)
        given = settings.target_entropy
        self.target_entropy = self.distribution.default_target_entropy() if given is None else given

    @classmethod
    def check(cls, settings: SoftActorCriticSettings, action_space: spaces.Space) -> list[Mistake]:
        kind = spaces.Discrete if isinstance(action_space, spaces.Discrete) else spaces.Box
        mistakes = [] if kind is spaces.Discrete else check_bounded_box(settings.name, action_space, "Discrete or Box")
        if not mistakes and settings.action_pdtype not in PDTYPES[kind]:
            use = " or ".join(f"'{name}'" for name in PDTYPES[kind])
            problem = f"'{settings.action_pdtype}' cannot draw {kind.__name__} actions; use {use}"
            mistakes = [Mistake("agent.algorithm.action_pdtype", problem)]
        return mistakes

    def make_distribution(self) -> SoftNormal | SoftCategorical:
        space = self.site.action_space
        return SoftCategorical(space) if isinstance(space, spaces.Discrete) else SoftNormal(space)

    def make_actor(self) -> SoftPolicy:
        return SoftPolicy(super().make_actor(), self.log_alpha_init)

    def actor_optimizers(self, spec: OptimSpec) -> dict[str, OptimSpec]:
        return {"actor": spec, "temperature": spec}

    def numpy_policy(self) -> Callable[[np.ndarray], np.ndarray] | None:
        return self.actor.net.actor.numpy_policy()

    def policy_outputs(self, obs: Tensor) -> Tensor:
        return self.actor.net(obs)[0]

    def agreed(self, critics: Callable) -> Callable:
        """(B,), or (B, A) of Discrete actions, in the place of (B, critics, ...)."""
        return lambda *inputs: AGREED[self.settings.critics_agree](critics(*inputs), 1)

    def next_value(self, target: Callable, batch: Batch) -> Tensor:
        out, log_alpha = self.actor_as_seen(batch.next_obs)
        q, entropy = self.distribution.expected(out, self.agreed(target), batch.next_obs, batch.extras["next_noise"])
        return q + log_alpha.exp() * entropy

    def actor_loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        out, log_alpha = net(batch.obs)
        critics = self.agreed(self.critics_as_seen)
        q, entropy = self.distribution.expected(out, critics, batch.obs, batch.extras["noise"])
        alpha = log_alpha.detach().exp()
        loss = -(q + alpha * entropy).mean()
        excess = (entropy.detach() - self.target_entropy).mean()
        excess = torch.where(log_alpha.detach() < self.log_alpha_max, excess, excess.clamp(min=0))
        return loss + log_alpha * excess, {"loss": loss, "alpha": alpha, "entropy": entropy.mean()}
