"""CrossQ: soft actor-critic without target nets, with batch-renormalised critics in their place (Bhatt 2024)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from slm_lab.agent.algorithm.sac import SoftActorCritic, SoftActorCriticSettings
from slm_lab.agent.net.critics import Critics, pick
from slm_lab.agent.net.renorm import renormalise
from slm_lab.lib.trees import mapped
from slm_lab.types import Batch


class CrossQSettings(SoftActorCriticSettings):
    name: Literal["CrossQ"] = "CrossQ"
    policy_delay: int = Field(3, ge=1, description="updates of the critics for each one of the actor")


class CrossQ(SoftActorCritic):
    """What is and what follows go through the critics as one batch, so that both are normalised by the statistics of
    both (Bhatt 2024, fig. 2). The critics are batch-renormalised whatever the net's own norm, which is the actor's."""

    Settings = CrossQSettings
    critics_have_target = False

    def make_critics(self) -> nn.Module:
        normed = self.net_settings.model_copy(update={"batch_norm": True, "layer_norm": False})
        return renormalise(Critics(normed, self.site.observation_space, self.site.action_space, self.num_critics))

    def critic_loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        q: list[Tensor] = []  # of what is

        def of_next(next_obs: Any, next_action: Tensor | None = None) -> Tensor:
            obs = mapped(lambda now, then: torch.cat([now, then]), batch.obs, next_obs)
            action = None
            if next_action is not None:
                action = torch.cat([batch.action.reshape(len(next_action), -1), next_action])
            now, following = net(obs, action).chunk(2)
            q.append(pick(now, batch.action - self.distribution.start) if action is None else now)
            return following

        next_value = self.next_value(of_next, batch).detach()
        return self.distance(q[0], torch.addcmul(batch.reward, batch.discount, next_value), batch)
