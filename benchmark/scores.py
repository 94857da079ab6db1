"""What each benchmark spec reaches: runs the seeds that have not been run yet, and prints the table of BENCHMARKS.md.

    python benchmark/scores.py [WORD ...] [--data-dir data/scores] [--seeds 4] [--jobs 1] [--table]

WORDs choose specs by a part of their file's or their own name. A score is the mean over seeds of the last evaluation's
mean return: greedy episodes of the last checkpoint. `--table`: only print what there is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slm_lab.spec.files import read_file

ROOT = Path(__file__).parent.parent
SPECS = ROOT / "spec" / "benchmark"
# What is to be reached, and SLM Lab's published score (v5) where there is one
GOALS: dict[str, tuple[float, float | None]] = {
    "dqn_cartpole": (480, 239.94),
    "ddqn_per_cartpole": (490, 451.51),
    "a2c_cartpole": (497, 496.68),
    "ppo_cartpole": (499, 498.94),
    "sac_cartpole": (490, 406.09),
    "crossq_cartpole": (480, 334.59),
    "reinforce_cartpole": (485, 483.31),
    "sarsa_cartpole": (450, 430.95),
    "dqn_acrobot": (-85, -94.17),
    "ddqn_per_acrobot": (-82, -83.92),
    "a2c_acrobot": (-82, -83.99),
    "ppo_acrobot": (-80, -81.28),
    "sac_acrobot": (-85, -92.60),
    "crossq_acrobot": (-90, -103.13),
    "ppo_pendulum": (-165, -174.87),
    "a2c_pendulum": (-400, -820.74),
    "sac_pendulum": (-150, -150.97),
    "crossq_pendulum": (-145, -145.66),
    "td3_pendulum": (-155, None),
    "mpc_pendulum": (-200, None),
    "mbpo_pendulum": (-180, None),
    "dqn_lunar": (220, 195.21),
    "ddqn_per_lunar": (267, 265.90),
    "a2c_lunar": (100, 27.38),
    "ppo_lunar": (220, 183.30),
    "sac_lunar": (200, 106.17),
    "crossq_lunar": (180, 139.21),
    "ppo_lunar_continuous": (200, 132.58),
    "sac_lunar_continuous": (240, 125.00),
    "crossq_lunar_continuous": (270, 268.91),
    "td3_lunar_continuous": (240, None),
    "ppo_recurrent": (475, None),
    "dqn_recurrent": (475, None),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("words", nargs="*")
    options.add_argument("--data-dir", type=Path, default=ROOT / "data" / "scores")
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--table", action="store_true")
    chosen = options.parse_args()
    specs = list(chosen_specs(chosen.words))
    if not chosen.table:
        known = finished(chosen.data_dir)
        missing = [
            (file, name, seed) for file, name in specs for seed in range(chosen.seeds) if (name, seed) not in known
        ]
        with ThreadPoolExecutor(chosen.jobs) as jobs:
            list(jobs.map(lambda work: run(*work, chosen.data_dir), missing))
    print_table([name for _, name in specs], finished(chosen.data_dir), chosen.seeds)


def chosen_specs(words: list[str]) -> Iterator[tuple[Path, str]]:
    for file in sorted(SPECS.glob("*.json")):
        for name in read_file(file):
            if not words or any(word in f"{file.stem}/{name}" for word in words):
                yield file, name


def run(file: Path, name: str, seed: int, data_dir: Path) -> None:
    command = [sys.executable, "run_lab.py", str(file), name, "train", "--seed", str(seed), "-q"]
    done = subprocess.run([*command, "--data-dir", str(data_dir)], cwd=ROOT, capture_output=True, text=True)
    print(f"{name}, seed {seed}: " + ("done" if done.returncode == 0 else f"exit {done.returncode}\n{done.stderr}"))


def finished(data_dir: Path) -> dict[tuple[str, int], dict]:
    """The metrics of each (spec name, seed), of the newest run."""
    found = {}
    for file in sorted(data_dir.glob("**/t0/s0/metrics.json"), key=lambda file: file.stat().st_mtime):
        metrics = json.loads(file.read_text())
        [(name, spec)] = json.loads((file.parents[2] / "spec.json").read_text()).items()
        if metrics["status"] == "finished":
            found[name, spec["meta"]["seed"]] = metrics
    return found


def print_table(names: list[str], known: dict[tuple[str, int], dict], seeds: int) -> None:
    print("| spec | frames | seeds 0, 1, … | mean | to reach | SLM Lab | | wall time of a seed |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        runs = [known[name, seed] for seed in range(seeds) if (name, seed) in known]
        if not runs:
            continue
        returns = [one["final_return"] for one in runs]
        mean = statistics.fmean(returns)
        goal, published = GOALS.get(name, (None, None))
        verdict = "" if goal is None else "PASS" if mean >= goal and len(runs) == seeds else "short"
        each = " ".join(f"{value:.4g}" for value in returns)
        seconds = statistics.median(one["wall_time"] for one in runs)
        numbers = f"{'' if goal is None else goal} | {'' if published is None else published}"
        print(f"| {name} | {runs[0]['frames']:,} | {each} | {mean:.4g} | {numbers} | {verdict} | {seconds:.0f} s |")


if __name__ == "__main__":
    main()
