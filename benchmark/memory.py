"""Speed and size of the memories, this lab against other libraries, in one process on one thread.

    python benchmark/memory.py [--quick] [--rows uniform prioritized …] [--rounds 9]

Rows are 17 float32 of observation and 6 of action with random contents; a call ends with torch tensors ready for a
loss. The libraries take turns within a round; printed are medians over the rounds, the ratio of the best peer's time
to ours and the goal for it. What stands in brackets is for comparison, and no peer. A library that is not installed is
left out, and named. Absolute times depend on the machine and its load, ratios less so.
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
os.environ["RL_LOGGING_LEVEL"] = "ERROR"

import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from peers.buffers import (
    ACTION,
    EPISODE,
    HAVE,
    OBS,
    PACKAGES,
    Rows,
    as_tensors,
    box,
    cpprb,
    ours,
    ours_hindsight,
    sb3,
    sb3_hindsight,
    tensors,
    tianshou,
    torchrl,
    torchrl_prioritized,
)

from slm_lab.agent.memory import make_memory

IMAGES = 20_000  # rows of images
TURN = 0.02  # seconds that a library is measured for in each round

Call = Callable[[], Any]


@dataclass
class Case:
    """One line of the table: what each library calls; `per` rows in each call where times are told per row."""

    name: str
    goal: float  # the best peer's time over ours is to be at least this
    calls: dict[str, Call]
    per: dict[str, int] = field(default_factory=dict)


# the table's lines, group by group


def uniform(rows: Rows) -> Iterator[Case]:
    mine = ours(rows)
    peers: dict[str, Callable[[int], Any]] = {}
    if "SB3" in HAVE:
        peers["SB3"] = sb3(rows).sample
    if "cpprb" in HAVE:
        buffer = cpprb(rows)
        peers["cpprb"] = lambda count: tensors(buffer.sample(count))
    if "torchrl" in HAVE:
        peers["torchrl"] = torchrl(rows).sample
    if "tianshou" in HAVE:
        other = tianshou(rows)
        peers["tianshou"] = lambda count: as_tensors(other.sample(count)[0])
    for count, goal in ((32, 1.3), (256, 2.0), (4096, 2.0)):
        calls = {name: lambda sample=sample, count=count: sample(count) for name, sample in peers.items()}
        yield Case(f"uniform sample {count}", goal, {"ours": lambda count=count: mine.sample(count), **calls})


def prioritized(rows: Rows) -> Iterator[Case]:
    mine = ours(rows, "PrioritizedReplay")
    mine.update_priorities(mine.ring.ids(), rows.priority)
    cpp = cpprb(rows, prioritized=True) if "cpprb" in HAVE else None
    rl = torchrl_prioritized(rows)
    tian = tianshou(rows, prioritized=True) if "tianshou" in HAVE else None
    for count, goal in ((32, 1.8), (256, 3.0)):
        errors = torch.from_numpy(np.random.default_rng(1).random(count).astype(np.float32))

        def call_ours(count: int = count, errors: torch.Tensor = errors) -> None:
            mine.update_priorities(mine.sample(count).ids, errors)

        def call_cpprb(count: int = count, errors: torch.Tensor = errors) -> None:
            sample = cpp.sample(count, beta=0.4)
            indexes = sample.pop("indexes")
            tensors(sample)
            cpp.update_priorities(indexes, errors.numpy())

        def call_torchrl(count: int = count, errors: torch.Tensor = errors) -> None:
            rl.update_priority(rl.sample(count)["index"], errors)

        def call_tianshou(count: int = count, errors: torch.Tensor = errors) -> None:
            batch, indices = tian.sample(count)
            as_tensors(batch)
            tian.update_weight(indices, errors.numpy())

        calls: dict[str, Call] = {"ours": call_ours}
        others = {"cpprb": (cpp, call_cpprb), "torchrl": (rl, call_torchrl), "tianshou": (tian, call_tianshou)}
        calls |= {name: call for name, (there, call) in others.items() if there is not None}
        yield Case(f"prioritized sample + update {count}", goal, calls)


def n_step(rows: Rows) -> Iterator[Case]:
    mine = ours(rows, n_step=3)
    calls: dict[str, Call] = {"ours": lambda: mine.sample(256)}
    if "SB3" in HAVE:
        buffer = sb3(rows, n_step=3)
        calls["SB3"] = lambda: buffer.sample(256)
    if "cpprb" in HAVE:
        summed = cpprb(rows, n_step=3)
        calls["cpprb"] = lambda: tensors(summed.sample(256))
    yield Case("n-step (3) sample 256", 2.0, calls)


def sequence(rows: Rows) -> Iterator[Case]:
    count, length = 16, 32
    mine = ours(rows, "SequenceReplay", sequence_length=length, batch_size=count)
    calls: dict[str, Call] = {"ours": mine.sample}
    rng = np.random.default_rng(2)

    def starts() -> np.ndarray:
        """(16 * 32,) rows of windows within an episode each."""
        first = rng.integers(0, rows.count // EPISODE, count) * EPISODE + rng.integers(0, EPISODE - length, count)
        return (first[:, None] + np.arange(length)).ravel()

    table = rows.as_ours()
    calls["(bare numpy)"] = lambda: [torch.from_numpy(part[index]) for index in (starts(),) for part in table.values()]
    if "cpprb" in HAVE:
        buffer = cpprb(rows)
        calls["cpprb"] = lambda: tensors(buffer._encode_sample(starts()))
    if "torchrl" in HAVE:
        slices = torchrl(rows, slices=count)
        calls["torchrl"] = lambda: slices.sample(count * length)
    yield Case("sequences 16x32", 2.0, calls)


def hindsight(rows: Rows) -> Iterator[Case]:
    calls: dict[str, Call] = {"ours": ours_hindsight(rows).sample}
    if "SB3" in HAVE:
        buffer = sb3_hindsight(rows)
        calls["SB3"] = lambda: buffer.sample(256)
    yield Case("hindsight sample 256", 3.0, calls)


def add(rows: Rows) -> Iterator[Case]:
    """The rows follow one another, as in a run: a memory may rely on that."""
    mine = ours(rows)
    table = rows.as_ours()
    single = itertools.cycle([{key: value[t : t + 1] for key, value in table.items()} for t in range(1600)])
    calls: dict[str, Call] = {"ours": lambda: mine.add(**next(single))}
    if "SB3" in HAVE:
        buffer, infos = sb3(rows), [{}]

        def add_sb3() -> None:
            row = next(single)
            buffer.add(row["obs"], row["next_obs"], row["action"], row["reward"], row["terminated"], infos)

        calls["SB3"] = add_sb3
    if "cpprb" in HAVE:
        cpp = cpprb(rows)

        def add_cpprb() -> None:
            row = next(single)
            parts = {"obs": row["obs"], "act": row["action"], "rew": row["reward"]}
            cpp.add(**parts, next_obs=row["next_obs"], done=row["terminated"])

        calls["cpprb"] = add_cpprb
    yield Case("add one row (goal: against SB3)", 1 / 1.5, calls)

    wide = make_memory({"name": "Replay", "max_size": rows.count}, box(OBS), box(ACTION), num_envs=16)
    many = itertools.cycle([{key: value[t : t + 16] for key, value in table.items()} for t in range(0, 1600, 16)])
    both = {"ours": lambda: wide.add(**next(many)), "single": lambda: mine.add(**next(single))}
    yield Case("add 16 envs, per row (against single adds)", 4.0, both, per={"ours": 16})


GROUPS = {
    "uniform": uniform,
    "prioritized": prioritized,
    "n_step": n_step,
    "sequence": sequence,
    "hindsight": hindsight,
    "add": add,
}


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Seconds a call (or row) of each library, one number for each round."""
    repeats = {}
    for name, call in case.calls.items():
        for _ in range(3):  # the first calls compile
            call()
        begin = time.perf_counter()
        call()
        repeats[name] = max(1, int(TURN / (time.perf_counter() - begin)))
    seconds: dict[str, list[float]] = {name: [] for name in case.calls}
    for _ in range(rounds):
        for name, call in case.calls.items():
            begin = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((time.perf_counter() - begin) / repeats[name] / case.per.get(name, 1))
    return seconds


