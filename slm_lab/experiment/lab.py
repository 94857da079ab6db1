"""What the command line asks for: train a spec, go on with a run, enjoy its agent, check a spec."""

from __future__ import annotations

import json
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from slm_lab import __version__
from slm_lab.agent.agent import check_agent, check_parts, check_place, device_name, with_stacks
from slm_lab.env import goal_functions, make_env, native, spaces_of, why_not_repeated
from slm_lab.env.arrays import flatten_keys
from slm_lab.env.make import display_available, today
from slm_lab.env.wrappers import frame_stack
from slm_lab.errors import InputError, Interrupted, Mistake, RunError, SpecError, StoppedAtOnce
from slm_lab.experiment import dev
from slm_lab.experiment import enjoy as enjoying
from slm_lab.experiment.display import Display, closing, number
from slm_lab.experiment.folder import RunFolder, parse_target
from slm_lab.experiment.session import log_frequency
from slm_lab.experiment.trial import Trial
from slm_lab.lib.files import read_json, write_bytes, write_json
from slm_lab.lib.lock import Lock, locked
from slm_lab.spec import overrides as changes
from slm_lab.spec.files import read_file
from slm_lab.spec.foreign import files_of, foreign_names
from slm_lab.spec.schema import Spec, read_spec, right_parts

PACKAGES = ("numpy", "torch", "gymnasium", "numba")  # those whose version can change a run's numbers
MAY_CHANGE = (  # in a run that goes on
    *(
        "env.max_frame",
        "meta.max_session",
        "meta.log_frequency",
        "meta.eval_frequency",
        "meta.rigorous_eval",
    ),
    *("meta.device", "meta.compile", "description"),
)


def read(tree: Any, name: str) -> Spec:
    """The spec that `tree` describes; where it is wrong, what `check` would tell of its right parts is told too."""
    try:
        return read_spec(tree, name)
    except SpecError as problem:
        raise SpecError([*problem.mistakes, *_check_right_parts(tree)], None, name) from problem


def check(spec: Spec) -> tuple[Spec, list[str]]:
    """Build the env once and see whether the parts fit; raises SpecError, writes nothing.

    The spec with what the env decides filled in, and what a user should know of the env.
    """
    notes: list[str] = []
    try:
        env = make_env(spec.env, notes=notes)
    except SpecError as problem:
        of_the_rest = check_parts(spec.agent) + check_place(spec.meta)
        raise SpecError([*of_the_rest, *problem.mistakes], None, spec.name) from problem
    try:
        spec = fitted(spec, env)
        notes += _why_not_exact(spec, env)
    finally:
        env.close()
    return spec, notes


def fitted(spec: Spec, env: Any) -> Spec:
    """The spec with what its env decides filled in; raises SpecError where the parts do not fit."""
    spec = spec.model_copy(update={"env": today(spec.env)[0]})
    if spec.env.vectorization == "native":
        native.refuse(spec.env)
    spec = with_stacks(spec, frame_stack(spec.env))
    mistakes = check_agent(spec, *spaces_of(env, spec.env), goal_functions(env, spec.env))
    mistakes += _why_no_goals(spec, mistakes)
    if mistakes:
        raise SpecError(mistakes, None, spec.name)
    return spec


def _why_no_goals(spec: Spec, mistakes: list[Mistake]) -> list[Mistake]:
    """The keys that keep the env from being asked about goals, where a memory wants to."""
    changing = [key for key in ("normalize_obs", "clip_obs", "normalize_reward") if getattr(spec.env, key)]
    if not any(mistake.path in ("agent.memory.reward_fn", "agent.memory.done_fn") for mistake in mistakes):
        return []
    return [
        Mistake(f"env.{key}", "the env cannot tell of goals or rewards changed by this: leave it out")
        for key in changing
    ]


