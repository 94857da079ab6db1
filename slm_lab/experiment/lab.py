"""What the command line asks for: train a spec, go on with a run, enjoy its agent, check a spec."""

from __future__ import annotations

import platform
import secrets
import subprocess
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from slm_lab import __version__
from slm_lab.agent.agent import check_agent
from slm_lab.env import make_env
from slm_lab.env.make import display_available
from slm_lab.errors import Interrupted, RunError, SpecError
from slm_lab.experiment import enjoy as enjoying
from slm_lab.experiment.display import Display, closing, number
from slm_lab.experiment.folder import RunFolder, parse_target
from slm_lab.experiment.trial import Trial
from slm_lab.lib.files import write_json
from slm_lab.spec import overrides as changes
from slm_lab.spec.files import read_file
from slm_lab.spec.schema import Spec, read_spec

PACKAGES = ("numpy", "torch", "gymnasium", "numba")  # those whose version can change a run's numbers
DEV_FRAMES, DEV_EVALUATIONS, DEV_EPISODES = 3000, 2, 2


def check(spec: Spec) -> None:
    """Build the env once and see whether the parts fit; raises SpecError, writes nothing."""
    env = make_env(spec.env)
    try:
        mistakes = check_agent(spec, env.observation_space, env.action_space)
    finally:
        env.close()
    if mistakes:
        raise SpecError(mistakes, None, spec.name)


def train(
    spec: Spec,
    *,
    data_dir: Path,
    mode: str = "train",
    file: str,
    overrides: list[str] | tuple[str, ...] = (),
    render: bool = False,
    verbosity: int = 0,
) -> Path:
    """A new run of the spec; its folder. `mode` "dev": one short session with checks, rendered where possible."""
    if mode == "dev":
        spec = dev_spec(spec)
        render = render or display_available()
    check(spec)
    console = Console(highlight=False, soft_wrap=True)
    drawn = spec.meta.seed is None
    if drawn:
        seed = secrets.randbelow(2**31)
        spec = spec.model_copy(update={"meta": spec.meta.model_copy(update={"seed": seed})})
    run = RunFolder.create(data_dir, spec.name)
    provenance = {**versions(), "spec_file": str(file), "mode": mode, "set": list(overrides)}
    spec = spec.model_copy(update={"provenance": provenance})
    write_json(run.spec_file, {spec.name: spec.to_tree()})
    if verbosity >= 0:
        console.print(f"{spec.name}: seed {spec.meta.seed}{' (drawn)' if drawn else ''}, results go to {run.root}")
    return _run(spec, run, console, file=file, render=render, verbosity=verbosity, checks=mode == "dev")


def resume(
    spec: Spec | None,
    run: Path,
    *,
    overrides: list[str] | tuple[str, ...] = (),
    verbosity: int = 0,
) -> Path:
    """Go on with a run from its last checkpoints, with the spec saved in it, or with `spec` in its place."""
    folder, _, _ = parse_target(str(run))
    if spec is None:
        spec = saved_spec(folder, overrides)
    check(spec)
    console = Console(highlight=False, soft_wrap=True)
    if verbosity >= 0:
        console.print(f"{spec.name}: goes on in {folder.root}")
    file = (spec.provenance or {}).get("spec_file", folder.spec_file)
    return _run(spec, folder, console, file=file, render=False, verbosity=verbosity)


def enjoy(target: Path, *, episodes: int = 10, render: bool = False, verbosity: int = 0) -> None:
    """Play a run's best agent greedily, in a window if there is a display, and print each episode's return."""
    run, trial, session = parse_target(str(target))
    spec = saved_spec(run)
    if render and not display_available():
        raise RunError("there is no display to render to; without --render the returns alone are printed")
    folder = enjoying.best_session(run, trial, session)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{spec.name} from {folder.root}, {episodes} greedy episodes")
    returns = []
    for total, length in enjoying.play(spec, folder, episodes, render or display_available()):
        returns.append(total)
        if verbosity >= 0:
            console.print(f"  episode {len(returns)}: return {number(total)}, {length} steps")
    console.print(f"mean return {number(sum(returns) / len(returns))}")


def saved_spec(run: RunFolder, overrides: list[str] | tuple[str, ...] = ()) -> Spec:
    """The spec that a run was started with, its seed included, with the changes applied."""
    specs = read_file(run.spec_file)
    if len(specs) != 1:
        raise RunError(f"{run.spec_file}: {len(specs)} specs in it; a run's file has one")
    ((name, tree),) = specs.items()
    try:
        return read_spec(changes.apply(tree, list(overrides)), name)
    except SpecError as problem:
        raise SpecError(problem.mistakes, str(run.spec_file), name) from problem


def _run(
    spec: Spec,
    run: RunFolder,
    console: Console,
    *,
    file: str | Path,
    render: bool,
    verbosity: int,
    checks: bool = False,
) -> Path:
    """Train and print how it went; on Ctrl-C, the command that goes on from there."""
    command = f"python run_lab.py {file} {spec.name}"
    trial = run.trial(0)
    try:
        with Display(spec.name, spec.meta.max_session, verbosity, console) as display:
            metrics = Trial(spec, trial, display, render=render).run()
    except Interrupted:
        console.print(f"stopped; go on with:\n  {command} train@{run.root}")
        raise
    if checks:
        for row in metrics:
            _say_checks(console, row)
    if verbosity >= 0:
        closing(console, metrics, run.root, [f"{command} enjoy@{run.root}", f"{command} train@{run.root}"])
    return run.root


def dev_spec(spec: Spec) -> Spec:
    """The spec made short: one session of a few thousand frames, with learning and two evaluations in it."""
    max_frame = min(spec.env.max_frame, DEV_FRAMES)
    algorithm = spec.agent.algorithm
    if getattr(algorithm, "training_start_step", 0) > max_frame // 2:
        algorithm = algorithm.model_copy(update={"training_start_step": max_frame // 2})
    meta = spec.meta.model_copy(
        update={
            "max_session": 1,
            "eval_frequency": max(1, max_frame // DEV_EVALUATIONS),
            "rigorous_eval": min(spec.meta.rigorous_eval, DEV_EPISODES),
        }
    )
    return spec.model_copy(
        update={
            "agent": spec.agent.model_copy(update={"algorithm": algorithm}),
            "env": spec.env.model_copy(update={"max_frame": max_frame}),
            "meta": meta,
        }
    )


def _say_checks(console: Console, metrics: dict[str, Any]) -> None:
    """The debug checks of dev mode: what a new spec most often gets wrong."""
    steps = metrics["opt_steps"]
    console.print(f"check: {steps} learn steps" + ("" if steps else "; is training_frequency or the start too late?"))


def versions() -> dict[str, Any]:
    """What a run's numbers depend on besides its spec."""
    here = Path(__file__).parent
    found = {
        "slm_lab": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "created": f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}",
        "command": " ".join(sys.argv),
    }
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return found  # no git, or not a checkout
    return {**found, "git": {"commit": commit.stdout.strip(), "changed": bool(status.stdout.strip())}}