def verdict(ok: bool) -> str:
    return "PASS" if ok else "short"


def report(case: Case, seconds: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    against = [name for name in medians if name != "ours" and not name.startswith("(")]
    if "against SB3" in case.name:
        against = [name for name in against if name == "SB3"]
    best = min(against, key=lambda name: medians[name], default=None)
    times = "  ".join(f"{name} {1e6 * value:.4g}" for name, value in medians.items() if name != "ours")
    line = f"| {case.name} | {1e6 * medians['ours']:.4g} | {times or '-'} |"
    if best is None:
        return f"{line} - | {case.goal:.2g} | no peer |"
    ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds[best], strict=True))
    return f"{line} {ratio:.2f} ({best}) | {case.goal:.2g} | {verdict(ratio >= case.goal)} |"


def bytes_held(ring: Any) -> int:
    """Of all arrays of a ring, each counted once however many views there are of it."""
    owners = {}
    for array in vars(ring).values():
        if isinstance(array, np.ndarray):
            while isinstance(array.base, np.ndarray):
                array = array.base
            owners[id(array)] = array.nbytes
    return sum(owners.values())


FIRST = """
import sys, time
import numpy as np, torch, numba
from gymnasium import spaces
from slm_lab.agent.memory import make_memory
loaded = time.perf_counter()
memory = make_memory({"name": sys.argv[1], "max_size": 1000}, spaces.Box(-1, 1, (17,)), spaces.Box(-1, 1, (6,)))
for _ in range(3):
    one = np.zeros(1)
    memory.add(np.zeros((1, 17)), np.zeros((1, 6)), one, one > 0, one > 0, np.zeros((1, 17)))
batch = memory.sample(32)
memory.update_priorities(batch.ids, torch.ones(32))
print(time.perf_counter() - loaded)
"""


