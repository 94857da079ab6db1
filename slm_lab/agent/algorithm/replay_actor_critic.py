"""What the actor-critics that learn from replayed rows share: the two learners, the loss of the critics, the round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from slm_lab.agent.algorithm.algorithm import Algorithm, AlgorithmSettings, Site, acting_forward, seeded_net
from slm_lab.agent.algorithm.random import make_draw
from slm_lab.agent.learner import ERRORS, WHOLE, Learner, frozen
from slm_lab.agent.net.actor_critic import Actor
from slm_lab.agent.net.critics import Critics
from slm_lab.agent.net.optim import OptimSpec
from slm_lab.agent.net.settings import LOSSES, NetSettings
from slm_lab.types import Batch


class ReplayActorCriticSettings(AlgorithmSettings):
    """Keys of the actor-critics that learn from replayed rows."""

    training_start_step: int = Field(
        0, ge=0, description="frames before the first learn round, in which training acts uniformly at random"
    )
    training_iter: int = Field(1, ge=1, description="batches drawn in a learn round, an update of the critics on each")
    policy_delay: int = Field(1, ge=1, description="updates of the critics for each one of the actor")

    def first_learning_frame(self) -> int:
        return self.training_start_step

    def opt_steps(self, max_frame: int, num_envs: int) -> float:
        return max_frame / self.training_frequency * self.training_iter


class ReplayActorCritic(Algorithm):
    """Critics learn what the actor's actions are worth, the actor to do what the critics value.

    Subclasses say what follows a row is worth (`next_value`) and what the actor wants (`actor_loss`). Critics and actor
    are nets of their own, whatever the net's `shared`.
    """

    Settings = ReplayActorCriticSettings
    on_policy = False
    heads = ("policy", "value")
    reports = ("q", "actor_loss", "actor_grad_norm")
    num_critics: ClassVar[int] = 2  # the lowest counts (clipped double Q-learning: Fujimoto 2018, eq. 10)
    critics_have_target: ClassVar[bool] = True
    actor_has_target: ClassVar[bool] = False
    targets_wait: ClassVar[bool] = False  # for the updates of the actor; else they follow each update of the critics
    learner: Learner  # of the critics
    distribution: Any

    def __init__(self, settings: Any, net_settings: NetSettings, site: Site):
        super().__init__(settings, net_settings, site)
        self.distribution = self.make_distribution()
        self.value_loss = LOSSES[net_settings.loss_spec.name]
        actor, critics = seeded_net(
            site.seed, lambda: nn.ModuleList([self.make_actor(), self.make_critics()])
        ).children()
        of_actor = net_settings.actor_optim_spec or net_settings.optim_spec
        of_critics = net_settings.critic_optim_spec or net_settings.optim_spec
        self.learner = Learner(
            critics,
            self.critic_loss,
            net_settings,
            optim_specs={WHOLE: of_critics},
            has_target=self.critics_have_target,
            device=site.device,
            compiled=site.compiled,
            common=site.common.get("learner"),
        )
        self.actor = Learner(
            actor,
            self.actor_loss,
            net_settings,
            optim_specs=self.actor_optimizers(of_actor),
            has_target=self.actor_has_target,
            device=site.device,
            compiled=site.compiled,
            common=site.common.get("actor"),
        )
        self.others = {"actor": self.actor}
        # what each sees of the other: the same parameters, without gradients for them
        self.critics_as_seen, self.actor_as_seen = frozen(self.learner.net), frozen(self.actor.net)
        self.forward = acting_forward(self.numpy_policy(), self.policy_outputs, self.learner.device)
        self.draw_randomly = make_draw(site.action_space)

    def make_distribution(self) -> Any:
        raise NotImplementedError

    def make_actor(self) -> nn.Module:
        return Actor(
            self.net_settings,
            self.site.observation_space,
            self.distribution.units,
            log_stds=self.distribution.log_stds,
        )

    def make_critics(self) -> nn.Module:
        return Critics(self.net_settings, self.site.observation_space, self.site.action_space, self.num_critics)

    def actor_optimizers(self, spec: OptimSpec) -> dict[str, OptimSpec]:
        return {WHOLE: spec}

    def numpy_policy(self) -> Callable[[np.ndarray], np.ndarray] | None:
        return self.actor.net.numpy_policy()

    def policy_outputs(self, obs: Tensor) -> Tensor:
        return self.actor.net(obs)

    @property
    def acting(self) -> Learner:
        return self.actor

    def act(self, obs: Any, frame: int, explore: bool = True) -> np.ndarray:
        if explore and frame < self.settings.training_start_step:
            return self.draw_randomly(self.rng, len(next(iter(obs.values())) if isinstance(obs, dict) else obs))
        out = self.forward(obs)
        return self.explore(out, frame) if explore else self.distribution.mode(out)

    def explore(self, out: np.ndarray, frame: int) -> np.ndarray:
        """(N, ...) actions to learn from."""
        return self.distribution.sample(out, self.rng)

    def learn(self, memory: Any, frame: int) -> None:
        for _ in range(self.settings.training_iter):
            batch = memory.sample()
            self.add_noise(batch)
            actors_turn = (self.learner.opt_step + 1) % self.settings.policy_delay == 0
            errors = self.learner.step(batch, frame, follow=actors_turn or not self.targets_wait)
            memory.update_priorities(batch.ids, errors)
            if actors_turn:
                self.actor.step(batch, frame)

    def add_noise(self, batch: Batch) -> None:
        """Standard normal extras (B, size): `next_noise` for the loss of the critics, `noise` for the actor's.

        All chance of a learn step comes from here, so that it is the same compiled, eager and resumed.
        """
        size = (2, len(batch.reward), self.distribution.size)
        noise = torch.from_numpy(self.rng.standard_normal(size, dtype=np.float32))
        batch.extras |= {"next_noise": noise[0], "noise": noise[1]}

    def critic_loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        with torch.no_grad():
            wanted = torch.addcmul(batch.reward, batch.discount, self.next_value(target, batch))
        return self.distance(net(batch.obs, batch.action), wanted, batch)

    def distance(self, q: Tensor, wanted: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss between each critic's Q(s, a), (B, critics), and the (B,) target that they share."""
        wanted = wanted.unsqueeze(-1)
        each = self.value_loss(q, wanted.expand_as(q), reduction="none").sum(-1)
        errors = (q.detach() - wanted).abs().mean(-1)
        return (batch.weight * each).mean(), {ERRORS: errors, "q": q.detach().mean()}

    def next_value(self, target: Callable, batch: Batch) -> Tensor:
        """(B,) what is to come after each row, by the critics' target."""
        raise NotImplementedError

    def actor_loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        raise NotImplementedError
