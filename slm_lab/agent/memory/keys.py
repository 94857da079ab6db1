"""The base of the memories' settings: a key that belongs to another memory is refused with a word of that one."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import model_validator

from slm_lab.errors import Mistake, SpecError
from slm_lab.spec.settings import Settings

KEYS = {
    "PrioritizedReplay": ("alpha", "epsilon", "beta", "beta_frames", "weight_max", "prioritized"),
    "SequenceReplay": ("sequence_length", "burn_in", "stride", "pad", "store_hidden"),
    "NStepReplay": ("workers", "fetch_every", "save_snapshot", "sample_by"),
    "HindsightReplay": (
        "strategy", "goals_per_step", "achieved", "desired", "reward_fn", "done_fn", "distance_threshold",
    ),
    "ModelBasedReplay": (
        "epochs", "patience", "validation", "split_by", "members", "bootstrap", "target", "normalize",
    ),
    "OnPolicyCrossEntropy": ("cross_entropy",),
}  # fmt: skip
WHAT_FOR = {
    "PrioritizedReplay": "to draw rows by priority, over n_step steps if need be",
    "SequenceReplay": "to draw windows of rows",
    "NStepReplay": "to gather batches in other processes, or draw by episode",
    "HindsightReplay": "to replace goals",
    "ModelBasedReplay": "to learn a model of the env",
    "OnPolicyCrossEntropy": "to learn from the best episodes alone",
}
OWNERS = {key: owner for owner, keys in KEYS.items() for key in keys}


class MemorySettings(Settings):
    """Settings of a memory. `beside` tells of keys of others why they make no sense here."""

    beside: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _keys_are_its_own(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = cls.model_fields["name"].default
        others = [key for key in given if key not in cls.model_fields and OWNERS.get(key, name) != name]
        if others:
            raise SpecError([Mistake(key, f"no such key; {cls._where(key)}") for key in others])
        return given

    @classmethod
    def _where(cls, key: str) -> str:
        return cls.beside.get(key) or f"use {OWNERS[key]} {WHAT_FOR[OWNERS[key]]}"
