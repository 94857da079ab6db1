"""What a checkpoint costs, as a share of a run's wall time at the default frequency: with a memory of 1,000,000 rows of
vectors, and one of 200,000 rows of Atari's stacked images.

    python benchmark/checkpoint.py [--rounds 5] [WORD ...]

Each memory is filled with random rows. Then, round after round, as many new rows come as frames lie between checkpoints
(10,000), and the whole session is saved as in a run, synced to the disk. The time of a frame, with its learning,
is the least of some turns of 400 frames of the very session. Needs the extras `atari` and `mujoco`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from slm_lab.experiment import lab
from slm_lab.experiment.folder import RunFolder
from slm_lab.experiment.session import Session
from slm_lab.spec import overrides
from slm_lab.spec.files import read_file
from slm_lab.spec.schema import MetaSpec, read_spec

ROOT = Path(__file__).parent.parent
EVERY = MetaSpec().eval_frequency
GOAL = 0.02
RHYTHM = ["agent.algorithm.training_frequency=4", "agent.algorithm.training_iter=1"]  # fast frames, so saves weigh more
CASES: dict[str, tuple[str, str, int, list[str]]] = {  # file, spec, rows, changes
    "DQN CartPole-v1": ("demo.json", "dqn_cartpole", 1_000_000, RHYTHM),
    "DDQN+PER CartPole-v1": ("demo.json", "ddqn_per_cartpole", 1_000_000, RHYTHM),
    "SAC HalfCheetah-v5": ("benchmark/mujoco.json", "sac_mujoco", 1_000_000, ["env.name=HalfCheetah-v5"]),
    "DQN ALE/Pong-v5": ("benchmark/atari.json", "dqn_atari", 200_000, []),
}


class Quiet:
    def update(self, progress: Any) -> None: ...

    def note(self, text: str, warning: bool = False) -> None: ...

    def detail(self, text: str) -> None: ...


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("words", nargs="*")
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    print("| memory | first save | later saves | MB a later save | a frame | share of wall time | goal | |")
    print("|---|---|---|---|---|---|---|---|")
    for name in CASES:
        if not chosen.words or any(word in name for word in chosen.words):
            measure(name, chosen.rounds)


def measure(name: str, rounds: int) -> None:
    file, spec_name, rows, changes = CASES[name]
    changes = [*changes, f"agent.memory.max_size={rows}", "agent.algorithm.training_start_step=100", "meta.seed=0"]
    changes += ["env.max_frame=1000000", "meta.rigorous_eval=0"]
    spec = read_spec(overrides.apply(read_file(ROOT / "spec" / file)[spec_name], changes), spec_name)
    spec, _ = lab.check(spec)
    with tempfile.TemporaryDirectory(dir=ROOT / "data") as folder:
        session = Session(spec, RunFolder.create(Path(folder), "x").trial(0).session(0), Quiet())
        frame = min(train(session, 400) for _ in range(5))  # the first ones compile
        rng = np.random.default_rng(0)
        fill(session, rows, rng)
        first, _ = save(session)
        saves = []
        for _ in range(rounds):
            fill(session, EVERY, rng)
            saves.append(save(session))
        seconds, size = (statistics.median(values) for values in zip(*saves, strict=True))
        session._close()
    share = seconds / (EVERY * frame + seconds)
    verdict = "PASS" if share <= GOAL else "short"
    numbers = f"{first * 1e3:.0f} ms | {seconds * 1e3:.0f} ms | {size / 1e6:.1f} | {frame * 1e3:.2f} ms | {share:.2%}"
    print(f"| {name}, {rows:,} rows | {numbers} | {GOAL:.0%} | {verdict} |", flush=True)


def train(session: Session, frames: int) -> float:
    """Seconds a frame."""
    obs = session.env.reset()
    begun = time.perf_counter()
    steps = -(-frames // session.env.num_envs)
    for _ in range(steps):
        action = session.agent.act(obs, session.clock.frame)
        step = session.env.step(action)
        session.agent.remember(obs, action, step)
        session.clock.tick(session.env.num_envs)
        session.agent.learn(session.clock.frame)
        session.logbook.count(step)
        obs = step.obs
    return (time.perf_counter() - begun) / (steps * session.env.num_envs)


def fill(session: Session, rows: int, rng: np.random.Generator) -> None:
    """As many rows as if they had been played, each env's one episode of 1,000 steps after the other."""
    memory, (observations, actions) = session.agent.memory, session.agent.memory.spaces
    envs, chunk = session.env.num_envs, 1000
    for start in range(0, rows // envs, chunk):
        count = min(chunk, rows // envs - start)
        for env in range(envs):
            frames = rng.integers(0, 256, (count + 1, *observations.shape)).astype(observations.dtype)
            if len(observations.shape) == 3:  # a stack goes on with one new image
                for place in range(1, count + 1):
                    frames[place, :-1] = frames[place - 1, 1:]
            last = np.arange(count) == count - 1
            action = rng.integers(0, actions.n, count) if hasattr(actions, "n") else rng.random((count, *actions.shape))
            memory.add_rows(
                {
                    "obs": frames[:-1],
                    "action": np.asarray(action, actions.dtype),
                    "reward": rng.random(count),
                    "terminated": last,
                    "truncated": np.zeros(count, bool),
                    "next_obs": frames[1:],
                },
                env,
            )


def save(session: Session) -> tuple[float, float]:
    """Seconds, and bytes that are new on the disk."""
    held = {path: path.stat().st_size for path in session.folder.saved_rows.glob("*")}
    begun = time.perf_counter()
    session.checkpoints.save(session.state_dict())
    session.agent.saved()
    seconds = time.perf_counter() - begun
    rows = sum(max(0, path.stat().st_size - held.get(path, 0)) for path in session.folder.saved_rows.glob("*"))
    return seconds, rows + session.folder.latest.stat().st_size


if __name__ == "__main__":
    main()
