"""A search: the trials that a spec's space gives, what they came to, and how one goes on that was stopped. What knows
Ray is in `tuner`, `runner` and `choosers`."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

from slm_lab.analysis.experiment import experiment_table, ranked, trial_row
from slm_lab.analysis.metrics import session_metrics, trial_metrics
from slm_lab.env.baseline import known_baseline
from slm_lab.errors import InputError, Interrupted, Mistake, RunError, SpecError, StoppedAtOnce
from slm_lab.experiment import lab
from slm_lab.experiment.display import duration, number
from slm_lab.experiment.folder import RunFolder, parse_target
from slm_lab.experiment.interrupt import stop_on_signal
from slm_lab.experiment.remote.cluster import EXTRA, ray_running, refuse_without_ray
from slm_lab.experiment.search.board import Board
from slm_lab.experiment.search.plan import ENDED, FAILED, FINISHED, STOPPED_EARLY, Plan, Record
from slm_lab.experiment.session import table_metrics
from slm_lab.lib.files import read_json, write_bytes, write_json
from slm_lab.spec import overrides as changes
from slm_lab.spec import shape
from slm_lab.spec.schema import MOST_TRIALS, Spec, right_parts
from slm_lab.spec.space import Space, params_in, read_space
from slm_lab.spec.words import suggest

OF_SEARCH = (  # what may change in a search that goes on
    *("meta.max_trial", "meta.max_concurrent", "meta.max_failures", "meta.search_time_budget"),
    *("meta.search_resources", "meta.search_resources.cpu", "meta.search_resources.gpu"),
    *("meta.search_metric", "meta.search_mode", "description"),
)
MOST_RETRIES_TOLD = 3


def search(
    tree: dict[str, Any],
    name: str,
    *,
    data_dir: Path,
    file: str,
    overrides: list[str] | tuple[str, ...] = (),
    address: str | None = None,
    verbosity: int = 0,
) -> Path:
    """A new search over the space of the spec that `tree` describes; its folder."""
    refuse_without_ray()
    plan, spec, notes = make_plan(tree, name, RunFolder(Path(data_dir)))
    drawn = plan.meta.seed is None
    run = RunFolder.create(data_dir, name)
    meta = plan.meta.model_copy(update={"seed": secrets.randbelow(2**31) if drawn else plan.meta.seed})
    provenance = {**lab.versions(), "spec_file": str(file), "mode": "search", "set": list(overrides)}
    flat = {**plan.tree, "meta": {**(plan.tree.get("meta") or {}), "seed": meta.seed}, "provenance": provenance}
    write_json(run.search_file, {"retries": {}})
    write_json(run.spec_file, {name: flat})
    plan = Plan(name, flat, plan.space, meta, RunFolder(run.root.absolute()))
    console = lab.new_console()
    if verbosity >= 0:
        seed = f"seed {meta.seed}{' (drawn)' if drawn else ''}"
        console.print(f"{name}: {_plural(plan.num_trials(), 'trial')}, {seed}, results go to {run.root}")
        lab.print_lines(console, notes)
    try:
        with lab.locked_run(run):
            return _run(plan, spec, console, file=file, address=address, verbosity=verbosity)
    except InputError:
        if not run.trials():  # nothing could be started
            shutil.rmtree(run.root)
        raise


def resume(
    target: Path,
    *,
    overrides: list[str] | tuple[str, ...] = (),
    address: str | None = None,
    verbosity: int = 0,
) -> Path:
    """Go on with a search: trials that have ended are not run again, others go on from their checkpoints."""
    refuse_without_ray()
    run, trial, _ = parse_target(str(target))
    if trial is not None:
        raise InputError(f"{target}: is one trial; a search goes on as a whole: search@{run.root}")
    run.refuse_links()
    console = lab.new_console()
    lab.tell_foreign_code(run, console, verbosity)
    name, saved = lab.saved_tree(run)
    if not run.is_search:
        raise InputError(f"{run.root}: is no search; go on with train@{run.root}")
    tree = changes.apply(saved, list(overrides))
    changed = lab.changed_places(saved, tree, OF_SEARCH, False, name)
    plan, spec, notes = make_plan(tree, name, run)
    told = (saved.get("provenance") or {}).get("spec_file")
    file = told if isinstance(told, str) and told.isprintable() else str(run.spec_file)
    with lab.locked_run(run):
        if changed:
            write_json(run.spec_file, {name: tree})
        if verbosity >= 0:
            console.print(f"{name}: goes on in {run.root}")
            lab.print_lines(console, notes)
        return _run(plan, spec, console, file=file, address=address, verbosity=verbosity)


def check(tree: Any, name: str) -> None:
    """Raises SpecError where a search of it would; runs nothing."""
    make_plan(tree, name, RunFolder(Path()))


def make_plan(tree: Any, name: str, run: RunFolder) -> tuple[Plan, Spec, list[str]]:
    """The plan, the spec of its first trial, and what a user should know; raises SpecError with all that is wrong in
    the space or in what it gives, before anything is started."""
    readable = isinstance(tree, dict) and not shape.mistakes_of_values(tree)
    flat, found = shape.flatten(tree) if readable else ({}, [])
    if found or not flat:
        lab.read(tree, name)  # which says what is wrong
    space = read_space(flat.get("search"), flat.get("spec_params"))
    meta = _meta(flat, space, name)
    run = RunFolder(run.root.absolute())  # trials may run elsewhere
    plan = Plan(name, flat, space, meta, run)
    if not (space.keys or space.params):
        problem = 'nothing to search: give keys such as "agent.net.optim_spec.lr__loguniform": [1e-4, 1e-2]'
        raise SpecError([Mistake("search", problem)], None, name)
    _refuse_wrong_method(plan)
    plan.check()
    spec, notes = lab.check(plan.read(0, space.random(meta.seed or 0, 0, plan.combinations()[0])))
    unknown = _without_baseline(plan) if meta.search_metric == "strength" else ""
    if unknown:
        notes = [*notes, f"no random baseline is known of {unknown}: trials are ranked by area, as strength would"]
        plan = Plan(name, flat, space, meta.model_copy(update={"search_metric": "area"}), run)
    return plan, spec, notes


def _without_baseline(plan: Plan) -> str:
    """An env that trials may have and of which it is not known what acting at random is worth; "" if there is none."""
    specs = (plan.read(0, draw) for _, draw in plan.space.probes())
    return next((spec.env.name for spec in specs if known_baseline(spec.env) is None), "")


def _meta(flat: dict[str, Any], space: Space, name: str) -> Any:
    """The meta block as the spec of a first trial has it, with what belongs to the search."""
    first = space.apply(flat, space.draw(lambda key: 0 if key.options else key.at(0.5)))
    return right_parts(first).get("meta") or lab.read(first, name).meta


def _refuse_wrong_method(plan: Plan) -> None:
    keys, method, metric = plan.space.all_keys(), plan.meta.search, plan.meta.search_metric
    metrics = [name for name in session_metrics({}, {}) if name != "source"]
    found = []
    if method == "optuna" and importlib.util.find_spec("optuna") is None:
        raise RunError(EXTRA)
    columns = {*metrics, "trial", "status", "retries", "error", "sessions"}
    used = params_in(plan.tree)
    for param in plan.space.params:
        if param.path in columns:
            found.append(Mistake(f"spec_params.{param.path}", "is the name of a column of results; call it otherwise"))
        elif param.path not in used:
            found.append(Mistake(f"spec_params.{param.path}", f"nothing in the spec holds ${{{param.path}}}"))
    if plan.meta.parallel == "stack" and (plan.meta.search_scheduler is not None or method == "pbt"):
        problem = "'stack' cannot give up a trial that a scheduler has stopped: use 'process' or 'ray'"
        found.append(Mistake("meta.parallel", problem))
    if metric not in metrics:
        found.append(Mistake("meta.search_metric", f"got '{metric}'; {suggest(metric, metrics)}"))
    if method == "grid":
        found += [
            Mistake(f"search.{key.path}__{key.kind}", "has no end of values for search 'grid'; give a __choice")
            for key in keys
            if not key.options
        ]
    if plan.num_trials() > MOST_TRIALS:
        found.append(Mistake("meta.max_trial", f"comes to {plan.num_trials():,} trials; at most {MOST_TRIALS:,}"))
    if method == "pbt":
        for key in plan.space.keys:
            if any(option.keys or isinstance(option.value, dict) for option in key.options):
                found.append(Mistake(f"search.{key.path}", "search 'pbt' changes numbers and plain values, no blocks"))
        if plan.meta.max_trial < 2:
            found.append(Mistake("meta.max_trial", f"got {plan.meta.max_trial}; a population needs 2 or more"))
    if found:
        raise SpecError(found, None, plan.name)


def _run(plan: Plan, spec: Spec, console: Any, *, file: str, address: str | None, verbosity: int) -> Path:
    books = Books(plan)
    go_on = lab.command(file, plan.name, "search", plan.run)
    total = plan.num_trials()
    frames = spec.env.max_frame * (1 if spec.meta.shares else spec.meta.max_session)
    board = Board(plan.meta.search_metric, plan.meta.search_mode, total, frames, console, verbosity)
    for index, record in books.records.items():
        if record.status in ENDED:
            board.know(index, plan.space.values(record.draw), record.status, books.rows.get(index))
    plan.run.stop_file.unlink(missing_ok=True)
    began, budget = time.monotonic(), plan.meta.search_time_budget
    left = [index for index in range(total) if index not in books.records or books.records[index].status not in ENDED]
    interrupted: Interrupted | None = None
    out_of_time = False
    if left:
        from slm_lab.experiment.search import tuner

        with stop_on_signal(
            lambda: board.note("stopping: trials save their state (once more to stop at once)")
        ) as stop:

            def stopping() -> bool:
                nonlocal out_of_time
                out_of_time = budget is not None and time.monotonic() - began > budget
                return out_of_time or stop()

            scores = {i: row.get(plan.meta.search_metric) for i, row in books.rows.items() if i not in left}
            try:
                with ray_running(address), board:
                    tuner.run_trials(
                        plan, spec, board, stopping=stopping, scores=scores, retried=books.retried, ended=books.ended
                    )
            except StoppedAtOnce:
                console.print(f"stopped at once; go on from the last checkpoints with:\n  {go_on}")
                raise
            if stop():
                interrupted = Interrupted(stop.exit_code)
    plan.run.stop_file.unlink(missing_ok=True)
    books.write()
    best = books.write_best()
    if verbosity >= 0:
        _closing(console, plan, books, best, time.monotonic() - began)
    else:
        console.print(str(plan.run.root))
    if interrupted is not None:
        console.print(f"stopped; go on with:\n  {go_on}")
        raise interrupted
    if out_of_time and books.unfinished():
        console.print(f"the time budget is spent; go on with:\n  {go_on}")
    elif not best and books.records:
        raise RunError("no trial came to a result; the first error: " + books.first_error())
    return plan.run.root


class Books:
    """What has become of each trial, and the table of it."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.records: dict[int, Record] = {}
        self.rows: dict[int, dict[str, Any]] = {}
        self.retries: Counter[int] = Counter(_saved_retries(plan.run))
        for folder in plan.run.trials():
            record = Record.read(folder, plan.space)
            if record is None and folder.sessions():
                problem = f"is damaged, and there are results beside it; mend it, or move {folder.root} away"
                raise InputError(f"{folder.record_file}: {problem}")
            if record is not None and folder.index < plan.num_trials():
                self._enter(folder.index, record)

    def ended(self, index: int, record: Record) -> None:
        self._enter(index, record)
        self.write()

    def retried(self, index: int) -> None:
        self.retries[index] += 1
        self._write_file()

    def unfinished(self) -> int:
        return self.plan.num_trials() - sum(record.status in ENDED for record in self.records.values())

    def first_error(self) -> str:
        errors = [f"t{index}: {record.error}" for index, record in sorted(self.records.items()) if record.error]
        return errors[0] if errors else "none"

    def _enter(self, index: int, record: Record) -> None:
        self.records[index] = record
        metrics = self._metrics(index, record)
        status = record.status if record.status in ENDED else "unfinished"
        self.rows[index] = {
            "trial": index,
            "status": status,
            "retries": self.retries[index],
            **self.plan.space.values(record.draw),
            **trial_row(metrics),
            "error": record.error,
        }

    def _metrics(self, index: int, record: Record) -> dict[str, Any]:
        """From the tables of its sessions; {} where there is nothing yet, or nothing that can be read."""
        folder = self.plan.folder(index)
        sessions = [session for session in folder.sessions() if session.eval_table.exists()]
        try:
            spec = self.plan.read(index, record.draw)
            return trial_metrics([table_metrics(session, spec) for session in sessions]) if sessions else {}
        except (RunError, SpecError):
            return {}

    def write(self) -> None:
        rows = [self.rows[index] for index in sorted(self.rows)]
        searched = dict.fromkeys(
            path for record in self.records.values() for path in self.plan.space.values(record.draw)
        )
        first = ["trial", "status", self.plan.meta.search_metric, *searched]
        write_bytes(self.plan.run.experiment_table, experiment_table(rows, first).encode())

    def write_best(self) -> list[dict[str, Any]]:
        """The best trial's spec as a file to run, one for each combination of spec_params; the rows of the best."""
        best, specs = [], {}
        for name, rows in self._sets().items():
            done = [row for row in rows if row["status"] == FINISHED] or rows
            order = ranked(done, self.plan.meta.search_metric, self.plan.meta.search_mode)
            if order:
                best.append(dict(order[0]))
                index = order[0]["trial"]
                record = self.records[index]
                specs[name] = self.plan.spec_tree(index, record.draw, record.seed)
        if specs:
            write_json(self.plan.run.best_spec_file, specs)
            self._write_file(best[0]["trial"])
        return best

    def _write_file(self, best: int | None = None) -> None:
        retries = {str(index): number for index, number in self.retries.items()}
        write_json(self.plan.run.search_file, {"retries": retries, "best": best})

    def _sets(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of trials that had the same spec_params, under a name for their spec."""
        sets: dict[str, list[dict[str, Any]]] = {}
        for index in sorted(self.rows):
            values = [self.rows[index][key.path] for key in self.plan.space.params]
            name = "_".join([self.plan.name, *(str(value).replace("/", "-") for value in values)])
            sets.setdefault(name, []).append(self.rows[index])
        return sets


def _saved_retries(run: RunFolder) -> dict[int, int]:
    try:
        return {int(index): int(n) for index, n in read_json(run.search_file)["retries"].items()}
    except (RunError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def _closing(console: Any, plan: Plan, books: Books, best: list[dict[str, Any]], seconds: float) -> None:
    counts = Counter(record.status for record in books.records.values())
    words = [f"{counts[status]} {status}" for status in (FINISHED, STOPPED_EARLY, FAILED) if counts[status]]
    words += [f"{books.unfinished()} to go"] if books.unfinished() else []
    words += [f"{sum(books.retries.values())} times begun again"] if books.retries else []
    console.print(f"\n{_plural(plan.num_trials(), 'trial')}: {', '.join(words)}; {duration(seconds)}")
    metric = plan.meta.search_metric
    for row in best:
        searched = plan.space.values(books.records[row["trial"]].draw)
        told = ", ".join(f"{path} {number(v) if isinstance(v, float) else v}" for path, v in searched.items())
        console.print(f"best: t{row['trial']} with {metric} {number(row[metric])}: {told}")
    files = [plan.run.experiment_table.name, *([plan.run.best_spec_file.name] if best else [])]
    console.print(f"results in {plan.run.root}: {', '.join(files)}")
    if best:
        names = list(books._sets())
        console.print(f"  {lab.command(str(plan.run.best_spec_file), names[0], 'train', None)}", style="cyan")
        console.print(f"  {lab.command(str(plan.run.spec_file), plan.name, 'enjoy', plan.run)}", style="cyan")


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count:,} {word}s"
