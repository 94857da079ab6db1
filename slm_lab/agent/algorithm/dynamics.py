"""A model of the env, learned from its rows: nets that each tell a Gaussian (PETS: Chua 2018, section 4).

Within the model everything is scaled as the memory's normalisers say: observations (B, D) and actions (B, A), flat, and
what it tells: D numbers of where a step leads, and the reward after them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from pydantic import Field
from torch import Tensor, nn

from slm_lab.agent.algorithm.algorithm import Site, seeded_net
from slm_lab.agent.learner import Learner
from slm_lab.agent.memory.encoding import Encoding, Normalizer
from slm_lab.agent.memory.model_based import ModelBasedReplay, ModelBatch
from slm_lab.agent.memory.view import take
from slm_lab.agent.net.ensemble import EnsembleMLP, EnsembleMLPSettings
from slm_lab.errors import Mistake
from slm_lab.types import Batch

FIRST_LOG_VARS = (-10.0, 0.5)  # between which they are at first, and
BOUNDS_COEF = 0.01  # the weight of how far apart their bounds are: both as in Chua 2018's code
ROWS_TO_MEASURE = 4096  # at a time
AT_ONCE = 64  # minibatches
TERMINATED = "terminated"


class ModelSettings(EnsembleMLPSettings):
    """The block `model` of an algorithm that learns one."""

    hid_layers_activation: str = Field("silu", description="after each hidden layer; smooth ones learn dynamics better")
    learned_termination: bool = Field(
        False, description="learn where episodes terminate too; false: as far as the model knows they go on"
    )


class DynamicsNet(nn.Module):
    """The members' answers to (B, D) observations and (B, A) actions, or (M, B, ...) those of each; all scaled."""

    max_log_var: Tensor
    min_log_var: Tensor

    def __init__(self, settings: ModelSettings, obs_width: int, action_width: int):
        super().__init__()
        self.outputs = obs_width + 1
        heads = {"model": 2 * self.outputs} | ({"termination": 1} if settings.learned_termination else {})
        inputs = spaces.Box(-math.inf, math.inf, (obs_width + action_width,))
        self.ensemble = EnsembleMLP(settings, inputs, heads)
        lowest, highest = FIRST_LOG_VARS
        self.min_log_var = nn.Parameter(torch.full((self.outputs,), lowest))
        self.max_log_var = nn.Parameter(torch.full((self.outputs,), highest))
        widths = {"obs": obs_width, "action": action_width, "target": obs_width, "reward": 1}
        for name, width in widths.items():
            self.register_buffer(f"{name}_mean", torch.zeros(width))
            self.register_buffer(f"{name}_std", torch.ones(width))
        self.register_buffer("delta", torch.ones(()))  # 1: targets are differences to the observation; 0: they are not

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """(M, B, D + 1) means and logs of variances, (M, B) logits of termination if it is learned, and () how far
        apart the bounds of the logs are (Chua 2018, appendix A.1)."""
        out = self.ensemble(torch.cat([obs, action], -1))
        told, logit = out if isinstance(out, tuple) else (out, None)
        mean, log_var = told.split(self.outputs, -1)
        log_var = self.max_log_var - F.softplus(self.max_log_var - log_var)
        log_var = self.min_log_var + F.softplus(log_var - self.min_log_var)
        apart = (self.max_log_var - self.min_log_var).sum()
        return mean, log_var, None if logit is None else logit.squeeze(-1), apart

    def adopt(self, memory: ModelBasedReplay) -> None:
        """Take on the memory's scales, and what its targets mean."""
        for name in ("obs", "action", "target", "reward"):
            scale: Normalizer = getattr(memory, f"{name}_scale")
            self.get_buffer(f"{name}_mean").copy_(scale.mean)
            self.get_buffer(f"{name}_std").copy_(scale.std)
        self.get_buffer("delta").fill_(float(memory.settings.target == "delta"))

    def scaled_obs(self, obs: Tensor) -> Tensor:
        return (obs - self.obs_mean) / self.obs_std

    def scaled_action(self, action: Tensor) -> Tensor:
        return (action - self.action_mean) / self.action_std

    def true_obs(self, obs: Tensor) -> Tensor:
        return obs * self.obs_std + self.obs_mean

    def true_reward(self, reward: Tensor) -> Tensor:
        return reward * self.reward_std + self.reward_mean

    def steps(self) -> Callable[[Tensor, Tensor], Tensor]:
        """A function (scaled observations (..., D), scaled targets) -> where they lead, scaled as observations."""
        scale = self.target_std / self.obs_std
        shift = (self.target_mean + (self.delta - 1) * self.obs_mean) / self.obs_std
        return lambda obs, target: torch.addcmul(torch.addcmul(shift, scale, target), self.delta, obs)