def _why_not_exact(spec: Spec, env: Any) -> list[str]:
    """What keeps a run of the spec from being repeated bit for bit, and what that means for one that goes on."""
    notes = []
    if reason := why_not_repeated(env, spec.env):
        goes_on = "a run that goes on is not, bit for bit, the run that was never stopped"
        notes.append(f"{spec.env.name} does not repeat itself exactly ({reason}): {goes_on}")
    if (device := device_name(spec.meta.device)) != "cpu":
        notes.append(f"on {device} sums are not always made in the same order: a run cannot be repeated bit for bit")
    return notes


def _check_right_parts(tree: Any) -> list[Mistake]:
    """What can be told of a spec that cannot be read as a whole, beside what reading it told."""
    parts = right_parts(tree)
    mistakes = check_parts(parts["agent"]) if "agent" in parts else []
    if "env" in parts:
        try:
            make_env(parts["env"]).close()
        except SpecError as problem:
            mistakes += problem.mistakes
    return mistakes + (check_place(parts["meta"]) if "meta" in parts else [])


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
    checks = None
    if mode == "dev":
        spec, checks = dev.shortened(spec), dev.Checks()
        render = render or display_available()
    spec, notes = check(spec)
    drawn = spec.meta.seed is None
    seed = secrets.randbelow(2**31) if drawn else spec.meta.seed
    meta = spec.meta.model_copy(update={"seed": seed, "log_frequency": log_frequency(spec)})  # as it was, if extended
    run = RunFolder.create(data_dir, spec.name)
    provenance = {**versions(), "spec_file": str(file), "mode": mode, "set": list(overrides)}
    spec = spec.model_copy(update={"meta": meta, "provenance": provenance})
    write_json(run.spec_file, {spec.name: spec.to_tree()})
    console = new_console()
    if verbosity >= 0:
        console.print(f"{spec.name}: seed {spec.meta.seed}{' (drawn)' if drawn else ''}, results go to {run.root}")
        print_lines(console, notes)
    with locked_run(run) as lock:
        return _run(spec, run, console, lock, file=file, render=render, verbosity=verbosity, checks=checks)


def resume(
    run: Path,
    *,
    overrides: list[str] | tuple[str, ...] = (),
    force: bool = False,
    verbosity: int = 0,
) -> Path:
    """Go on with a run from its last checkpoints, with the spec saved in it and the changes to it; `force`: whatever
    they are, as long as the checkpoints fit."""
    folder, _, _ = parse_target(str(run))
    folder.refuse_links()
    console = new_console()
    tell_foreign_code(folder, console, verbosity)
    if folder.is_search:
        raise InputError(f"{folder.root}: is a search; go on with search@{folder.root}")
    spec = saved_spec(folder, overrides)
    changed = _changes(saved_spec(folder), spec, force)
    spec, notes = check(spec)
    told = (spec.provenance or {}).get("spec_file")
    file = told if isinstance(told, str) and told.isprintable() else str(folder.spec_file)
    display = Display(spec.name, spec.meta.max_session, verbosity, console)
    unfinished = Trial(spec, folder.trial(0), display).unfinished()
    if not unfinished:
        if verbosity >= 0:
            console.print(f"{spec.name}: {folder.root} is finished, at {spec.env.max_frame:,} frames; to go on beyond:")
            console.print(f"  {command(file, spec.name, 'train', folder)} -s env.max_frame={2 * spec.env.max_frame}")
        return folder.root
    with locked_run(folder) as lock:
        lost = [str(session.root) for session in unfinished if session.has_lost_its_checkpoints()]
        if lost:
            problem = "no checkpoint to go on from, though there are results; begin a new run"
            raise InputError(f"{', '.join(lost)}: {problem}")
        if verbosity >= 0:
            console.print(f"{spec.name}: goes on in {folder.root}")
            print_lines(console, notes)
        before, saved = folder.spec_file.read_bytes(), _last_saved(folder)
        if changed:
            write_json(folder.spec_file, {spec.name: spec.to_tree()})
        try:
            return _run(spec, folder, console, lock, file=file, render=False, verbosity=verbosity)
        except Exception:
            if changed and _last_saved(folder) == saved:  # the changes came to nothing: they must not bar the way back
                write_bytes(folder.spec_file, before)
            raise


