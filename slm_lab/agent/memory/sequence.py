"""Windows of consecutive rows, for recurrent nets."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from slm_lab.agent.memory.presets import OptionallyPrioritized, OptionallyPrioritizedSettings
from slm_lab.agent.memory.window import HIDDEN, Windows


class SequenceReplaySettings(OptionallyPrioritizedSettings):
    name: Literal["SequenceReplay"] = "SequenceReplay"
    sequence_length: int = Field(32, ge=1, description="rows of a window to learn from")
    burn_in: int = Field(
        0, ge=0, description="rows before those that only warm up a net's state; fewer at an episode's beginning"
    )
    stride: int = Field(
        1, ge=1, description="rows between the starts of windows; each episode's first row is one besides"
    )
    pad: bool = Field(
        True, description="a window that meets its episode's end is padded; false: it begins earlier, if it can"
    )
    store_hidden: bool = Field(
        False, description="rows carry an extra 'hidden', the net's state before them; windows have that of their first"
    )

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        if self.stride > self.sequence_length:
            raise ValueError(
                f"stride {self.stride} is more than sequence_length {self.sequence_length}: rows between two windows "
                "would never be learned from"
            )
        if self.sequence_length + self.burn_in > self.max_size:
            raise ValueError(
                f"sequence_length {self.sequence_length} and burn_in {self.burn_in} are more than max_size "
                f"{self.max_size}: lower them or hold more"
            )
        return self


class SequenceReplay(OptionallyPrioritized):
    """Windows of rows drawn uniformly or by priority: tensors are (B, T, ...) with a mask.

    Priorities take one error for each window, such as 0.9 max + 0.1 mean over its rows (R2D2, Kapturowski 2019).
    """

    Settings = SequenceReplaySettings
    gives = "sequences"
    settings: SequenceReplaySettings

    def make_windows(self) -> Windows:
        keys = ("burn_in", "stride", "pad", "store_hidden")
        return Windows(self.view, **{key: getattr(self.settings, key) for key in keys})

    def needed_extras(self) -> tuple[str, ...]:
        return (HIDDEN,) if self.settings.store_hidden else ()
