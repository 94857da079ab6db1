"""The command line: parse, call, print. Nothing heavy is imported until it is known what to run."""

from __future__ import annotations

import gc
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

from slm_lab import __version__
from slm_lab.errors import InputError, LabError, Mistake, SpecError
from slm_lab.spec.files import SHIPPED, find_file, pick, read_file, spec_files, with_env_file
from slm_lab.spec.job import GOES_ON, MODES, Job, parse_job, read_jobs

if TYPE_CHECKING:
    from slm_lab.spec.schema import Spec

FORMS = """\
  python run_lab.py SPEC_FILE SPEC_NAME MODE    run one spec
  python run_lab.py JOB_FILE                    run several, {spec_file: {spec_name: mode}}
  python run_lab.py                             list the specs that ship

modes:
  train                      a new run, in data/
  dev                        one short session with checks, rendered if there is a display
  train@latest               go on with the newest run of that spec; or train@data/RUN
  search                     trials of the spec's search space, on Ray; search@latest goes on with one
  enjoy@latest               play its agent greedily; or enjoy@data/RUN, enjoy@data/RUN/t0/s0
"""
WRONG_INPUT, RUN_FAILED, INTERRUPTED = 2, 1, 130
LONGEST_LINE = 1000  # of an error


class Options(NamedTuple):
    """What the options say of a run, besides the changes to its spec."""

    data_dir: Path
    render: bool
    episodes: int | None
    video: Path | None
    force: bool
    address: str | None
    verbosity: int


class Lab(click.Group):
    """A group whose words are a spec to run unless the first is a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        run_context = click.Context(run, parent=ctx, info_name="run")
        if incomplete.startswith("-"):
            return found + run.shell_complete(run_context, incomplete)
        return found + complete_spec_file(run_context, run.params[0], incomplete)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"SLM Lab {__version__}: deep reinforcement learning from a spec file.\n\n{FORMS}\n")
        options = [option for option in (*run.params, *self.get_params(ctx)) if isinstance(option, click.Option)]
        with formatter.section("Options"):
            formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])
        self.format_commands(ctx, formatter)

    def main(self, args: Any = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run, with every error as one line and its exit code; a traceback only on -v."""
        args = list(sys.argv[1:] if args is None else args)
        extra |= {"standalone_mode": False, "complete_var": "_SLM_LAB_COMPLETE"}
        try:
            code = super().main(args, prog_name, **extra)
        except click.Abort as stop:  # click's word for KeyboardInterrupt
            code = getattr(stop.__cause__, "exit_code", INTERRUPTED)
        except click.ClickException as problem:
            _print_error(problem.format_message())
            code = WRONG_INPUT
        except Exception as problem:
            if any(re.fullmatch(r"-v+|--verbose", word) for word in args):
                traceback.print_exc()
            known = isinstance(problem, LabError)
            _print_error(str(problem) if known else f"{type(problem).__name__}: {problem} (a fault of the lab; see -v)")
            code = WRONG_INPUT if isinstance(problem, SpecError | InputError) else RUN_FAILED
        gc.freeze()  # what is left needs no last search for garbage: 0.3 s with torch
        sys.exit(code if isinstance(code, int) else 0)


def _print_error(message: str) -> None:
    """Without what would flood the screen, such as a value that fills a file."""
    lines = (line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in message.splitlines())
    message = "\n".join(lines)
    click.echo(click.style("error: ", fg="red") + message, err=True)


def complete_spec_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    files = [str(file) for file in spec_files() if str(file).startswith(incomplete)]
    return [CompletionItem(file) for file in files] or [CompletionItem(incomplete, type="file")]


