"""One seed in, many independent streams out, each found by its name: adding a stream never disturbs another."""

from __future__ import annotations

import zlib

import numpy as np


def _entropy(part: int | str) -> int:
    return part if isinstance(part, int) else zlib.crc32(part.encode())


def derive(seed: int, *path: int | str) -> int:
    """A seed in [0, 2^31) for the place that `path` names: derive(7, "env", 3, "episode", 12)."""
    sequence = np.random.SeedSequence([seed, *map(_entropy, path)])
    return int(sequence.generate_state(1)[0]) & 0x7FFFFFFF


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator for the place that `path` names."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *map(_entropy, path)])))


def generator_state(rng: np.random.Generator) -> dict:
    """The generator's state as JSON values."""
    return rng.bit_generator.state


def set_generator_state(rng: np.random.Generator, state: dict) -> None:
    rng.bit_generator.state = state
