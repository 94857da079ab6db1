"""Atari and MuJoCo on a small budget, beside Stable-Baselines3 with the same hyperparameters, budget and evaluation.

    python benchmark/learning.py [WORD ...] [--data-dir data/learning] [--seeds 2] [--jobs 1] [--table]

WORDs choose runs by a part of "CASE LIBRARY" (`hopper`, `pong sb3`). Runs that have not been made yet are made, each on
one thread; then the table of BENCHMARKS.md is printed. A score is the mean return of 10 greedy episodes after the last
frame. A frame is the agent's (4 of the game's on Atari). Needs the extras `atari`, `mujoco` and `bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIBRARIES = ("ours", "sb3")
PONG = "PongNoFrameskip-v4"  # the variant without sticky actions, as in Stable-Baselines3's zoo


class Case(NamedTuple):
    file: str
    spec: str
    env: str
    frames: int
    goal: str
    overrides: tuple[str, ...] = ()


SHORT_DQN = (
    "agent.algorithm.training_start_step=10000",
    "agent.algorithm.explore_var_spec.end_step=50000",
    "agent.memory.max_size=100000",
    "meta.eval_frequency=50000",
)
SHORT_PPO = (  # four times the updates, at twice the learning rate, which falls to half
    "agent.algorithm.minibatch_size=64",
    "agent.net.optim_spec.lr=0.0005",
    "agent.net.lr_scheduler_spec.frame=600000",
    "meta.eval_frequency=50000",
)
CASES = {
    "hopper": Case("mujoco", "sac_mujoco", "Hopper-v5", 100_000, "1000"),
    "halfcheetah": Case("mujoco", "sac_mujoco", "HalfCheetah-v5", 100_000, "2000"),
    "ppo_pong": Case("atari", "ppo_atari", PONG, 300_000, "above -20.4 (random)", SHORT_PPO),
    "dqn_pong": Case("atari", "dqn_atari", PONG, 300_000, "above -20.4 (random)", SHORT_DQN),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("words", nargs="*")
    options.add_argument("--data-dir", type=Path, default=ROOT / "data" / "learning")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--table", action="store_true")
    options.add_argument("--inside", nargs=3, metavar=("CASE", "SEED", "FILE"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.inside:
        case, seed, file = chosen.inside
        Path(file).write_text(json.dumps(train_sb3(CASES[case], int(seed))))
        return
    if not chosen.table:
        missing = [
            (case, library, seed)
            for case in CASES
            for library in LIBRARIES
            for seed in range(chosen.seeds)
            if all(word in f"{case} {library}" for word in chosen.words)
            and score(chosen.data_dir, case, library, seed) is None
        ]
        with ThreadPoolExecutor(chosen.jobs) as jobs:
            list(jobs.map(lambda work: run(work[0], work[1], work[2], chosen.data_dir), missing))
    print_table(chosen.data_dir, chosen.seeds)


def run(name: str, library: str, seed: int, data_dir: Path) -> None:
    case, folder = CASES[name], data_dir / f"{name}_{library}_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if library == "ours":
        command = ["run_lab.py", f"spec/benchmark/{case.file}.json", case.spec, "train", "-q", "--seed", str(seed)]
        command += ["--data-dir", str(folder)]
        for override in (f"env.name={case.env}", f"env.max_frame={case.frames}", *case.overrides):
            command += ["-s", override]
    else:
        command = [__file__, "--inside", name, str(seed), str(folder / "sb3.json")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=one_thread, capture_output=True, text=True)
    print(
        f"{folder.name}: " + ("done" if done.returncode == 0 else f"exit {done.returncode}\n{done.stderr}"), flush=True
    )


def train_sb3(case: Case, seed: int) -> dict[str, float]:
    """What the same settings reach in Stable-Baselines3; the time is that of training alone."""
    import gymnasium
    import torch
    from stable_baselines3 import DQN, PPO, SAC
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecFrameStack

    torch.set_num_threads(1)
    if case.spec == "sac_mujoco":
        model = SAC("MlpPolicy", gymnasium.make(case.env), learning_starts=10_000, seed=seed)
        judge = gymnasium.make(case.env)
    else:
        import ale_py

        gymnasium.register_envs(ale_py)
        true_score = {"terminal_on_life_loss": False, "clip_reward": False}
        judge = VecFrameStack(make_atari_env(case.env, seed=1000 + seed, wrapper_kwargs=true_score), 4)
        num_envs = 8 if case.spec == "ppo_atari" else 4
        env = VecFrameStack(make_atari_env(case.env, n_envs=num_envs, seed=seed), 4)
        if case.spec == "ppo_atari":
            settings = {
                "n_steps": 128,
                "batch_size": 64,
                "n_epochs": 4,
                "ent_coef": 0.01,
                "vf_coef": 0.5,
                "clip_range": 0.1,
            }
            rate = lambda left: 0.0005 * (0.5 + 0.5 * left)  # noqa: E731
            model = PPO("CnnPolicy", env, learning_rate=rate, seed=seed, **settings)
        else:
            settings = {"buffer_size": 100_000, "learning_starts": 10_000, "batch_size": 32, "learning_rate": 1e-4}
            # train_freq counts vector steps of 4 envs: one update every 4 frames, targets every 1,000 frames
            rhythm = {"train_freq": 1, "gradient_steps": 1, "target_update_interval": 1_000}
            explore = {"exploration_fraction": 50_000 / case.frames, "exploration_final_eps": 0.01}
            model = DQN("CnnPolicy", env, seed=seed, optimize_memory_usage=False, **settings, **rhythm, **explore)
    began = time.perf_counter()
    model.learn(case.frames)
    seconds = time.perf_counter() - began
    mean, _ = evaluate_policy(model, judge, n_eval_episodes=10, deterministic=True)
    return {"return": float(mean), "seconds": seconds}


def score(data_dir: Path, name: str, library: str, seed: int) -> dict[str, float] | None:
    folder = data_dir / f"{name}_{library}_{seed}"
    if library == "sb3":
        file = folder / "sb3.json"
        return json.loads(file.read_text()) if file.exists() else None
    for file in folder.glob("*/t0/s0/metrics.json"):
        metrics = json.loads(file.read_text())
        if metrics["status"] == "finished":
            return {"return": metrics["final_return"], "seconds": metrics["wall_time"]}
    return None


def print_table(data_dir: Path, seeds: int) -> None:
    print("| | frames | SLM Lab | | Stable-Baselines3 | | to reach |")
    print("|---|---|---|---|---|---|---|")
    for name, case in CASES.items():
        cells = []
        for library in LIBRARIES:
            found = [one for seed in range(seeds) if (one := score(data_dir, name, library, seed))]
            cells.append(", ".join(f"{one['return']:.4g}" for one in found))
            cells.append(f"{statistics.median(one['seconds'] for one in found) / 60:.0f} min" if found else "")
        print(f"| {case.spec} {case.env} | {case.frames:,} | {' | '.join(cells)} | {case.goal} |")


if __name__ == "__main__":
    main()