def complete_spec_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        names = list(read_file(find_file(ctx.params.get("spec_file") or "")))
    except SpecError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_mode(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from slm_lab.experiment.folder import find_runs

    runs = find_runs(ctx.params.get("data_dir") or "data", ctx.params.get("spec_name"))
    modes = [*MODES, *(f"{verb}@{run}" for verb in GOES_ON for run in runs)]
    return [CompletionItem(mode) for mode in modes if mode.startswith(incomplete)]


@click.group(cls=Lab, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="SLM Lab", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        _list_specs()
        click.echo(f"\n{FORMS}")


@cli.command(hidden=True)
@click.argument("spec_file", required=False, shell_complete=complete_spec_file)
@click.argument("spec_name", required=False, shell_complete=complete_spec_name)
@click.argument("mode", required=False, shell_complete=complete_mode)
@click.option(
    "-s", "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="agent.memory.batch_size=64; repeat"
)
@click.option("--seed", type=click.IntRange(min=0), help="the run's seed, instead of meta.seed")
@click.option("--device", help="cpu, cuda, cuda:1, mps or auto, instead of meta.device")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), default="data", show_default=True)
@click.option("--render", is_flag=True, help="show the env in a window")
@click.option("--episodes", type=click.IntRange(min=1), help="how many enjoy plays  [default: 10]")
@click.option(
    "--video", type=click.Path(file_okay=False, path_type=Path), help="enjoy: film the episodes into this folder"
)
@click.option("--force", is_flag=True, help="train@RUN: go on though -s changes what a run keeps")
@click.option("--address", metavar="auto|HOST:PORT", help="search: the Ray cluster to run on, instead of this machine")
@click.option("-q", "--quiet", count=True, help="print the run's folder and warnings only; enjoy: the mean return only")
@click.option("-v", "--verbose", count=True, help="print what each checkpoint does; errors with their traceback")
def run(
    spec_file: str | None,
    spec_name: str | None,
    mode: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    device: str | None,
    data_dir: Path,
    render: bool,
    episodes: int | None,
    video: Path | None,
    force: bool,
    address: str | None,
    quiet: int,
    verbose: int,
) -> int:
    """Run SPEC_NAME of SPEC_FILE in that MODE."""
    changes = list(overrides)
    changes += [f"meta.seed={seed}"] if seed is not None else []
    changes += [f"meta.device={device}"] if device is not None else []
    options = Options(data_dir, render, episodes, video, force, address, verbose - quiet)
    if spec_file is None:
        raise click.UsageError("name a spec file; without any word, the specs that ship are listed")
    if spec_name is None:
        return _run_all(read_jobs(spec_file), changes, options)
    if mode is None:
        pick(read_file(find_file(spec_file)), spec_name, spec_file)
        raise click.UsageError(f"'{spec_name}' in which mode? one of {', '.join(MODES)}")
    _run_job(parse_job(spec_file, spec_name, mode), changes, options)
    return 0


def _run_all(jobs: list[Job], changes: list[str], options: Options) -> int:
    """All jobs in their order; every spec is checked before the first starts, and a failed run stops no other."""
    found: list[str] = []
    for job in jobs:
        try:
            _refuse_idle_options(job, changes, options)
            if job.target is None:
                _check_spec(job.file, job.spec_name, job.tree(), changes, searched=job.mode == "search")
        except SpecError as problem:
            found.append(str(problem))
    if found:
        raise SpecError("\n".join(found))
    code = 0
    for job in jobs:
        click.echo(f"{job.file} {job.spec_name} {job.mode}{'@' + job.target if job.target else ''}")
        try:
            _run_job(job, changes, options)
        except LabError as problem:
            _print_error(str(problem))
            code = RUN_FAILED
    return code


def _run_job(job: Job, changes: list[str], options: Options) -> None:
    _refuse_idle_options(job, changes, options)
    quietly = {"verbosity": options.verbosity}
    if job.mode == "search":
        _search(job, changes, options)
        return
    if job.target is None:
        spec = _read_spec(job.file, job.spec_name, job.tree(), changes)
        from slm_lab.experiment import lab

        place: dict[str, Any] = {"data_dir": options.data_dir, "mode": job.mode, "file": job.file}
        with _placed(job.file, job.spec_name):
            lab.train(spec, **place, overrides=changes, render=options.render, **quietly)
        return
    target = _find_run(job, job.target, options.data_dir)
    from slm_lab.experiment import lab

    if job.mode == "enjoy":
        lab.enjoy(target, episodes=options.episodes or 10, render=options.render, video=options.video, **quietly)
    else:
        lab.resume(target, overrides=changes, force=options.force, **quietly)


