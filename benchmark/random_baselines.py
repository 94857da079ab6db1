"""Measures the random policy's return in the envs of the specs that ship, and writes it into the package.

python benchmark/random_baselines.py [ENV …]
"""

from __future__ import annotations

import sys

from slm_lab.env import baseline

CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
OWN = ("BitFlipping-v0", "MaskedCartPole-v1")
BOX2D = ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3")
MUJOCO = tuple(
    f"{body}-v5"
    for body in (
        *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum"),
        *("InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d"),
    )
)
ATARI = ("ALE/Pong-v5", "PongNoFrameskip-v4")

for name in sys.argv[1:] or (*CLASSIC, *OWN, *BOX2D, *MUJOCO, *ATARI):
    measured = baseline.measure(name)
    baseline.keep(baseline.SHIPPED, {name: measured})
    print(f"{name:28} {measured.mean:12.2f} ± {measured.std:.2f}")
