"""The memories that a spec can name: each a choice of ring, sampler, view and trigger."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from slm_lab.agent.memory.disk import Disk
from slm_lab.agent.memory.fields import Layout
from slm_lab.agent.memory.keys import MemorySettings
from slm_lab.agent.memory.memory import Memory
from slm_lab.agent.memory.ring import Ring
from slm_lab.agent.memory.sampler import Prioritized, Uniform
from slm_lab.agent.memory.trigger import EveryEpisodes, EveryFrames, EverySteps


class ReplaySettings(MemorySettings):
    name: Literal["Replay"] = "Replay"
    max_size: int = Field(
        100_000, ge=1, description="rows held; the oldest give way. Rounded down to a multiple of the envs"
    )
    batch_size: int = Field(32, ge=1, description="rows a sample; drawn repeatedly where fewer are held")
    use_cer: bool = Field(
        False, description="combined experience replay: the newest row of each env is in every sample"
    )
    n_step: int = Field(1, ge=1, description="steps that a transition spans at most; shorter at an episode's end")
    frame_stack: int = Field(
        1, ge=1, description="frames that the env stacks along the first axis of an observation; each is held once"
    )
    storage: Literal["ram", "disk"] = Field(
        "ram", description="where the rows are: in RAM, or in a memory-mapped file that may be larger than it"
    )

    @model_validator(mode="after")
    def _batch_fits(self) -> Self:
        if self.batch_size > self.max_size:
            raise ValueError(
                f"batch_size {self.batch_size} is more than max_size {self.max_size}: lower it or hold more"
            )
        return self


class Replay(Memory):
    """Rows of all past policies, drawn uniformly (Lin 1992)."""

    Settings = ReplaySettings
    on_policy = False
    settings: ReplaySettings

    def make_ring(self, layout: Layout) -> Ring:
        disk = Disk(self.path) if self.settings.storage == "disk" else None
        return Ring(layout, max(1, self.settings.max_size // self.num_envs), self.num_envs, disk=disk)

    def make_sampler(self) -> Uniform | Prioritized:
        return Uniform(self.ring, self.settings.use_cer)

    def make_trigger(self) -> EveryFrames:
        needed = min(self.settings.batch_size, self.ring.max_size)
        return EveryFrames(self.ring, self.training_frequency, self.training_start_step, needed)


class PrioritizedReplaySettings(ReplaySettings):
    name: Literal["PrioritizedReplay"] = "PrioritizedReplay"
    alpha: float = Field(0.6, ge=0, le=1, description="how much errors decide what is drawn; 0: nothing, uniform")
    epsilon: float = Field(1e-4, gt=0, description="added to every absolute error, so that none makes a row vanish")
    beta: float = Field(
        0.4, ge=0, le=1, description="how much the weights undo the bias of the draw, at the start; 1: all"
    )
    beta_frames: int | None = Field(
        None, ge=1, description="frames over which beta rises linearly to 1; null: constant"
    )
    weight_max: Literal["batch", "buffer"] = Field(
        "batch", description="the largest weight is 1 among the rows of a batch, or among all rows held"
    )


class PrioritizedReplay(Replay):
    """Rows drawn in proportion to their last error (Schaul 2016)."""

    Settings = PrioritizedReplaySettings
    settings: PrioritizedReplaySettings

    def make_sampler(self) -> Uniform | Prioritized:
        keys = ("alpha", "epsilon", "beta", "beta_frames", "weight_max", "use_cer")
        return Prioritized(self.ring, **{key: getattr(self.settings, key) for key in keys})


class OptionallyPrioritizedSettings(PrioritizedReplaySettings):
    """For presets whose main matter is another: priorities on demand."""

    name: Literal["OptionallyPrioritized"] = "OptionallyPrioritized"
    prioritized: bool = Field(False, description="draw rows in proportion to their last error, as PrioritizedReplay")

    @model_validator(mode="after")
    def _keys_have_a_meaning(self) -> Self:
        for key in PrioritizedReplaySettings.model_fields.keys() - ReplaySettings.model_fields.keys():
            changed = (
                getattr(self, key) != PrioritizedReplaySettings.model_fields[key].default
            )  # a run's spec has all keys
            if changed and not self.prioritized:
                raise ValueError(
                    f"{key} means nothing where rows are drawn uniformly: drop it, or set prioritized: true"
                )
        return self


class OptionallyPrioritized(PrioritizedReplay):
    """Rows drawn uniformly, or by priority."""

    Settings = OptionallyPrioritizedSettings
    settings: OptionallyPrioritizedSettings

    def make_sampler(self) -> Uniform | Prioritized:
        return super().make_sampler() if self.settings.prioritized else Uniform(self.ring, self.settings.use_cer)


class OnPolicyReplaySettings(MemorySettings):
    name: Literal["OnPolicyReplay"] = "OnPolicyReplay"
    frame_stack: int = Field(
        1, ge=1, description="frames that the env stacks along the first axis of an observation; each is held once"
    )


class OnPolicyBatchReplaySettings(OnPolicyReplaySettings):
    name: Literal["OnPolicyBatchReplay"] = "OnPolicyBatchReplay"


class OnPolicyBatchReplay(Memory):
    """The rows of `training_frequency` vector steps, to learn from once. Grows as needed."""

    Settings = OnPolicyBatchReplaySettings
    on_policy = True

    def make_ring(self, layout: Layout) -> Ring:
        return Ring(layout, self._slots_at_first(), self.num_envs, grows=True)

    def _slots_at_first(self) -> int:
        return self.training_frequency

    def make_trigger(self) -> EverySteps | EveryEpisodes:
        return EverySteps(self.ring, self.training_frequency)


class OnPolicyReplay(OnPolicyBatchReplay):
    """The rows of `training_frequency` complete episodes; rows of an unfinished one stay for the next time, so that
    long episodes count as much as short ones."""

    Settings = OnPolicyReplaySettings

    def _slots_at_first(self) -> int:
        return 128

    def make_trigger(self) -> EveryEpisodes:
        return EveryEpisodes(self.ring, self.training_frequency)

    def _until(self) -> np.ndarray:
        return self.ring.settled()
