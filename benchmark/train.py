"""Frames per second of training, this lab against other libraries: same env, net, batch and cadence, one thread each.

    python benchmark/train.py [--frames 6000] [--rounds 5] [--eager]

The libraries take turns in one process; each turn trains afresh. Left out are its first frames, before learning starts,
and the time that compiling takes: `meta.compile: auto` compiles a run of the spec's full length, in which learning
every frame makes 80,000 steps, and a turn here is a piece of such a run. Printed are the medians over the turns and the
ratio; absolute figures depend on the machine and its load.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from slm_lab.analysis.tables import read_table
from slm_lab.experiment import lab
from slm_lab.spec import overrides
from slm_lab.spec.files import read_file
from slm_lab.spec.schema import read_spec

WINDOW = 500  # frames
START = 1000  # frames before the first learn step

SAME_SETTINGS = [
    f"agent.algorithm.training_start_step={START}",
    "agent.algorithm.training_frequency=1",
    "agent.algorithm.training_iter=1",
    "agent.memory.n_step=1",
    "agent.memory.batch_size=64",
    "agent.net.hid_layers=[64,64]",
    "agent.net.lr_scheduler_spec=null",
    "meta.rigorous_eval=0",
    f"meta.log_frequency={WINDOW}",
    "meta.seed=0",
]


def ours(frames: int, compiled: bool) -> float:
    """Median frames per second of the learning part of a turn."""
    file = Path(__file__).parents[1] / "spec" / "demo.json"
    changes = [*SAME_SETTINGS, f"env.max_frame={frames}", f"meta.eval_frequency={frames}"]
    changes += [f"meta.compile={'true' if compiled else 'false'}"]
    spec = read_spec(overrides.apply(read_file(file)["dqn_cartpole"], changes), "dqn_cartpole")
    with tempfile.TemporaryDirectory() as folder:
        run = lab.train(spec, data_dir=Path(folder), file=str(file), verbosity=-1)
        table = read_table(run / "t0" / "s0" / "train.csv")
    learning = table["frame"] > START + WINDOW  # the first window compiles kernels
    return float(np.median(table["fps"][learning]))


def stable_baselines3(frames: int) -> float:
    """The same for Stable-Baselines3's DQN."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback

    class Windows(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def _on_step(self) -> bool:
            if self.num_timesteps >= START + WINDOW and self.num_timesteps % WINDOW == 0:
                self.times.append(time.perf_counter())
            return True

    windows = Windows()
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=1e-3,
        buffer_size=100_000,
        learning_starts=START,
        batch_size=64,
        gamma=0.99,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=256,
        exploration_fraction=8000 / frames,  # the same slope as in the spec
        exploration_final_eps=0.04,
        max_grad_norm=10,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
        seed=0,
    )
    model.learn(frames, callback=windows)
    return WINDOW / float(np.median(np.diff(windows.times)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=6000, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each library")
    parser.add_argument("--eager", action="store_true", help="with meta.compile: false")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rates: dict[str, list[float]] = {"slm-lab": [], "stable-baselines3": []}
    for _ in range(options.rounds):
        rates["slm-lab"].append(ours(options.frames, not options.eager))
        torch.set_num_threads(1)
        rates["stable-baselines3"].append(stable_baselines3(options.frames))
    way = "eager" if options.eager else "compiled"
    print(f"DQN on CartPole-v1, a learn step every frame, batch 64, net 2x64, one thread, {way}")
    for name, values in rates.items():
        print(f"  {name:18} {statistics.median(values):8,.0f} frames/s   ({', '.join(f'{v:,.0f}' for v in values)})")
    ratios = [mine / theirs for mine, theirs in zip(*rates.values(), strict=True)]
    print(f"  ratio              {statistics.median(ratios):8.2f}            ({', '.join(f'{r:.2f}' for r in ratios)})")


if __name__ == "__main__":
    main()