class Dynamics:
    """The model with what trains it."""

    def __init__(self, settings: ModelSettings, site: Site):
        self.settings = settings
        self.encode_obs, self.encode_action = Encoding(site.observation_space), Encoding(site.action_space)
        widths = self.encode_obs.width, self.encode_action.width
        net = seeded_net(site.seed, lambda: DynamicsNet(settings, *widths))
        self.learner = Learner(net, loss, settings, device=site.device, compiled=site.compiled)
        self.validation_loss: float | None = None  # of the parameters that the last fit kept

    @property
    def net(self) -> DynamicsNet:
        return self.learner.net  # type: ignore[return-value]

    @property
    def fitted(self) -> bool:
        return self.learner.opt_step > 0

    def fit(self, memory: ModelBasedReplay, frame: int) -> None:
        """Go on learning from the rows held, all members at once, until the memory says stop; the parameters with the
        lowest loss on its validation rows (before there are any, on the others) are kept."""
        memory.fit_scales()
        self.net.adopt(memory)
        part = "validation" if memory.ids_of("validation").size else "train"
        stop = memory.early_stop()
        flats = [group.own for group in self.learner.groups]
        kept = [flat.clone() for flat in flats]
        while stop.goes_on:
            for batch in self.epoch(memory):
                self.learner.step(batch, frame)
            if stop.tell(self.measure(memory, part)):
                kept = [flat.clone() for flat in flats]
        for flat, values in zip(flats, kept, strict=True):
            flat.copy_(values)
        self.validation_loss = stop.best if math.isfinite(stop.best) else None

    def epoch(self, memory: ModelBasedReplay) -> Iterator[Batch]:
        """Every member's training rows in minibatches of the memory's size; many of them are read at once."""
        size, count = memory.settings.batch_size, self.settings.members
        for rows in zip(*(memory.batches(AT_ONCE * size, member=member) for member in range(count)), strict=True):
            many = stacked(rows)
            for places in torch.arange(len(many.reward)).split(size):
                yield take(many, places)

    @torch.no_grad()
    def draw(self, obs: Tensor, action: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """(B, D) next observations, (B,) rewards and (B,) whether that is the end, each as one of the members has it;
        observations and actions are as the env has them, but flat."""
        rows, (net, device) = len(obs), (self.net, self.learner.device)
        obs = net.scaled_obs(obs.to(device))
        mean, log_var, logit, _ = net(obs, net.scaled_action(action.to(device)))
        member = torch.from_numpy(rng.integers(self.settings.members, size=rows)).to(device)
        own = member, torch.arange(rows, device=device)
        noise = torch.from_numpy(rng.standard_normal(mean.shape[1:], dtype=np.float32)).to(device)
        told = mean[own] + torch.exp(0.5 * log_var[own]) * noise
        likely = torch.zeros(rows, device=device) if logit is None else torch.sigmoid(logit[own])
        terminated = torch.from_numpy(rng.random(rows, dtype=np.float32)).to(device) < likely
        return net.true_obs(net.steps()(obs, told[:, :-1])), net.true_reward(told[:, -1]), terminated

    @torch.no_grad()
    def measure(self, memory: ModelBasedReplay, part: str) -> float:
        """The members' mean loss on those rows, without that of the bounds."""
        total, count = 0.0, 0
        for rows in memory.batches(ROWS_TO_MEASURE, part=part):
            batch = self.learner.to_device(stacked([rows] * self.settings.members))
            each, _ = losses(self.net, batch)
            total += each.mean().item() * len(rows.reward)
            count += len(rows.reward)
        return total / count

    def report(self) -> dict[str, float]:
        return {} if self.validation_loss is None else {"validation_loss": self.validation_loss}

    def state_dict(self) -> dict:
        """Besides the learner, which its algorithm saves."""
        return {"validation_loss": self.validation_loss}

    def load_state_dict(self, tree: dict) -> None:
        self.validation_loss = tree["validation_loss"]


def rollout(net: DynamicsNet, obs: Tensor, action: Tensor, noise: Tensor, gamma: float) -> Tensor:
    """(M, R) discounted returns of (H, R, A) actions from (R, D) observations, both scaled, as each member sees it.

    A rollout stays with its member (TS-infinity: Chua 2018, section 5) and draws where a step leads with its standard
    normal noise (H, M, R, D). What comes after a termination counts by how likely it is not to have happened.
    """
    members = noise.shape[1]
    total, alive = torch.zeros(noise.shape[1:3], device=obs.device), torch.ones((), device=obs.device)
    obs, lead = obs.expand(members, -1, -1), net.steps()
    for step, taken in enumerate(action):
        mean, log_var, logit, _ = net(obs, taken.expand(members, -1, -1))
        total = torch.add(total, alive * net.true_reward(mean[..., -1]), alpha=gamma**step)
        if logit is not None:
            alive = alive * torch.sigmoid(-logit)
        target = torch.addcmul(mean[..., :-1], torch.exp(0.5 * log_var[..., :-1]), noise[step])
        obs = lead(obs, target)
    return total


def stacked(rows: Sequence[ModelBatch]) -> Batch:
    """The minibatches of the members as one: all tensors are (B, M, ...)."""
    columns = {
        field.name: torch.stack([getattr(batch, field.name) for batch in rows], 1)
        for field in dataclasses.fields(ModelBatch)
    }
    return Batch(
        obs=columns["obs"],
        action=columns["action"],
        reward=columns["reward"],
        next_obs=columns["target"],
        discount=None,
        extras={TERMINATED: columns["terminated"]},
    )


def loss(net: Callable, target: Callable, batch: Batch, scalars: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum over the members of their mean losses, and that of the bounds."""
    each, info = losses(net, batch)
    return each.sum() + BOUNDS_COEF * info.pop("apart"), info


def losses(net: Callable, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """(M,) how unlikely each member holds what its rows (B, M, ...) tell, in nats, a mean over rows and outputs; where
    termination is learned, its cross entropy comes on top."""
    mean, log_var, logit, apart = net(batch.obs.transpose(0, 1), batch.action.transpose(0, 1))
    told = torch.cat([batch.next_obs, batch.reward.unsqueeze(-1)], -1).transpose(0, 1)
    each = gaussian_nll(mean, log_var, told).mean((1, 2))
    info = {"mse": (mean.detach() - told).square().mean(), "apart": apart}
    if logit is not None:
        wanted = batch.extras[TERMINATED].transpose(0, 1)
        each = each + F.binary_cross_entropy_with_logits(logit, wanted, reduction="none").mean(1)
    return each, info


def gaussian_nll(mean: Tensor, log_var: Tensor, value: Tensor) -> Tensor:
    """(...) minus the log of the density of each value, in nats."""
    return 0.5 * ((value - mean).square() * torch.exp(-log_var) + log_var + math.log(2 * math.pi))


def check_model(agent: Any, observation_space: spaces.Space) -> list[Mistake]:
    """Why the algorithm's model can learn nothing of such observations, or from such a memory."""
    name, mistakes = agent.algorithm.name, []
    drawn, members = getattr(agent.memory, "members", None), agent.algorithm.model.members
    if drawn not in (None, members):
        problem = f"{drawn}; {name}'s model has {members} (agent.algorithm.model.members): make them the same"
        mistakes.append(Mistake("agent.memory.members", problem))
    parts = (
        list(observation_space.spaces.values()) if isinstance(observation_space, spaces.Dict) else [observation_space]
    )
    if any(len(part.shape or ()) == 3 for part in parts):
        problem = f"{name}'s model tells of numbers one by one; the env's observations are images"
        mistakes.append(Mistake("agent.algorithm.name", f"{problem}: use an algorithm without a model"))
    return mistakes
