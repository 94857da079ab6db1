"""Values that change as a run goes on: exploration, entropy and clipping coefficients as functions of the frame."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from slm_lab.spec.settings import Settings


class ScheduleSpec(Settings):
    """From start_val at start_step to end_val at end_step, both in frames."""

    name: Literal["no_decay", "linear_decay", "rate_decay", "periodic_decay"] = Field(
        "no_decay", description="the way from start_val to end_val; no_decay stays at start_val"
    )
    start_val: float = Field(description="value up to start_step")
    end_val: float | None = Field(None, description="value to arrive at, above or below start_val; 0 means 0")
    start_step: int = Field(0, ge=0, description="frame at which the change begins")
    end_step: int | None = Field(None, ge=0, description="frame at which the change is done")
    decay_rate: float = Field(0.9, gt=0, lt=1, description="rate_decay: factor of each decay")
    frequency: float | None = Field(
        None,
        gt=0,
        description="rate_decay: decays from start_step to end_step (20); periodic_decay: radians of it (60)",
    )

    @model_validator(mode="after")
    def _complete(self) -> ScheduleSpec:
        if self.name == "no_decay":
            return self
        if self.end_val is None or self.end_step is None:
            raise ValueError(f"{self.name} needs end_val and end_step")
        if self.end_step <= self.start_step:
            raise ValueError(f"end_step {self.end_step} must lie after start_step {self.start_step}")
        if self.name == "rate_decay" and min(self.start_val, self.end_val) < 0:
            raise ValueError("rate_decay multiplies: its values cannot be negative")
        if self.name == "rate_decay" and self.start_val == 0 != self.end_val:
            raise ValueError("rate_decay multiplies: it cannot leave a start_val of 0")
        return self

    def must_stay(self, low: float, high: float) -> None:
        """Refuses values out of this range, for a model that knows what they are used for."""
        values = [self.start_val] if self.end_val is None else [self.start_val, self.end_val]
        outside = [value for value in values if not low <= value <= high]
        if outside:
            raise ValueError(f"its value {outside[0]:g} is outside of {low:g} to {high:g}")

    def at(self, frame: int) -> float:
        """The value at this frame."""
        if self.end_val is None or self.end_step is None or self.name == "no_decay" or frame <= self.start_step:
            return self.start_val
        if frame >= self.end_step:
            return self.end_val
        part = (frame - self.start_step) / (self.end_step - self.start_step)
        return SHAPES[self.name](self, self.end_val, part)


def constant(value: float) -> ScheduleSpec:
    return ScheduleSpec(name="no_decay", start_val=value)


def _linear(spec: ScheduleSpec, end_val: float, part: float) -> float:
    return spec.start_val + part * (end_val - spec.start_val)


def _rate(spec: ScheduleSpec, end_val: float, part: float) -> float:
    """Multiplied by decay_rate `frequency` times on the way, but not beyond end_val."""
    factor = spec.decay_rate ** (part * (spec.frequency or 20.0))
    if end_val <= spec.start_val:
        return max(spec.start_val * factor, end_val)
    return min(spec.start_val / factor, end_val) if factor > 0 else end_val


def _periodic(spec: ScheduleSpec, end_val: float, part: float) -> float:
    """A cosine between the falling line and end_val, so that exploration comes back in ever smaller waves."""
    wave = 0.5 * (1 + math.cos(part * (spec.frequency or 60.0)))
    return end_val + (spec.start_val - end_val) * wave * (1 - part)


SHAPES = {"linear_decay": _linear, "rate_decay": _rate, "periodic_decay": _periodic}
