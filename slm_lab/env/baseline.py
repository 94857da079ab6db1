"""What acting at random is worth in an env: the return that any learner has to leave behind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from slm_lab.env.arrays import make_gather
from slm_lab.env.make import FILE, today
from slm_lab.env.vector import STEPS_WITHOUT_LIMIT, VectorEnv
from slm_lab.errors import RunError
from slm_lab.lib.files import read_json, write_json
from slm_lab.spec.schema import EnvSpec

EPISODES = 100
SHIPPED = Path(__file__).with_name("random_baselines.json")  # of the envs of the specs that ship
COPIES = 4


@dataclass(frozen=True)
class Baseline:
    """Over whole episodes, in the env's own rewards."""

    mean: float
    std: float
    episodes: int


def user_cache() -> Path:
    """Where what is measured on this machine is kept; never in the source tree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slm_lab" / "random_baselines.json"


def known_baseline(spec: EnvSpec) -> float | None:
    """The random policy's mean return, if it ships or was measured here; None for an env that the spec changes."""
    if spec.kwargs or spec.wrappers or spec.max_t is not None or FILE.fullmatch(spec.name):
        return None
    name = today(spec)[0].name
    found = _read(SHIPPED).get(name) or _read(user_cache()).get(name)
    mean = found.get("mean") if isinstance(found, dict) else None
    return float(mean) if isinstance(mean, int | float) else None


def random_baseline(name: str, cache: Path | None = None, episodes: int = EPISODES) -> tuple[Baseline, str]:
    """The random policy's return, and where it is from: what ships, the file `cache`, or measured now and kept there.

    A class in a file of the user's own, which may be another tomorrow, is measured each time. Raises SpecError where
    there is no such env.
    """
    if FILE.fullmatch(name):
        return measure(name, episodes), "measured"
    cache = cache or user_cache()
    name = today(EnvSpec(name=name, max_frame=1))[0].name
    for file, place in ((SHIPPED, "shipped"), (cache, "cached")):
        found = _read(file).get(name)
        if found is not None and found["episodes"] >= episodes:
            return Baseline(**found), place
    measured = measure(name, episodes)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        keep(cache, {name: measured})
    except (OSError, RunError) as problem:
        return measured, f"measured; it could not be kept: {problem}"
    return measured, "measured"


def keep(file: Path, measured: dict[str, Baseline]) -> None:
    """Add them to the file."""
    known = _read(file) | {name: asdict(baseline) for name, baseline in measured.items()}
    write_json(file, dict(sorted(known.items())))


def measure(name: str, episodes: int = EPISODES, seed: int = 0) -> Baseline:
    """Play so many episodes with actions drawn uniformly from the action space (where it has no bounds: normally)."""
    copies = min(COPIES, episodes)
    env = VectorEnv(EnvSpec(name=name, num_envs=copies, max_frame=1), seed, stream="random", training=False)
    try:
        return _play(env, [episodes // copies + (index < episodes % copies) for index in range(copies)], seed)
    finally:
        env.close()


def _play(env: VectorEnv, left: Iterable[int], seed: int) -> Baseline:
    """`left`: episodes that each sub-env is to play."""
    remaining = np.array(left)
    returns: list[float] = []
    total, length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    env.action_space.seed(seed)
    gather = make_gather(env.action_space)
    env.reset()
    while remaining.any():
        step = env.step(gather([env.action_space.sample() for _ in range(env.num_envs)]))
        total, length = total + step.reward, length + 1
        over = step.terminated | step.truncated
        if env.time_limit is None:
            over = over | (length % STEPS_WITHOUT_LIMIT == 0)
        for index in np.flatnonzero(over):
            if remaining[index]:
                returns.append(float(total[index]))
                remaining[index] -= 1
            total[index] = length[index] = 0
    return Baseline(round(float(np.mean(returns)), 4), round(float(np.std(returns)), 4), len(returns))


def _read(file: Path) -> dict:
    """What the file holds; nothing where it is damaged, so that what it held is measured anew."""
    try:
        return read_json(file) if file.exists() else {}
    except (OSError, RunError):
        return {}
