"""The nets of policy algorithms: an actor, and where the algorithm learns values, a critic beside or inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from slm_lab.agent.net.make import make_net
from slm_lab.agent.net.settings import NetSettings


class Actor(nn.Module):
    """obs -> policy outputs (B, units), or with a value head (outputs, values (B,)).

    With `log_std_init` the last `log_stds` outputs, which are logs of deviations, are free parameters instead.
    """

    def __init__(
        self,
        settings: NetSettings,
        observation_space: spaces.Space,
        units: int,
        *,
        log_stds: int = 0,
        has_value: bool = False,
    ):
        super().__init__()
        self.log_std = None
        if log_stds and settings.log_std_init is not None:
            units -= log_stds
            self.log_std = nn.Parameter(torch.full((log_stds,), settings.log_std_init))
        self.has_value = has_value
        self.net = make_net(settings, observation_space, {"policy": units} | ({"value": 1} if has_value else {}))
        self.state_size = getattr(self.net, "state_size", 0)

    def forward(self, obs: Tensor, *carried: Tensor | None) -> Any:
        """A net that carries a state takes it too, and gives (what is said above, the state after)."""
        if self.state_size:
            out, after = self.net(obs, *carried)
            return self._outputs(out), after
        return self._outputs(self.net(obs))

    def _outputs(self, out: Any) -> Tensor | tuple[Tensor, Tensor]:
        if self.has_value:
            policy, value = out
            return self._with_deviations(policy), value.squeeze(-1)
        return self._with_deviations(out)

    def _with_deviations(self, mean: Tensor) -> Tensor:
        return mean if self.log_std is None else torch.cat([mean, self.log_std.expand(*mean.shape[:-1], -1)], -1)

    def numpy_policy(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """(N, ...) observations -> (N, units) policy outputs without torch, or None where only torch can."""
        forward = self.net.numpy_forward("policy")
        if forward is None or self.log_std is None:
            return forward
        log_std = self.log_std.detach().numpy()

        def with_deviations(obs: np.ndarray) -> np.ndarray:
            mean = forward(obs)
            return np.concatenate([mean, np.broadcast_to(log_std, (len(mean), len(log_std)))], -1)

        return with_deviations


class ActorCriticNet(nn.Module):
    """obs -> (policy outputs (B, units), values (B,)). `shared`: one body under both heads; else two nets."""

    def __init__(self, settings: NetSettings, observation_space: spaces.Space, units: int, *, log_stds: int = 0):
        super().__init__()
        self.actor = Actor(settings, observation_space, units, log_stds=log_stds, has_value=settings.shared)
        self.critic = None if settings.shared else make_net(settings, observation_space, {"value": 1})
        self.state_size = self.actor.state_size * (1 if settings.shared else 2)  # the actor's, then the critic's

    def forward(self, obs: Tensor, *carried: Tensor | None) -> Any:
        """Nets that carry a state take it too, and give ((policy outputs, values), the state after)."""
        if self.critic is None:
            return self.actor(obs, *carried)
        if not self.state_size:
            return self.actor(obs), self.critic(obs).squeeze(-1)
        state = carried[0] if carried else None
        size = self.actor.state_size
        policy, after = self.actor(obs, None if state is None else state[:, :size])
        value, critic_after = self.critic(obs, None if state is None else state[:, size:])
        return (policy, value.squeeze(-1)), torch.cat([after, critic_after], -1)