def first_call(rows: Rows) -> Iterator[str]:
    """Seconds of a process's first adds, samples and updates: with nothing cached, and with what that left cached."""
    for name in ("Replay", "PrioritizedReplay"):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": str(Path(__file__).parents[1])}
            took = []
            for _ in range(2):
                command = [sys.executable, "-c", FIRST, name]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                took.append(float(done.stdout))
        times = f"{took[0]:.2f}, cached {took[1]:.2f}"
        yield f"| first calls of {name}, s | {times} | - | - | <= 3 | {verdict(took[0] <= 3)} |"


def sizes(rows: Rows) -> Iterator[str]:
    """Bytes of a row, with all that a full memory holds."""
    mine = bytes_held(ours(rows).ring) / rows.count
    theirs = 4 * (2 * OBS + ACTION + 3)  # observations twice, action, reward, done, timeout
    yield size_line("vector", mine, theirs, 0.6 * theirs)
    images = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    block = {"name": "Replay", "max_size": IMAGES, "frame_stack": 4}
    memory = make_memory(block, images, spaces.Discrete(4))
    frames = np.random.default_rng(0).integers(0, 256, (IMAGES + 4, 84, 84), np.uint8)
    stacks = np.lib.stride_tricks.sliding_window_view(frames, 4, axis=0).transpose(0, 3, 1, 2)
    no = np.zeros(1, np.bool_)
    for t in range(IMAGES):
        ends = np.array([t % EPISODE == EPISODE - 1])
        memory.add(stacks[t : t + 1], np.zeros(1, np.int64), np.zeros(1), ends, no, stacks[t + 1 : t + 2])
    yield size_line("84x84x4 uint8", bytes_held(memory.ring) / IMAGES, 2 * images.shape[0] * 84 * 84 + 20, 7300)


def size_line(kind: str, mine: float, theirs: float, most: float) -> str:
    share = f"{mine / theirs:.2f} of SB3"
    return f"| bytes a row, {kind} | {mine:.1f} | SB3 {theirs} | {share} | <= {most:.4g} | {verdict(mine <= most)} |"


OTHERS = {"sizes": sizes, "first_call": first_call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*GROUPS, *OTHERS]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, help="lines of the table; all by default")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each library")
    parser.add_argument("--quick", action="store_true", help="1e5 rows and 7 rounds instead of 1e6 and 15")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(100_000 if options.quick else 1_000_000)
    rounds = 7 if options.quick else options.rounds
    print(f"{rows.count:,} rows, medians of {rounds} rounds, one thread; times in µs a call unless said otherwise\n")
    for name in sorted(PACKAGES.keys() - HAVE):
        print(f"({name} is not installed: pip install {PACKAGES[name].replace('_', '-')})")
    print("| what | ours | peers | ratio to the best | goal | |\n|---|---|---|---|---|---|")
    for name in options.rows:
        if name in GROUPS:
            for case in GROUPS[name](rows):
                print(report(case, measure(case, rounds)), flush=True)
                gc.collect()
        else:
            for line in OTHERS[name](rows):
                print(line, flush=True)


if __name__ == "__main__":
    main()
