"""SARSA: the value of an action is learned from the one that was really taken next (Rummery & Niranjan 1994)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from slm_lab.agent.algorithm.recurrent import mean, minibatches, outputs, outputs_after, outputs_of_each
from slm_lab.agent.algorithm.returns import gae
from slm_lab.agent.algorithm.value_based import ValueBased, ValueSettings
from slm_lab.agent.memory.view import take
from slm_lab.types import Batch


class SARSASettings(ValueSettings):
    name: Literal["SARSA"] = "SARSA"
    lam: float = Field(0.0, ge=0, le=1, description="lambda of SARSA(lambda)'s returns; 0: one step")
    minibatch_size: int | None = Field(None, ge=1, description="rows of each update; null: all of a learn round")
    training_epoch: int = Field(1, ge=1, description="passes over the rows of a learn round")

    def opt_steps(self, max_frame: int, num_envs: int) -> float:
        held = self.training_frequency * num_envs
        return max_frame / min(self.minibatch_size or held, held) * self.training_epoch


class SARSA(ValueBased):
    """The target is r + discount * Q(s', a') of the next row (Sutton & Barto 2018, eq. 6.7).

    Where no next action is known (the episode was truncated, or its next action is yet to be chosen), its place is
    taken by the expected value under the policy as it explores now (eq. 6.9); after a terminated row comes nothing.
    With `lam` the targets are lambda-returns over the rows held (section 12.1). There is no target net: what steadies
    learning are minibatches and a net with `layer_norm` (Gallici 2024).
    """

    Settings = SARSASettings
    on_policy = True

    def learn(self, memory: Any, frame: int) -> None:
        batch = self.add_targets(memory.drain(), frame)
        size = self.settings.minibatch_size or len(batch.reward)
        for minibatch in minibatches(memory, batch, size, self.settings.training_epoch, self.net_settings):
            self.learner.step(minibatch, frame)

    @torch.no_grad()
    def add_targets(self, batch: Batch, frame: int) -> Batch:
        """The batch with the extra `target` (B,), as of now."""
        on_device = self.learner.to_device(batch)
        q, after = outputs_of_each(self.learner.net, on_device)
        value = q.gather(-1, self.index(on_device).unsqueeze(-1)).squeeze(-1).cpu().numpy()
        reward, discount, end = (column.numpy() for column in (batch.reward, batch.discount, batch.end))
        next_value = np.append(value[1:], np.float32(0))
        last = np.flatnonzero(end)
        there = torch.from_numpy(last).to(q.device)
        state = None if after is None else after[there]
        following = outputs_after(self.learner.net, take(on_device, there).next_obs, state)
        next_value[last] = self.expected(following.cpu().numpy(), frame)
        advantage = gae(reward, discount, end, value, next_value, self.settings.lam)
        batch.extras["target"] = torch.from_numpy(value + advantage)
        return batch

    def expected(self, values: np.ndarray, frame: int) -> np.ndarray:
        """(B,) the mean of (B, actions) values over the actions that the policy draws at this frame."""
        chances = PROBABILITIES[self.settings.action_policy](values, self.settings.explore_var_spec.at(frame))
        return (chances * values).sum(-1)

    def loss(self, net: Callable, target: Callable, batch: Batch, loss_function: Callable):
        """The loss between Q(s, a) and its target."""
        q = outputs(net, batch).gather(-1, self.index(batch).unsqueeze(-1)).squeeze(-1)
        return mean(loss_function(q, batch.extras["target"], reduction="none"), batch), {}


def greedy(values: np.ndarray, explore_var: float) -> np.ndarray:
    """(B, actions) one for the best action of each row."""
    return np.eye(values.shape[-1], dtype=np.float32)[values.argmax(-1)]


def epsilon_greedy(values: np.ndarray, epsilon: float) -> np.ndarray:
    return np.float32(1 - epsilon) * greedy(values, 0) + np.float32(epsilon / values.shape[-1])


def boltzmann(values: np.ndarray, temperature: float) -> np.ndarray:
    if temperature <= 0:
        return greedy(values, 0)
    logits = (values - values.max(-1, keepdims=True)) / np.float32(temperature)
    chances = np.exp(logits)
    return chances / chances.sum(-1, keepdims=True)


PROBABILITIES = {"default": greedy, "epsilon_greedy": epsilon_greedy, "boltzmann": boltzmann}