def _search(job: Job, changes: list[str], options: Options) -> None:
    told: dict[str, Any] = {"overrides": changes, "address": options.address, "verbosity": options.verbosity}
    if job.target is not None:
        target = _find_run(job, job.target, options.data_dir)
        from slm_lab.experiment import search

        search.resume(target, **told)
        return
    tree = _read_tree(job.file, job.tree(), changes)
    from slm_lab.experiment import search

    with _placed(job.file, job.spec_name):
        search.search(tree, job.spec_name, data_dir=options.data_dir, file=job.file, **told)


def _find_run(job: Job, target: str, data_dir: Path) -> Path:
    """The run to go on with or to enjoy; its own copy of the spec is what counts, but the name typed must be its."""
    from slm_lab.experiment.folder import find_latest, parse_target

    if target == "latest":
        job.tree()  # the file and the name are right
        return find_latest(data_dir, job.spec_name, None if job.mode == "enjoy" else job.mode == "search")
    run, _, _ = parse_target(target)
    names = list(read_file(run.spec_file))
    if names and job.spec_name not in names:
        raise SpecError(f"{run.root} is a run of '{names[0]}', not of '{job.spec_name}'")
    return Path(target)


def _refuse_idle_options(job: Job, changes: list[str], options: Options) -> None:
    """An option that would change nothing is a mistake, not a wish to pass over."""
    goes_on = job.mode in ("train", "search") and job.target is not None
    if job.mode == "enjoy" and changes:
        raise SpecError(f"enjoy plays the spec saved in the run; it cannot be changed ({', '.join(changes)})")
    if job.mode != "enjoy" and options.episodes:
        raise SpecError("--episodes goes with enjoy; evaluations play meta.rigorous_eval episodes")
    if job.mode != "enjoy" and options.video:
        raise SpecError("--video goes with enjoy")
    if options.render and options.video:
        raise SpecError("--render shows a window, --video films instead: take one of them")
    if goes_on and options.render:
        raise SpecError("--render goes with train, dev and enjoy@RUN; a run that goes on is not rendered")
    if options.address and job.mode != "search":
        raise SpecError("--address goes with search")
    if options.render and job.mode == "search":
        raise SpecError("--render goes with train, dev and enjoy@RUN; trials of a search are not rendered")
    if options.force and not (goes_on and job.mode == "train"):
        raise SpecError("--force goes with train@RUN: it lets -s change what a run that has begun keeps")


def _read_tree(file: str, tree: dict[str, Any], changes: list[str]) -> Any:
    """The spec's tree with the changes to it, before anything is made of it."""
    from slm_lab.experiment import lab
    from slm_lab.spec import overrides

    tree, folder = with_env_file(tree, file), find_file(file).parent
    if (folder / "t0").is_dir():  # the spec of a run, whose folder may be a stranger's
        lab.refuse_own_code(folder, tree)
    return overrides.apply(tree, changes)


def _read_spec(file: str, name: str, tree: dict[str, Any], changes: list[str]) -> Spec:
    with _placed(file, name):
        tree = _read_tree(file, tree, changes)
        from slm_lab.experiment import lab
        from slm_lab.spec.space import params_in

        if missing := params_in(tree):
            param, place = next(iter(missing.items()))
            problem = f"holds ${{{param}}}: give it with -s {param}=VALUE, or run all of spec_params with 'search'"
            raise SpecError([Mistake(place, problem)])
        return lab.read(tree, name)