def _last_saved(run: RunFolder) -> list[int]:
    """When each session last saved its state, as its file tells."""
    files = [file for session in run.trial(0).sessions() for file in (session.latest, session.previous)]
    return [file.stat().st_mtime_ns for file in files if file.exists()]


def _changes(before: Spec, after: Spec, force: bool) -> list[str]:
    """The places where the specs differ; raises SpecError, unless forced, where another experiment would come of it."""
    shared = {"meta.max_session"} if before.meta.shares else set[str]()  # by sessions that share frames
    may_change = [path for path in MAY_CHANGE if path not in shared]
    return changed_places(before.to_tree(), after.to_tree(), may_change, force, before.name)


def changed_places(before: Any, after: Any, may_change: Sequence[str], force: bool, name: str) -> list[str]:
    """Where the trees differ; raises SpecError, unless forced, where that is not among what may change."""
    old, new = flatten_keys(before), flatten_keys(after)
    changed = [path for path in dict.fromkeys((*old, *new)) if old.get(path) != new.get(path)]
    wrong = [path for path in changed if path not in may_change and not path.startswith("provenance.")]
    if wrong and not force:
        raise SpecError([Mistake(path, _told_change(old, new, path, may_change)) for path in wrong], None, name)
    return changed


def _told_change(old: dict[str, Any], new: dict[str, Any], path: str, may_change: Sequence[str]) -> str:
    was, now = (json.dumps(tree[path]) if path in tree else "not there" for tree in (old, new))
    may = ", ".join(may_change)
    return f"was {was}, is {now}: a run that has begun keeps it, unless --force; what may change: {may}"


def enjoy(
    target: Path, *, episodes: int = 10, render: bool = False, verbosity: int = 0, video: Path | None = None
) -> None:
    """Play a run's best agent greedily, in a window if there is a display, and print each episode's return.

    `video`: a folder for films of all episodes. Without a display and without such a folder, the first episode is
    filmed into a folder beside the run.
    """
    run, trial, session = parse_target(str(target))
    run.refuse_links()
    console = new_console()
    tell_foreign_code(run, console, verbosity)
    if render and not display_available():
        raise InputError("there is no display to render to; without --render the first episode is filmed")
    folder = enjoying.best_session(run, _best_trial(run) if trial is None else trial, session)
    spec = saved_spec(run) if not run.is_search else saved_spec(RunFolder(folder.root.parent))  # the trial's
    if verbosity >= 0:
        console.print(f"{spec.name} from {folder.root}, {episodes} greedy episode{'s' if episodes > 1 else ''}")
    returns = []
    notes: set[str] = set()
    window = video is None and (render or display_available())
    films = None
    if not window and (video is not None or verbosity >= 0):
        films = enjoying.Films(video or run.root.absolute().with_name(f"{run.name}_video"), episodes if video else 1)
    for total, length, note in enjoying.play(spec, folder, episodes, window, films):
        returns.append(total)
        if verbosity >= 0:
            console.print(f"  episode {len(returns)}: return {number(total)}, {length} steps")
        if note and note not in notes and verbosity >= 0:
            console.print(note)
        notes.add(note)
    if films is not None and films.note and verbosity >= 0:
        console.print(films.note)
    console.print(f"mean return {number(sum(returns) / len(returns))}")


def _best_trial(run: RunFolder) -> int | None:
    """The one that a search has found to be the best, by its own metric."""
    best = read_json(run.search_file).get("best") if run.is_search else None
    return best if isinstance(best, int) and run.trial(best) in run.trials() else None


def saved_spec(run: RunFolder, overrides: list[str] | tuple[str, ...] = ()) -> Spec:
    """The spec that a run was started with, its seed included, with the changes applied."""
    name, tree = saved_tree(run)
    try:
        return read(changes.apply(tree, list(overrides)), name)
    except SpecError as problem:
        raise SpecError(problem.mistakes, str(run.spec_file), name) from problem


