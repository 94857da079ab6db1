"""Deep Q-learning. DQN adds a target net to VanillaDQN; DoubleDQN values the next state in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from slm_lab.agent.algorithm.recurrent import errors_of_windows, from_windows, mean, next_outputs, outputs
from slm_lab.agent.algorithm.value_based import ValueBased, ValueSettings
from slm_lab.agent.learner import ERRORS
from slm_lab.types import Batch


class VanillaDQNSettings(ValueSettings):
    name: Literal["VanillaDQN"] = "VanillaDQN"
    training_start_step: int = Field(0, ge=0, description="frames before the first learn round")
    training_iter: int = Field(1, ge=1, description="batches drawn in a learn round")
    training_batch_iter: int = Field(1, ge=1, description="updates on each batch")

    def first_learning_frame(self) -> int:
        return self.training_start_step

    def opt_steps(self, max_frame: int, num_envs: int) -> float:
        return max_frame / self.training_frequency * self.training_iter * self.training_batch_iter


class DQNSettings(VanillaDQNSettings):
    name: Literal["DQN"] = "DQN"


class DoubleDQNSettings(VanillaDQNSettings):
    name: Literal["DoubleDQN"] = "DoubleDQN"


class VanillaDQN(ValueBased):
    """Q-learning on replayed rows, without a target net (Mnih 2013); on windows of them if the net carries a state."""

    Settings = VanillaDQNSettings
    on_policy = False

    def learn(self, memory: Any, frame: int) -> None:
        for _ in range(self.settings.training_iter):
            batch = self.draw(memory)
            for _ in range(self.settings.training_batch_iter):
                errors = self.learner.step(batch, frame)
            memory.update_priorities(batch.ids, errors_of_windows(errors, batch) if self.state_size else errors)

    def draw(self, memory: Any) -> Batch:
        """Rows, or for a net that carries a state windows of them."""
        batch = memory.sample()
        if not self.state_size:
            return batch
        return from_windows(batch, memory.settings.burn_in, memory.settings.n_step, self.state_size)

    def loss(self, net: Callable, target: Callable, batch: Batch, loss_function: Callable):
        """The weighted loss between Q(s, a) and its target; `errors` is (B,) how far apart they are."""
        q = outputs(net, batch).gather(-1, self.index(batch).unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            wanted = torch.addcmul(batch.reward, batch.discount, self.next_value(net, target, batch))
        loss = mean(batch.weight * loss_function(q, wanted, reduction="none"), batch)
        return loss, {ERRORS: (wanted - q.detach()).abs()}

    def next_value(self, net: Callable, target: Callable, batch: Batch) -> Tensor:
        """(B,) the best value that the target net sees next, or without one the net itself."""
        return next_outputs(target, batch).amax(-1)


class DQN(VanillaDQN):
    """With a target net (Mnih 2015)."""

    Settings = DQNSettings
    has_target = True


class DoubleDQN(DQN):
    """The net chooses the action, the target net values it (van Hasselt 2016)."""

    Settings = DoubleDQNSettings

    def next_value(self, net: Callable, target: Callable, batch: Batch) -> Tensor:
        """(B,) the target net's value of the action that the net likes best."""
        best = next_outputs(net, batch).argmax(-1, keepdim=True)
        return next_outputs(target, batch).gather(-1, best).squeeze(-1)