def _check_spec(file: str, name: str, tree: dict[str, Any], changes: list[str], searched: bool = False) -> None:
    """Raises SpecError where the spec is wrong or its parts do not go together; writes nothing."""
    if searched or (isinstance(tree, dict) and tree.get("spec_params")):
        with _placed(file, name):
            tree = _read_tree(file, tree, changes)
            from slm_lab.experiment import search

            search.check(tree, name)
        return
    spec = _read_spec(file, name, tree, changes)
    from slm_lab.experiment import lab

    with _placed(file, name):
        lab.check(spec)
        if spec.search:
            from slm_lab.experiment import search

            search.check(_read_tree(file, tree, changes), name)


@contextmanager
def _placed(file: str, name: str) -> Iterator[None]:
    """Mistakes found inside are told with the file and the spec that they are in."""
    try:
        yield
    except SpecError as problem:
        raise SpecError(problem.mistakes, file, name) from problem


@cli.command()
@click.argument("spec_file", shell_complete=complete_spec_file)
@click.argument("spec_name", required=False, metavar="[NAME]", shell_complete=complete_spec_name)
@click.option("-s", "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="as for a run")
@click.option("-v", "--verbose", count=True, help="errors with their traceback")
def check(spec_file: str, spec_name: str | None, overrides: tuple[str, ...], verbose: int) -> int:
    """Validate the specs of a file, or one of them, and run nothing."""
    tree = read_file(find_file(spec_file))
    code = 0
    for name in [spec_name] if spec_name else tree:
        try:
            _check_spec(spec_file, name, pick(tree, name, spec_file), list(overrides))
            click.echo(f"{name}: ok")
        except SpecError as problem:
            _print_error(str(problem))
            code = WRONG_INPUT
    return code


@cli.command("list")
def list_command() -> None:
    """List the specs that ship, one a line."""
    _list_specs()


def _list_specs() -> None:
    rows = [row for file in spec_files() for row in _rows(file)]
    width = max((len(name) for _, name, _ in rows), default=0)
    file_width = max((len(file) for file, _, _ in rows), default=0)
    for file, name, summary in rows:
        click.echo(f"{file:{file_width}}  {name:{width}}  {summary}".rstrip())
    if not rows:
        click.echo(f"no specs under ./spec or {SHIPPED}")


def _rows(file: Path) -> list[tuple[str, str, str]]:
    try:
        specs = read_file(file)
    except SpecError as problem:
        return [(str(file), "", f"cannot be read: {problem.mistakes[0].problem}")]
    return [(str(file), name, _summary(tree)) for name, tree in specs.items()]


def _summary(tree: Any) -> str:
    """The spec's own description, else its algorithm and env."""
    if not isinstance(tree, dict):
        return ""
    if isinstance(tree.get("description"), str):
        return tree["description"]
    agent, env = (block[0] if isinstance(block, list) and block else block for block in map(tree.get, ("agent", "env")))
    algorithm = agent.get("algorithm") if isinstance(agent, dict) else None
    words = [block["name"] for block in (algorithm, env) if isinstance(block, dict) and "name" in block]
    return " on ".join(map(str, words))


@cli.command()
@click.argument("env_name", metavar="ENV")
@click.option("--episodes", type=click.IntRange(min=1), default=100, show_default=True)
def baseline(env_name: str, episodes: int) -> None:
    """Tell the random policy's return in ENV; measured once and then remembered."""
    from slm_lab.env.baseline import random_baseline

    found, place = random_baseline(env_name, episodes=episodes)
    click.echo(f"{env_name}: {found.mean:g} ± {found.std:g} over {found.episodes} episodes ({place})")


@cli.command()
def schema() -> None:
    """Print the JSON Schema of a spec file."""
    import json

    from slm_lab.spec import json_schema

    click.echo(json.dumps(json_schema.build(), indent=2))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes slm-lab's words; for bash: eval "$(slm-lab completion bash)"."""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "slm-lab", "_SLM_LAB_COMPLETE").source())


def main() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # a spec may name a class of the user's own, "my_lab.memories:Mine"
    cli.main()