def saved_tree(run: RunFolder) -> tuple[str, Any]:
    """The name of its spec, and the spec as it stands there."""
    specs = read_file(run.spec_file)
    if len(specs) != 1:
        raise InputError(f"{run.spec_file}: {len(specs)} specs in it; a run's file has one")
    ((name, tree),) = specs.items()
    return name, tree


def tell_foreign_code(run: RunFolder, console: Console, verbosity: int) -> None:
    """Whose code the run's spec names, before any of it is imported: the folder may be a stranger's, and must not bring
    that code itself."""
    _, tree = saved_tree(run)
    refuse_own_code(run.root, tree)
    found = foreign_names(tree)
    if found and verbosity >= 0:
        told = ", ".join(f"{place} {name!r}" for place, name in found)
        console.print(f"the run's spec names code from outside the lab: {told}")


def refuse_own_code(folder: Path, tree: Any) -> None:
    """Raise InputError where the spec of a run names code that lies in the run's own folder."""
    for place, name in foreign_names(tree):
        if any(file.resolve().is_relative_to(folder.resolve()) for file in files_of(name)):
            problem = f"'{name}' is code in the run's own folder, which is not run from there (docs/security.md)"
            raise InputError(f"{folder}: {place}: {problem}")


def locked_run(run: RunFolder) -> AbstractContextManager[Lock]:
    """So that no two processes ever train the same run."""
    return locked(run.lock_file, f"{run.root} is being trained")


def _run(
    spec: Spec,
    run: RunFolder,
    console: Console,
    lock: Lock,
    *,
    file: str,
    render: bool,
    verbosity: int,
    checks: dev.Checks | None = None,
) -> Path:
    """Train and print how it went; where it was stopped, the command that goes on from there."""
    enjoy_command, train_command = (command(file, spec.name, verb, run) for verb in ("enjoy", "train"))
    try:
        with Display(spec.name, spec.meta.max_session, verbosity, console) as display:
            watch = None if checks is None else checks.watch
            metrics = Trial(spec, run.trial(0), display, lock=lock, render=render, watch=watch).run()
    except Interrupted:
        console.print(f"stopped; go on with:\n  {train_command}")
        raise
    except StoppedAtOnce:
        console.print(f"stopped at once; go on from the last checkpoint with:\n  {train_command}")
        raise
    except RunError:
        console.print(f"results so far in {run.root}")
        raise
    if verbosity >= 0:
        closing(console, metrics, run.root, [enjoy_command, train_command])
    else:
        console.print(str(run.root))
    if checks is not None:
        _say(checks.verdicts(), console, verbosity)
    return run.root


def _say(verdicts: list[dev.Verdict], console: Console, verbosity: int) -> None:
    """Print what dev mode's checks came to; raises RunError where one found something wrong."""
    for verdict in verdicts:
        if verbosity >= 0 or not verdict.ok:
            console.print(str(verdict), style=None if verdict.ok else "red")
    wrong = [verdict.name for verdict in verdicts if not verdict.ok]
    if wrong:
        raise RunError(f"dev mode found something wrong: {', '.join(wrong)}")


def print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line)


def new_console() -> Console:
    return Console(highlight=False, soft_wrap=True, markup=False)


def command(file: str, name: str, verb: str, run: RunFolder | None) -> str:
    """What to type, by the door that this process came through."""
    came_by = sys.argv[0]
    is_script = came_by.endswith(".py")
    door = [_typed("python", sys.executable), came_by] if is_script else [_typed("slm-lab", came_by)]
    return shlex.join([*door, file, name, verb if run is None else f"{verb}@{run.root}"])


def _typed(name: str, program: str) -> str:
    """The name where the shell finds that very program by it, else the program's path."""
    path, here = Path(program).absolute(), Path.cwd()
    if Path(shutil.which(name) or "").absolute() == path:
        return name
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


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
