"""One seed in, many independent streams out, each found by its name: adding a stream never disturbs another."""

from __future__ import annotations

import operator
from hashlib import blake2b

import numpy as np


def _entropy(seed: int, path: tuple[int | str, ...]) -> int:
    """128 bits for the place that `path` names; a hash, because SeedSequence takes [7] and [7, 0] for the same."""
    place = (operator.index(seed), *(part if isinstance(part, str) else operator.index(part) for part in path))
    return int.from_bytes(blake2b(repr(place).encode(), digest_size=16).digest(), "little")


def derive(seed: int, *path: int | str) -> int:
    """A seed in [0, 2^31) for the place that `path` names: derive(7, "env", 3, "episode", 12)."""
    return _entropy(seed, path) & 0x7FFFFFFF


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator for the place that `path` names."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, path)))


def generator_state(rng: np.random.Generator) -> dict:
    """The generator's state as JSON values."""
    return dict(rng.bit_generator.state)


def set_generator_state(rng: np.random.Generator, state: dict) -> None:
    rng.bit_generator.state = state
