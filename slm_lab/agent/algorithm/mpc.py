"""Model-predictive control with a learned model: plan some steps ahead, take one, plan again (PETS: Chua 2018)."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field, model_validator
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import Algorithm, AlgorithmSettings, Site, on_device
from slm_lab.agent.algorithm.dynamics import Dynamics, ModelSettings, check_model, rollout
from slm_lab.agent.algorithm.planner import PLANNERS, make_plans, shifted
from slm_lab.agent.algorithm.random import make_draw
from slm_lab.agent.algorithm.recurrent import Carried
from slm_lab.agent.algorithm.squash import check_bounded_box
from slm_lab.errors import Mistake
from slm_lab.lib import seeds


class MPCSettings(AlgorithmSettings):
    name: Literal["MPC"] = "MPC"
    training_frequency: int = Field(100, ge=1, description="frames between fits of the model")
    training_start_step: int = Field(
        200, ge=0, description="frames before the model is first fitted, in which training acts uniformly at random"
    )
    model: ModelSettings = Field(ModelSettings(), description="the ensemble that learns the env: a net's block")
    planner: Literal["cem", "random_shooting"] = Field(
        "cem",
        description="cem: candidates close in on the best ones, from the plan of the step before; "
        "random_shooting: the best of evenly drawn candidates",
    )
    horizon: int = Field(20, ge=1, description="steps that are planned ahead")
    candidates: int = Field(100, ge=1, description="action sequences that are tried, in each iteration")
    elites: int = Field(10, ge=1, description="cem: the best candidates, which decide where the next ones are drawn")
    iterations: int = Field(3, ge=1, description="cem: times that candidates are drawn")
    particles: int = Field(
        1, ge=1, description="rollouts of a candidate by each member of the model, which stays with them to the end"
    )

    @model_validator(mode="after")
    def _elites_fit(self) -> MPCSettings:
        if self.elites > self.candidates:
            raise ValueError(f"elites {self.elites} are more than candidates {self.candidates}: lower them")
        return self

    def first_learning_frame(self) -> int:
        """The first round is due one `training_frequency` after it."""
        return max(0, self.training_start_step - self.training_frequency)

    def opt_steps(self, max_frame: int, num_envs: int) -> float:
        return 0  # most of the time goes into planning


class MPC(Algorithm):
    Settings = MPCSettings
    on_policy = False
    learns_from = "rows for a model"
    stays_alone = "goes back to the best of each fit of its model, over what other sessions have learned"
    needs_net = False
    reports = ("mse", "validation_loss")
    settings: MPCSettings

    def __init__(self, settings: MPCSettings, net_settings: None, site: Site):
        super().__init__(settings, net_settings, site)
        self.dynamics = Dynamics(settings.model, site)
        self.learner = self.dynamics.learner
        self.plans = make_plans(site.action_space)
        self.plan = partial(PLANNERS[settings.planner], self.plans)
        self.state_size = settings.horizon * self.plans.units if settings.planner == "cem" else 0
        self.draw_randomly = make_draw(site.action_space)

    @classmethod
    def check(cls, settings: MPCSettings, action_space: spaces.Space) -> list[Mistake]:
        if isinstance(action_space, spaces.Discrete):
            return []
        return check_bounded_box(settings.name, action_space, "Discrete or Box")

    @classmethod
    def check_fit(cls, agent: Any, observation_space: spaces.Space) -> list[Mistake]:
        mistakes = check_model(agent, observation_space)
        if agent.net is not None:
            problem = "MPC has no net but its model: leave it out, and put such keys into agent.algorithm.model"
            mistakes.append(Mistake("agent.net", problem))
        return mistakes

    @torch.no_grad()
    def act(self, obs: Any, frame: int, explore: bool = True, carried: Carried | None = None) -> np.ndarray:
        """What is carried is the rest of the last plan. Without `explore`, what is seen decides on all chance."""
        seen = zlib.crc32(b"".join(part.tobytes() for part in (obs.values() if isinstance(obs, dict) else [obs])))
        obs = self.dynamics.encode_obs(on_device(obs, self.learner.device))
        if explore and (frame < self.settings.training_start_step or not self.dynamics.fitted):
            return self.draw_randomly(self.rng, len(obs))
        rng = self.rng if explore else seeds.generator(self.site.seed, "without exploration", seen)
        shape = len(obs), self.settings.horizon, self.plans.units
        plan = torch.zeros(shape) if carried is None else torch.from_numpy(carried.values).view(shape)
        promised = partial(self.returns, self.dynamics.net.scaled_obs(obs), rng=rng)
        plan = self.plan(promised, plan.to(obs.device), self.settings, rng)
        if carried is not None:
            carried.advance(shifted(plan).flatten(1).cpu().numpy())
        return self.plans.action(plan[:, 0].cpu().numpy())

    def returns(self, obs: Tensor, candidates: Tensor, rng: np.random.Generator) -> Tensor:
        """(N, C) the discounted return of each of the candidates (N, C, H, A) from scaled observations (N, D): the mean
        over the model's members, each of which goes its own way, and their particles."""
        net, gamma = self.dynamics.net, self.settings.gamma
        envs, count, horizon, _ = candidates.shape
        members, particles, width = self.settings.model.members, self.settings.particles, obs.shape[-1]
        rows = envs, particles, count
        action = net.scaled_action(self.plans.encode(candidates))
        action = action.movedim(2, 0).unsqueeze(2).expand(horizon, *rows, -1).reshape(horizon, -1, action.shape[-1])
        # the same chance for all candidates of an env, so that none of them is ahead by luck
        noise = rng.standard_normal((horizon, members, envs, particles, 1, width), dtype=np.float32)
        noise = torch.from_numpy(noise).to(obs.device).expand(-1, -1, -1, -1, count, -1).flatten(2, 4)
        place = obs[:, None, None].expand(*rows, width).reshape(-1, width)
        total = rollout(net, place, action, noise, gamma)
        return total.view(members, *rows).mean((0, 2))

    def learn(self, memory: Any, frame: int) -> None:
        self.dynamics.fit(memory, frame)

    def variables(self, frame: int) -> dict[str, float]:
        return self.dynamics.report()

    def state_dict(self) -> dict:
        return {**super().state_dict(), "dynamics": self.dynamics.state_dict()}

    def load_state_dict(self, tree: dict) -> None:
        super().load_state_dict(tree)
        self.dynamics.load_state_dict(tree["dynamics"])
