"""Kill runs at random moments, go on with each, and compare what they come to with runs that were never killed.

    python benchmark/kill.py [WORD ...] [--kills 200] [--seed 0] [--folder FOLDER]

WORDs choose from SPECS. A run is killed (SIGKILL, with all processes it has started) some times, now and then while it
is still starting, and then left to end. Tables are compared byte for byte but for the two columns that tell of time; of
the last checkpoint and the best one all that does not: parameters, optimizers, generators, priorities, envs, counts.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch

from slm_lab.lib.tree_file import read

ROOT = Path(__file__).parent.parent
NET = {"type": "MLPNet", "hid_layers": [16], "hid_layers_activation": "tanh"}
META = {"log_frequency": 50, "rigorous_eval": 1, "compile": False}
OF_TIME = ("wall_time", "fps")  # columns that no two runs share
OF_TIME_IN_STATE = (
    *(".clock.wall_time", ".clock.paused", ".logbook.row_time"),
    *(f".logbook.{table}.{key}" for table in ("train", "eval") for key in ("bytes", "sum")),  # times are in them
)


def _dqn(name: str, memory: dict, env: dict, **keys: Any) -> dict:
    algorithm = {"name": name, "training_frequency": 4, "training_start_step": 100, **keys}
    agent = {"algorithm": algorithm, "memory": {"max_size": 2000, "batch_size": 16, **memory}, "net": NET}
    return {"agent": agent, "env": env, "meta": {**META, "eval_frequency": 200}}


SPECS: dict[str, dict] = {
    "ddqn_per_cartpole": _dqn(
        "DoubleDQN", {"name": "PrioritizedReplay"}, {"name": "CartPole-v1", "max_frame": 5000}, training_iter=2
    ),
    "ppo_cartpole": {
        "agent": {
            "algorithm": {"name": "PPO", "time_horizon": 32, "minibatch_size": 32, "training_epoch": 4},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": NET,
        },
        "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 20_000, "normalize_obs": True},
        "meta": {**META, "eval_frequency": 1000},
    },
    "sac_pendulum": {
        "agent": {
            "algorithm": {"name": "SoftActorCritic", "training_frequency": 2, "training_start_step": 100},
            "memory": {"name": "Replay", "max_size": 1000, "batch_size": 16},
            "net": NET,
        },
        "env": {"name": "Pendulum-v1", "max_frame": 2000},
        "meta": {**META, "eval_frequency": 200},
    },
    "dqn_lunar_disk": _dqn(
        "DQN",
        {"name": "NStepReplay", "n_step": 3, "storage": "disk", "workers": 1, "fetch_every": 1},
        {"name": "LunarLander-v3", "num_envs": 2, "max_frame": 4000},
    ),
    "reinforce_cartpole": {
        "agent": {"algorithm": {"name": "Reinforce"}, "memory": {"name": "OnPolicyReplay"}, "net": NET},
        "env": {"name": "CartPole-v1", "max_frame": 20_000},
        "meta": {**META, "eval_frequency": 1000},
    },
}


class Outcome(NamedTuple):
    run: Path
    kills: int  # that found the run alive
    early: int  # of these, before it could have told of any progress


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("words", nargs="*")
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--folder", type=Path, help="a new folder, which is kept; without one it is all removed")
    chosen = options.parse_args()
    names = [name for name in SPECS if not chosen.words or any(word in name for word in chosen.words)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        whole = {name: run_whole(name, folder) for name in names}
        total = wrong = 0
        for turn, name in enumerate(itertools.cycle(names)):
            if total >= chosen.kills:
                break
            outcome = run_killed(name, folder, kills=4, rng=Random(f"{chosen.seed} {turn}"))
            found = list(differences(whole[name], outcome.run))
            total, wrong = total + outcome.kills, wrong + bool(found)
            told = "the same" if not found else "DIFFERS: " + "; ".join(found[:3])
            print(f"{name}: killed {outcome.kills} times, {outcome.early} of them at the start: {told}", flush=True)
    print(f"{total} kills, {wrong} runs that differ")
    sys.exit(bool(wrong))


def start(name: str, folder: Path, mode: str) -> subprocess.Popen:
    folder.mkdir(parents=True, exist_ok=True)
    spec_file = folder / "specs.json"
    if not spec_file.exists():
        spec_file.write_text(json.dumps(SPECS))
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run_lab.py"), str(spec_file), name, mode, "--data-dir", str(folder / "data")]
        + (["--seed", "7"] if mode == "train" else []),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a group of its own, to be killed as one
    )


def run_whole(name: str, folder: Path) -> Path:
    """The run that is never killed."""
    process = start(name, folder / name / "whole", "train")
    out, _ = process.communicate(timeout=300)
    if process.returncode:
        raise SystemExit(f"{name}: exit {process.returncode}\n{out}")
    [run] = (folder / name / "whole" / "data").iterdir()
    return run


def run_killed(name: str, folder: Path, kills: int, rng: Random) -> Outcome:
    """The run killed so many times, each a random moment after one of its next evaluations, or while it starts."""
    folder = folder / name / f"killed_{rng.getrandbits(32):08x}"
    evaluations = SPECS[name]["env"]["max_frame"] // SPECS[name]["meta"]["eval_frequency"]
    hits = early = 0
    for _ in range(kills):
        at_start = rng.random() < 0.2
        process = start(name, folder, _mode(folder))
        words = 0 if at_start else rng.randint(1, evaluations // (kills + 1))
        hit = _kill_after(process, words, rng.uniform(0.0, 2.0 if at_start else 0.1))
        hits, early = hits + hit, early + (hit and at_start)
        if not hit:
            break
    process = start(name, folder, _mode(folder))
    out, _ = process.communicate(timeout=300)
    if process.returncode:
        raise SystemExit(f"{name}: after {hits} kills exit {process.returncode}\n{out}")
    [run] = (folder / "data").iterdir()
    return Outcome(run, hits, early)


def _mode(folder: Path) -> str:
    """To go on, where the run has come so far that there is a spec to go on with."""
    begun = [run for run in (folder / "data").glob("*") if (run / "spec.json").exists()]
    for run in (folder / "data").glob("*"):
        if run not in begun:
            run.rmdir()  # killed between the folder's making and its first file
    return f"train@{begun[0]}" if begun else "train"


def _kill_after(process: subprocess.Popen, words: int, seconds: float) -> bool:
    """Kill it so long after so many words of progress; whether it was alive until then."""
    progress = threading.Semaphore(0)

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if " frames  " in line:
                progress.release()
        progress.release(words + 1)  # it has ended

    threading.Thread(target=listen, daemon=True).start()
    for _ in range(words):
        progress.acquire()
    time.sleep(seconds)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return alive


def differences(run: Path, other: Path) -> Iterator[str]:
    """What the two runs do not have in common, times aside."""
    sessions = [sorted(path.relative_to(folder) for path in folder.glob("t*/s[0-9]*")) for folder in (run, other)]
    if sessions[0] != sessions[1] or not sessions[0]:
        yield f"sessions {list(map(str, sessions[0]))} and {list(map(str, sessions[1]))}"
    for session in sessions[0]:
        for found in _between(run / session, other / session):
            yield found if session == Path("t0/s0") else f"{session}: {found}"


def _between(first: Path, second: Path) -> Iterator[str]:
    for table in ("train.csv", "eval.csv"):
        if without_times(first / table) != without_times(second / table):
            yield f"{table} differs"
    for file in ("latest", "best"):
        trees = [_flat(read(folder / "checkpoint" / f"{file}.safetensors")) for folder in (first, second)]
        for place in sorted(trees[0].keys() | trees[1].keys()):
            if trees[0].get(place) != trees[1].get(place):
                yield f"{file}: {place} differs"


def without_times(table: Path) -> bytes:
    """The table's bytes, less the columns that tell of time."""
    with open(table, newline="") as file:
        rows = list(csv.reader(file))
    keep = [place for place, column in enumerate(rows[0]) if column not in OF_TIME]
    return "\n".join(",".join(row[place] for place in keep) for row in rows).encode()


def _flat(node: Any, place: str = "") -> dict[str, Any]:
    """Every leaf of a state tree by its place, arrays as bytes; without times, and the files that rows are in."""
    if place in OF_TIME_IN_STATE or place.endswith(".ring.segments"):
        return {}
    if isinstance(node, dict):
        return {key: leaf for name, part in node.items() for key, leaf in _flat(part, f"{place}.{name}").items()}
    if isinstance(node, list):
        return {key: leaf for index, part in enumerate(node) for key, leaf in _flat(part, f"{place}.{index}").items()}
    if isinstance(node, torch.Tensor):
        node = node.numpy()
    if isinstance(node, np.ndarray):
        return {place: (node.dtype.str, node.shape, node.tobytes())}
    return {place: repr(node)}


if __name__ == "__main__":
    main()
