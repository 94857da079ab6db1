"""Frames per second of stepping and acting: this lab, gymnasium by itself, and Stable-Baselines3's vector envs.

    python benchmark/env.py [--env CartPole-v1 …] [--num-envs 8] [--seconds 3] [--rounds 5]

Acting is a net of two layers of 64 in numpy on the observations as they come (for images, on every 64th pixel, so that
the env counts), and an action drawn from what it says; all use the same. Each env is stepped from one thread, in turns:
the sync and the async vector env of the lab, bare gymnasium (a loop over envs, reset as they end, their observations
stacked), and the VecEnvs of Stable-Baselines3, if that is installed. Printed are medians over the rounds, and how much
longer a frame takes than with bare gymnasium: by the clock, and for those that are one process in the time that it was
on a core, which other programs disturb less. All have the same wrappers: Atari's are gymnasium's.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from slm_lab.env import VectorEnv, make_env
from slm_lab.env.arrays import make_scatter, policy_space
from slm_lab.errors import SpecError
from slm_lab.spec.schema import EnvSpec

ENVS = ("CartPole-v1", "Hopper-v5", "HalfCheetah-v5", "PongNoFrameskip-v4")
STEPS_BETWEEN_LOOKS = 16
ONE_PROCESS = ("slm-lab sync", "SB3 DummyVecEnv")  # beside bare gymnasium


class Net:
    """(N, ...) actions of the policy's space for (N, ...) observations."""

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space):
        self.rng = rng = np.random.default_rng(0)
        self.every = 64 if len(observation_space.shape) > 1 else 1
        width = -(-int(np.prod(observation_space.shape)) // self.every)
        self.discrete = isinstance(action_space, spaces.Discrete)
        out = int(action_space.n) if self.discrete else int(np.prod(action_space.shape))
        sizes = [(width, 64), (64, 64), (64, out)]
        self.weights = [rng.normal(0, 0.1, size).astype(np.float32) for size in sizes]

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        row = obs.reshape(len(obs), -1)[:, :: self.every].astype(np.float32)
        for weight in self.weights[:-1]:
            row = np.tanh(row @ weight)
        row = row @ self.weights[-1]
        noise = self.rng.standard_normal(row.shape, dtype=np.float32)
        return (row + noise).argmax(1) if self.discrete else row + noise


def lab(spec: EnvSpec, way: str) -> Callable[[], None]:
    env = VectorEnv(spec.model_copy(update={"vectorization": way}), seed=0)
    net = Net(env.observation_space, env.action_space)
    obs = env.reset()

    def step() -> None:
        nonlocal obs
        obs = env.step(net(obs)).obs

    return step


def bare(spec: EnvSpec) -> Callable[[], None]:
    envs = [make_env(spec) for _ in range(spec.num_envs)]  # gymnasium's own, wrapped by gymnasium's wrappers
    net = Net(envs[0].observation_space, policy_space(envs[0].action_space))
    scatter = make_scatter(envs[0].action_space)
    rows = [env.reset(seed=index)[0] for index, env in enumerate(envs)]
    goes_on: dict[str, Any] = {"goes_on": True}

    def step() -> None:
        for index, (env, action) in enumerate(zip(envs, scatter(net(np.stack(rows))), strict=True)):
            rows[index], _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                rows[index], _ = env.reset(options=goes_on if "goes_on" in info else None)

    return step


def stable_baselines3(spec: EnvSpec, way: str) -> Callable[[], None]:
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    kind = DummyVecEnv if way == "Dummy" else SubprocVecEnv
    envs = kind([lambda: make_env(spec)] * spec.num_envs)
    single = make_env(spec)
    net = Net(single.observation_space, policy_space(single.action_space))
    scatter = make_scatter(single.action_space)
    obs = envs.reset()

    def step() -> None:
        nonlocal obs
        obs = envs.step(np.array(scatter(net(obs))))[0]

    return step


def rate(step: Callable[[], None], num_envs: int, seconds: float) -> tuple[float, float]:
    """Frames per second, and frames per second of this process's time on a core."""
    count, began, spent = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - began) < seconds:
        for _ in range(STEPS_BETWEEN_LOOKS):
            step()
        count += STEPS_BETWEEN_LOOKS
    return count * num_envs / passed, count * num_envs / (time.process_time() - spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", nargs="+", default=ENVS)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[8])
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    options = parser.parse_args()
    for name in options.env:
        for num_envs in options.num_envs:
            spec = EnvSpec(name=name, num_envs=num_envs, max_frame=1)
            compare(spec, options.rounds, options.seconds)


def compare(spec: EnvSpec, rounds: int, seconds: float) -> None:
    ways: dict[str, Callable[[], None]] = {"gymnasium": bare(spec), "slm-lab sync": lab(spec, "sync")}
    if spec.num_envs > 1:
        ways["slm-lab async"] = lab(spec, "async")
    with contextlib.suppress(SpecError):
        ways["slm-lab native"] = lab(spec, "native")
    try:
        ways["SB3 DummyVecEnv"] = stable_baselines3(spec, "Dummy")
        ways["SB3 SubprocVecEnv"] = stable_baselines3(spec, "Subproc")
    except ImportError:
        print("Stable-Baselines3 is not installed: left out")
    rates: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, step in ways.items():
            rates[way].append(rate(step, spec.num_envs, seconds))
    base, base_of_core = medians(rates["gymnasium"])
    for way, found in rates.items():
        middle, of_core = medians(found)
        longer = f"{100 * (base / middle - 1):+6.1f}%"
        if way in ONE_PROCESS:
            longer += f"  {100 * (base_of_core / of_core - 1):+6.1f}% of a core's time"
        print(f"{spec.name:20} {spec.num_envs:3} envs  {way:18} {middle:9,.0f} frames/s  {longer}", flush=True)


def medians(rates: list[tuple[float, float]]) -> tuple[float, float]:
    by_clock, of_core = zip(*rates, strict=True)
    return statistics.median(by_clock), statistics.median(of_core)


if __name__ == "__main__":
    main()
