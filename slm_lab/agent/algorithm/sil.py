"""Self-imitation learning: an actor-critic that also learns from those of its past actions that turned out better than
it now expects (Oh 2018). SIL adds this to ActorCritic, PPOSIL to PPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, SerializeAsAny, WithJsonSchema, field_validator
from torch import Tensor

from slm_lab.agent.algorithm.actor_critic import ActorCritic, ActorCriticSettings
from slm_lab.agent.algorithm.algorithm import Site
from slm_lab.agent.algorithm.ppo import PPO, PPOSettings
from slm_lab.agent.algorithm.returns import returns_to_go
from slm_lab.agent.learner import ERRORS
from slm_lab.agent.memory import make_memory
from slm_lab.agent.memory.presets import OnPolicyReplaySettings, PrioritizedReplaySettings, ReplaySettings
from slm_lab.agent.memory.view import take
from slm_lab.agent.net.settings import NetSettings
from slm_lab.lib import seeds
from slm_lab.spec.schema import read_block
from slm_lab.spec.settings import Settings
from slm_lab.types import Batch, Step

RETURN = "return"  # the extra that the rows to imitate carry
MemoryBlock = Annotated[SerializeAsAny[ReplaySettings], WithJsonSchema({"type": "object"})]


class SILSettings(ActorCriticSettings):
    name: Literal["SIL"] = "SIL"
    sil_policy_loss_coef: float = Field(1.0, ge=0, description="weight of the policy loss on rows to imitate")
    sil_val_loss_coef: float = Field(0.01, ge=0, description="weight of the value loss on rows to imitate")
    training_iter: int = Field(4, ge=1, description="batches of rows to imitate drawn after a learn round")
    training_batch_iter: int = Field(1, ge=1, description="updates on each of these batches")
    sil_memory: MemoryBlock = Field(
        PrioritizedReplaySettings(max_size=100_000, batch_size=512, alpha=0.6, beta=0.1),
        description="memory of complete episodes to imitate: a block with the keys of PrioritizedReplay or Replay",
    )

    @field_validator("sil_memory", mode="before")
    @classmethod
    def _read(cls, block: Any) -> Any:
        settings = block if isinstance(block, Settings) else read_block("memory", block, "sil_memory")
        if settings.name not in ("PrioritizedReplay", "Replay"):
            raise ValueError(f"'{settings.name}' cannot hold rows to imitate; use PrioritizedReplay or Replay")
        if settings.storage != "ram" or settings.n_step != 1:
            raise ValueError("rows to imitate are held in RAM with their whole returns: leave out storage and n_step")
        return settings


class SIL(ActorCritic):
    """Rows enter the memory of rows to imitate when their episode is complete, with their discounted return. That of a
    truncated episode goes on with the value that its final observation has then."""

    Settings = SILSettings
    lacks_order = "imitates single rows out of all episodes"
    reports = (*ActorCritic.reports, "sil_loss", "sil_grad_norm", "sil_policy_loss", "sil_value_loss")

    def __init__(self, settings: SILSettings, net_settings: NetSettings, site: Site):
        super().__init__(settings, net_settings, site)
        self.imitator = self.learner.sharing(self.imitation_loss)
        spaces_and_gamma = {
            "observation_space": site.observation_space,
            "action_space": site.action_space,
            "gamma": settings.gamma,
        }
        stack = settings.sil_memory.frame_stack
        self.episodes = make_memory(  # the rows of episodes, until these are complete
            OnPolicyReplaySettings(frame_stack=stack), num_envs=site.num_envs, **spaces_and_gamma
        )
        self.to_imitate = make_memory(
            settings.sil_memory, seed=seeds.derive(site.seed, "sil memory"), **spaces_and_gamma
        )

    def remember(self, obs: Any, action: np.ndarray, step: Step) -> None:
        super().remember(obs, action, step)
        self.episodes.add_step(obs, action, step)
        if self.episodes.ready(0):
            self.keep(self.episodes.drain())

    @torch.no_grad()
    def keep(self, batch: Batch) -> None:
        """Add the rows of complete episodes to those to imitate."""
        reward, discount, end = (column.numpy() for column in (batch.reward, batch.discount, batch.end))
        next_value = np.zeros_like(reward)
        cut = np.flatnonzero(end & (discount > 0))
        if cut.size:
            following = self.learner.to_device(take(batch, torch.from_numpy(cut))).next_obs
            next_value[cut] = self.learner.net(following)[1].cpu().numpy()
        rows = {
            "obs": batch.obs,
            "action": batch.action,
            "reward": reward,
            "terminated": end,
            "truncated": np.zeros_like(end),
            "next_obs": batch.next_obs,
            RETURN: returns_to_go(reward, discount, end, next_value),
        }
        self.to_imitate.add_rows(rows)

    def learn(self, memory: Any, frame: int) -> None:
        super().learn(memory, frame)
        if self.to_imitate.size:
            self.imitate(frame)

    def imitate(self, frame: int) -> None:
        for _ in range(self.settings.training_iter):
            batch = self.to_imitate.sample()
            for _ in range(self.settings.training_batch_iter):
                errors = self.imitator.step(batch, frame)
            self.to_imitate.update_priorities(batch.ids, errors)

    def imitation_loss(self, net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]):
        """Both losses count only rows whose return exceeds the value (Oh 2018, eq. 1 to 3); `errors` is by how much."""
        out, value = net(batch.obs)
        excess = (batch.extras[RETURN] - value).clamp(min=0)
        pull = batch.weight * excess.detach()
        policy_loss = -(pull * self.distribution.log_prob(out, batch.action)).mean()
        value_loss = 0.5 * (batch.weight * excess.square()).mean()
        loss = self.settings.sil_policy_loss_coef * policy_loss + self.settings.sil_val_loss_coef * value_loss
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, ERRORS: excess.detach()}

    def report(self, frame: int) -> dict[str, float]:
        imitation = {f"sil_{name}": value for name, value in self.imitator.report().items()}
        return {**super().report(frame), **imitation}

    @property
    def opt_step(self) -> int:
        return super().opt_step + self.imitator.opt_step

    def state_dict(self) -> dict:
        imitation = {
            "episodes": self.episodes.state_dict(),
            "memory": self.to_imitate.state_dict(),
            "opt_step": self.imitator.opt_step,
            "report": self.imitator.means.state_dict(),
        }
        return {**super().state_dict(), "imitation": imitation}

    def load_state_dict(self, tree: dict) -> None:
        super().load_state_dict(tree)
        imitation = tree["imitation"]
        self.episodes.load_state_dict(imitation["episodes"])
        self.to_imitate.load_state_dict(imitation["memory"])
        self.imitator.opt_step = imitation["opt_step"]
        self.imitator.means.load_state_dict(imitation["report"])


class PPOSILSettings(PPOSettings, SILSettings):
    name: Literal["PPOSIL"] = "PPOSIL"


class PPOSIL(SIL, PPO):
    """PPO's learn round, then the imitation of SIL."""

    Settings = PPOSILSettings
    reports = (*PPO.reports, *SIL.reports[len(ActorCritic.reports) :])
