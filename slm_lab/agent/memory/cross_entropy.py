"""On-policy rows of the best episodes alone (the cross-entropy method, Rubinstein 1999)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from slm_lab.agent.memory.presets import OnPolicyReplay, OnPolicyReplaySettings
from slm_lab.agent.memory.ring import ENDED


class OnPolicyCrossEntropySettings(OnPolicyReplaySettings):
    name: Literal["OnPolicyCrossEntropy"] = "OnPolicyCrossEntropy"
    cross_entropy: float = Field(
        1.0, gt=0, le=1, description="share of the episodes to learn from, the best by return; rounded up"
    )


class OnPolicyCrossEntropy(OnPolicyReplay):
    """The rows of the best of `training_frequency` complete episodes; those of the others are forgotten with them."""

    Settings = OnPolicyCrossEntropySettings
    settings: OnPolicyCrossEntropySettings

    def _to_learn_from(self) -> np.ndarray:
        ids = super()._to_learn_from()
        links = self.ring.links[self.ring.rows_of(ids), self.ring.link_word]
        rewards = self.ring.floats[self.ring.rows_of(ids), self.ring.reward_word].astype(np.float64)
        lasts = np.flatnonzero(links)
        pieces = np.split(np.arange(ids.size), lasts + 1)[: lasts.size]
        whole = [piece for piece in pieces if links[piece[-1]] & ENDED]  # the rest of a piece that was cut is unknown
        kept = math.ceil(self.settings.cross_entropy * len(whole) - 1e-9)
        best = np.argsort([-rewards[piece].sum() for piece in whole], kind="stable")[:kept]
        return ids[np.concatenate([whole[place] for place in sorted(best)])] if kept else ids[:0]
