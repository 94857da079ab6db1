"""Model-based policy optimisation: SAC learns from short rollouts in a learned model (Janner 2019, algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import Site
from slm_lab.agent.algorithm.dynamics import Dynamics, ModelSettings, check_model
from slm_lab.agent.algorithm.sac import SoftActorCritic, SoftActorCriticSettings
from slm_lab.agent.algorithm.schedule import ScheduleSpec, constant
from slm_lab.agent.memory import Memory, make_memory
from slm_lab.agent.net.settings import NetSettings
from slm_lab.errors import Mistake
from slm_lab.lib import seeds
from slm_lab.types import Batch

HOLD_IMAGINED_ROWS = ("Replay", "PrioritizedReplay")


class MBPOSettings(SoftActorCriticSettings):
    name: Literal["MBPO"] = "MBPO"
    training_start_step: int = Field(
        500, ge=0, description="frames before anything is learned, in which training acts uniformly at random"
    )
    training_iter: int = Field(
        10, ge=1, description="batches of real and imagined rows in a learn round, an update of the critics on each"
    )
    model: ModelSettings = Field(ModelSettings(), description="the ensemble that learns the env: a net's block")
    model_training_frequency: int = Field(250, ge=1, description="frames between fits of the model")
    rollouts: int = Field(5000, ge=1, description="rollouts imagined after each fit, from rows drawn evenly")
    rollout_length_spec: ScheduleSpec = Field(
        constant(1), description="steps of a rollout, over frames; a schedule's value is rounded"
    )
    real_ratio: float = Field(0.05, ge=0, le=1, description="share of a batch that are real rows")


class MBPO(SoftActorCritic):
    """Nets, losses and acting are those of SAC. A batch is as large as the imagined memory's batch_size says."""

    Settings = MBPOSettings
    learns_from = "rows for a model"
    stays_alone = "goes back to the best of each fit of its model, over what other sessions have learned"
    imagines = True
    reports = (*SoftActorCritic.reports, "model_loss", "model_grad_norm", "mse", "validation_loss", "imagined_reward")
    settings: MBPOSettings

    def __init__(self, settings: MBPOSettings, net_settings: NetSettings, site: Site):
        super().__init__(settings, net_settings, site)
        self.dynamics = Dynamics(settings.model, site)
        self.others["model"] = self.dynamics.learner
        self.imagined = make_memory(
            site.imagined_memory,
            site.observation_space,
            site.action_space,
            gamma=settings.gamma,
            seed=seeds.derive(site.seed, "imagined memory"),
        )
        self.fitted_at = -1  # frame
        self.imagined_reward = 0.0  # mean of the newest rollouts

    @classmethod
    def check_fit(cls, agent: Any, observation_space: spaces.Space) -> list[Mistake]:
        mistakes = check_model(agent, observation_space)
        if not isinstance(observation_space, spaces.Box) or observation_space.dtype.kind != "f":
            problem = "MBPO imagines rows whose observations are one array of real numbers; the env's are not: use MPC"
            mistakes.append(Mistake("agent.algorithm.name", problem))
        memory = agent.imagined_memory
        if memory.name not in HOLD_IMAGINED_ROWS:
            problem = f"'{memory.name}' cannot hold imagined rows; use {' or '.join(HOLD_IMAGINED_ROWS)}"
            mistakes.append(Mistake("agent.imagined_memory.name", problem))
        elif memory.storage != "ram" or memory.n_step != 1 or memory.frame_stack != 1:
            problem = "imagined rows are held in RAM, one by one: leave out storage, n_step and frame_stack"
            mistakes.append(Mistake("agent.imagined_memory", problem))
        return mistakes

    def learn(self, memory: Any, frame: int) -> None:
        every = self.settings.model_training_frequency
        if frame // every > self.fitted_at // every:
            self.fitted_at = frame
            self.dynamics.fit(memory, frame)
            self.imagine(memory.sample(self.settings.rollouts).obs.numpy(), frame)
        super().learn(Mixture(self.imagined, memory, self.settings.real_ratio), frame)

    def imagine(self, obs: np.ndarray, frame: int) -> None:
        """Follow the policy in the model from real observations (B, ...); what has terminated is not followed on."""
        rewards = []
        for _ in range(max(1, round(self.settings.rollout_length_spec.at(frame)))):
            action = self.distribution.sample(self.forward(obs), self.rng)
            flat = (
                self.dynamics.encode_obs(torch.from_numpy(obs)),
                self.dynamics.encode_action(torch.from_numpy(action)),
            )
            following, reward, terminated = (told.cpu().numpy() for told in self.dynamics.draw(*flat, self.rng))
            next_obs = following.reshape(obs.shape).astype(obs.dtype)
            self.imagined.add_rows(
                {
                    "obs": obs,
                    "action": action,
                    "reward": reward,
                    "terminated": terminated,
                    "truncated": np.zeros_like(terminated),
                    "next_obs": next_obs,
                },
                ordered=False,
            )
            rewards.append(reward.mean())
            obs = next_obs[~terminated]
            if not len(obs):
                break
        self.imagined_reward = float(np.mean(rewards))

    def variables(self, frame: int) -> dict[str, float]:
        own = {**self.dynamics.report(), "imagined_reward": self.imagined_reward}
        return {**super().variables(frame), **own}

    def state_dict(self) -> dict:
        return {
            **super().state_dict(),
            "dynamics": self.dynamics.state_dict(),
            "imagined": self.imagined.state_dict(),
            "fitted_at": self.fitted_at,
            "imagined_reward": self.imagined_reward,
        }

    def load_state_dict(self, tree: dict) -> None:
        super().load_state_dict(tree)
        self.dynamics.load_state_dict(tree["dynamics"])
        self.imagined.load_state_dict(tree["imagined"])
        self.fitted_at, self.imagined_reward = tree["fitted_at"], tree["imagined_reward"]


class Mixture:
    """Imagined rows and real ones, in batches of as many as the imagined memory's settings say."""

    def __init__(self, imagined: Memory, real: Memory, real_ratio: float):
        size = imagined.settings.batch_size
        count = max(round(real_ratio * size), 1) if real_ratio else 0
        self.parts = [(memory, rows) for memory, rows in ((imagined, size - count), (real, count)) if rows]

    def sample(self) -> Batch:
        """Imagined rows first; their ids and the real ones' are each memory's own."""
        return joined([memory.sample(rows) for memory, rows in self.parts])

    def update_priorities(self, ids: Tensor, errors: Tensor) -> None:
        sizes = [rows for _, rows in self.parts]
        for (memory, _), own, told in zip(self.parts, ids.split(sizes), errors.split(sizes), strict=True):
            memory.update_priorities(own, told)


def joined(batches: Sequence[Batch]) -> Batch:
    """The rows of one batch after the other's."""
    names = ("obs", "action", "reward", "next_obs", "discount", "weight", "ids")
    return Batch(**{name: torch.cat([getattr(batch, name) for batch in batches]) for name in names})
