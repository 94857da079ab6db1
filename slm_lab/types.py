"""The records that flow between the parts of the lab.

Axis letters mean the same everywhere: N parallel envs, B batch rows, T steps of a window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

# An observation or action: an array with a leading axis, or a dict of such arrays for Dict and Tuple spaces.
Arrays = Any


class Lost(NamedTuple):
    """An episode that came to no end of its own."""

    env: int  # which sub-env
    reason: str


class Step(NamedTuple):
    """What a vector env returns for all its sub-envs at once."""

    obs: Arrays  # (N, ...)  to act on next; after an episode's end, the first of the next episode
    next_obs: Arrays  # (N, ...)  what the action led to, the final observation included
    reward: np.ndarray  # (N,)  float64
    terminated: np.ndarray  # (N,)  bool; the episode ended in a terminal state: do not bootstrap
    truncated: np.ndarray  # (N,)  bool; the episode was cut off: bootstrap from next_obs
    score: np.ndarray | None = None  # (N,)  float64; what the env paid; None: the reward, which is not scaled
    goes_on: np.ndarray | None = None  # (N,)  bool; what ended is no more than a life of a game; None: nowhere
    lost: tuple[Lost, ...] = ()  # episodes that ended because their env failed; these rows tell of no step


@dataclass(slots=True)
class Batch:
    """What a memory hands to an algorithm: torch tensors with a leading B axis (dicts of them where a space has parts).

    The learning target is ``reward + discount * V(next_obs)`` for every memory, 1-step or n-step.
    """

    obs: Any  # (B, ...)
    action: Any  # (B, ...)
    reward: Any  # (B,)  summed over the horizon, discounted
    next_obs: Any  # (B, ...)
    discount: Any  # (B,)  gamma^k * (1 - terminated)
    steps: Any = None  # (B,)  k, the steps taken; shorter than n at an episode's end
    end: Any = None  # (B,)  bool; the following row does not continue this one (only from on-policy memories)
    weight: Any = None  # (B,)  importance-sampling weights, ones where rows are drawn uniformly
    ids: Any = None  # (B,)  int64 write ids, for update_priorities
    mask: Any = None  # (B, L)  which rows of a window are real
    extras: dict[str, Any] = field(default_factory=dict)
