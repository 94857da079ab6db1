"""Rows to learn a model of the env from: (obs, action) -> (where it leads, reward, terminated)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field, model_validator
from torch import Tensor

from slm_lab.agent.memory.disk import Disk
from slm_lab.agent.memory.encoding import Encoding, Normalizer
from slm_lab.agent.memory.fields import Layout
from slm_lab.agent.memory.keys import MemorySettings
from slm_lab.agent.memory.memory import Memory, whole
from slm_lab.agent.memory.ring import TERMINATED, Ring
from slm_lab.agent.memory.split import Split
from slm_lab.agent.memory.trigger import EveryFrames
from slm_lab.agent.memory.view import Transitions
from slm_lab.errors import EmptyMemory, InvalidMemorySpec, Mistake
from slm_lab.lib import seeds

CHUNK = 65_536  # rows read at a time to fit a normaliser
ROWS_AT_FIRST = 1024  # of a dataset that grows


class ModelBasedReplaySettings(MemorySettings):
    name: Literal["ModelBasedReplay"] = "ModelBasedReplay"
    max_size: int | None = Field(None, ge=1, description="rows held, the oldest give way; null: all, and it grows")
    batch_size: int = Field(256, ge=1, description="rows of a minibatch")
    epochs: int = Field(1, ge=1, description="passes over the training rows, at most, each time the model is fitted")
    patience: int | None = Field(
        None, ge=1, description="epochs without a better validation loss after which fitting stops; null: never before"
    )
    validation: float = Field(0.2, ge=0, lt=1, description="share that is not trained on but measures the model")
    split_by: Literal["episode", "transition"] = Field(
        "episode", description="what is for validation as a whole: rows of one episode resemble each other"
    )
    members: int = Field(5, ge=1, description="models of an ensemble, each with a training set of its own")
    bootstrap: Literal["resample", "permute"] = Field(
        "resample",
        description="a member's training set: as many rows drawn with replacement, or all rows in an order of its own",
    )
    target: Literal["delta", "next_obs"] = Field(
        "delta", description="what the model tells: next_obs - obs, or next_obs"
    )
    normalize: bool = Field(
        True, description="bring obs, numeric actions, targets and rewards to mean 0 and deviation 1"
    )
    storage: Literal["ram", "disk"] = Field(
        "ram", description="where the rows are: in RAM, or in a memory-mapped file that may be larger than it"
    )

    @model_validator(mode="after")
    def _patience_has_a_measure(self) -> Self:
        if self.patience is not None and not self.validation:
            raise ValueError(
                "patience waits for a better validation loss, and validation 0 leaves no rows to measure it: drop "
                "patience, or let a share be for validation"
            )
        return self


@dataclass(slots=True)
class ModelBatch:
    """Rows for a model, float32 tensors; normalised where the settings say so."""

    obs: Tensor  # (B, D)  flat; classes one-hot
    action: Tensor  # (B, A)  flat; classes one-hot
    target: Tensor  # (B, D)  next_obs - obs, or next_obs
    reward: Tensor  # (B,)
    terminated: Tensor  # (B,)  0 or 1
    ids: Tensor  # (B,)  int64 write ids


class ModelBasedReplay(Memory):
    """All rows in minibatches, epoch after epoch; `sample` draws transitions to start imagined episodes from."""

    Settings = ModelBasedReplaySettings
    on_policy = False
    gives = "rows for a model"
    parts_of_state = (*Memory.parts_of_state, "split", "scales", "fitted_at")
    settings: ModelBasedReplaySettings

    def __init__(self, settings: Any, observation_space: spaces.Space, action_space: spaces.Space, **keywords: Any):
        self.encode_obs, self.encode_action = Encoding(observation_space), Encoding(action_space)
        if mistakes := _check_target(settings, self.encode_obs):
            raise InvalidMemorySpec(mistakes)
        self._split_seed = seeds.derive(keywords.get("seed", 0), "split")
        super().__init__(settings, observation_space, action_space, **keywords)

    @classmethod
    def check(cls, settings: Any, observation_space: spaces.Space, *goal_functions: Callable | None) -> list[Mistake]:
        mistakes = super().check(settings, observation_space, *goal_functions)
        return mistakes or _check_target(settings, Encoding(observation_space))

    def make_ring(self, layout: Layout) -> Ring:
        disk = Disk(self.path) if self.settings.storage == "disk" else None
        rows = self.settings.max_size or ROWS_AT_FIRST
        return Ring(layout, max(1, rows // self.num_envs), self.num_envs, not self.settings.max_size, disk)

    def make_trigger(self) -> EveryFrames:
        return EveryFrames(self.ring, self.training_frequency, self.training_start_step, 1)

    def _use_layout(self, layout: Layout) -> None:
        super()._use_layout(layout)
        self._as_stored = Transitions(self.ring, self.gamma, as_stored=True)
        self._split = Split(self.ring, self.settings.validation, self.settings.split_by == "episode", self._split_seed)
        self.obs_scale, self.target_scale = Normalizer(self.encode_obs.width), Normalizer(self.encode_obs.width)
        self.action_scale = Normalizer(self.encode_action.width, self.encode_action.classes)
        self.reward_scale = Normalizer(1)
        self._fitted_at = -1  # rows seen when the normalisers were last fitted

    def _write(self, *args: Any, **keywords: Any) -> None:
        super()._write(*args, **keywords)
        self._split.decide()

    def _taken_back(self, ids: np.ndarray) -> None:
        super()._taken_back(ids)
        self._split.taken_back()
        self._fitted_at = -1

    def resize(self, max_size: int) -> None:
        """Hold the newest so many rows from now on, also where all were held."""
        super().resize(max_size)
        self.ring.grows = False

    def reset(self) -> None:
        super().reset()
        self._split.reset()
        self._fitted_at = -1

    # learn

    def ids_of(self, part: str) -> np.ndarray:
        """Ids of the rows for "train" or "validation", env by env in time order."""
        if part not in ("train", "validation"):
            raise InvalidMemorySpec(f"batches: part '{part}' was asked for; there are 'train' and 'validation'")
        ids = self.ring.ids()
        return ids[self._split.validates(ids) == (part == "validation")]

    def batches(  # type: ignore[override]
        self,
        batch_size: int | None = None,
        epochs: int = 1,
        part: str = "train",
        member: int | None = None,
    ) -> Iterator[ModelBatch]:
        """Minibatches of one part of the rows; the last one of an epoch may be smaller, none is empty.

        Training rows come in a fresh order each epoch: all of them, or the training set of an ensemble's `member`,
        which stays the same until rows are added. Validation rows come in time order, the same for every member.
        """
        count = self.settings.batch_size if batch_size is None else whole("batches: batch_size", batch_size)
        ids = self.ids_of(part)
        if not ids.size:
            raise EmptyMemory(f"batches: none of the {self.size} rows held are for {part}; at least 1 is needed")
        if member is not None and not 0 <= member < self.settings.members:
            raise InvalidMemorySpec(
                f"batches: member {member} was asked for; there are 0 to {self.settings.members - 1}"
            )
        self.fit_scales()
        return self._minibatches(ids, count, epochs, part == "train", member)

    def _minibatches(
        self, ids: np.ndarray, batch_size: int, epochs: int, shuffled: bool, member: int | None
    ) -> Iterator[ModelBatch]:
        rng = self.rng
        if shuffled and member is not None:
            drawing = seeds.generator(self._split.seed, "member", member, self.seen)
            if self.settings.bootstrap == "resample":
                ids = ids[drawing.integers(ids.size, size=ids.size)]
            else:
                rng = drawing
        for _ in range(epochs):
            order = ids[rng.permutation(ids.size)] if shuffled else ids
            for start in range(0, ids.size, batch_size):
                yield self.read(order[start : start + batch_size])

    def read(self, ids: np.ndarray) -> ModelBatch:
        """The rows with these ids as a model takes them."""
        obs, action, target, reward = self._raw(ids)
        if self.settings.normalize:
            obs, target = self.obs_scale.apply(obs), self.target_scale.apply(target)
            action, reward = self.action_scale.apply(action), self.reward_scale.apply(reward)
        links = self.ring.links[self.ring.rows_of(ids), self.ring.link_word]
        terminated = torch.from_numpy((links & TERMINATED != 0).astype(np.float32))
        return ModelBatch(obs, action, target, reward, terminated, torch.from_numpy(ids))

    def _raw(self, ids: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        batch = self._as_stored.read(ids)
        obs, target = self.encode_obs.exact(batch.obs), self.encode_obs.exact(batch.next_obs)
        if self.settings.target == "delta":
            target = target - obs
        return obs.float(), self.encode_action(batch.action), target.float(), batch.reward

    def fit_scales(self) -> None:
        """Fit the normalisers to the training rows, if rows were added since they last were."""
        if not self.settings.normalize or self._fitted_at == self.seen:
            return
        ids = self.ids_of("train")

        def columns(place: int) -> Iterator[Tensor]:
            chunks = (ids[start : start + CHUNK] for start in range(0, ids.size, CHUNK))
            return (self._raw(chunk)[place].view(len(chunk), -1) for chunk in chunks)

        size = self.obs_scale.fit(columns(0))
        if not self.encode_action.classes.all():
            self.action_scale.fit(columns(1))
        rounding = self.encode_obs.rounding * size if self.settings.target == "delta" else 0.0
        self.target_scale.fit(columns(2), rounding)
        self.reward_scale.fit(columns(3))
        self._fitted_at = self.seen

    def _scales(self) -> dict[str, Normalizer]:
        return {name: getattr(self, f"{name}_scale") for name in ("obs", "action", "target", "reward")}

    def predicted(self, obs: Tensor, target: Tensor) -> Tensor:
        """(B, D) the next observation that a model's answer for these normalised observations stands for."""
        if self.settings.normalize:
            obs, target = self.obs_scale.undo(obs), self.target_scale.undo(target)
        return obs + target if self.settings.target == "delta" else target

    def early_stop(self) -> EarlyStop:
        """To fit a model with: `while stop.goes_on: …; stop.tell(validation_loss)`."""
        return EarlyStop(self.settings.epochs, self.settings.patience)

    # look, save

    def describe(self) -> dict:
        rows = {part: int(self.ids_of(part).size) for part in ("train", "validation")}
        return {**super().describe(), "rows": rows}

    def state_dict(self) -> dict:
        return {
            **super().state_dict(),
            "split": self._split.state_dict(),
            "scales": {name: scale.state_dict() for name, scale in self._scales().items()},
            "fitted_at": self._fitted_at,
        }

    def _take_on(self, tree: dict) -> None:
        super()._take_on(tree)
        self._split.load_state_dict(tree["split"])
        for name, scale in self._scales().items():
            scale.load_state_dict(tree["scales"][name])
        self._fitted_at = int(tree["fitted_at"])


class EarlyStop:
    """Counts the epochs of one fit: it ends after `epochs`, or after `patience` in a row without a better loss."""

    def __init__(self, epochs: int, patience: int | None):
        self.epochs = epochs
        self.patience = patience
        self.epoch = 0  # epochs told of
        self.best = math.inf
        self.best_epoch = 0

    @property
    def goes_on(self) -> bool:
        waited = self.epoch - self.best_epoch
        return self.epoch < self.epochs and (self.patience is None or waited < self.patience)

    def tell(self, loss: float) -> bool:
        """After an epoch, its validation loss; whether it is the best so far, whose parameters to keep. NaN is not."""
        self.epoch += 1
        if loss < self.best:
            self.best, self.best_epoch = float(loss), self.epoch
        return self.best_epoch == self.epoch


def _check_target(settings: ModelBasedReplaySettings, obs: Encoding) -> list[Mistake]:
    if settings.target != "delta" or obs.numeric:
        return []
    problem = "the difference of two classes means nothing, and the observation has Discrete parts; use 'next_obs'"
    return [Mistake("target", problem)]
