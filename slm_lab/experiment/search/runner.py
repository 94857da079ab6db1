"""A trial of a search, in a process of Ray's. What it comes to lies in the trial's own folder, so that wherever it is
begun again it goes on from there; Ray is told how it gets on, and can be told to give up."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ray import tune

from slm_lab.analysis.metrics import session_metrics, trial_metrics
from slm_lab.analysis.tables import read_table
from slm_lab.env.baseline import known_baseline
from slm_lab.errors import InputError, Interrupted, LabError
from slm_lab.experiment import lab
from slm_lab.experiment.folder import TrialFolder
from slm_lab.experiment.search.plan import ENDED, FAILED, FINISHED, Plan, Record
from slm_lab.experiment.session import table_metrics
from slm_lab.experiment.trial import Trial
from slm_lab.lib.files import read_json, write_json
from slm_lab.lib.lock import Lock, locked
from slm_lab.spec.schema import Spec

SECONDS_BETWEEN_LOOKS = 0.25  # for the word to stop
LONGEST_WAIT = 60.0  # seconds for another process of the same trial to end
DONOR = "donor.json"  # in a checkpoint of Ray's: whose it is


def run_trial(config: dict[str, Any], plan: Plan, tells_again: bool) -> None:
    """`config`: the trial's draw. `tells_again`: what a trial came to in an earlier run of the search is reported
    again, for a scheduler that has not heard it. An error ends in the trial's record, not in Ray."""
    index = int(tune.get_context().get_trial_name().removeprefix("t"))
    folder = plan.folder(index)
    if plan.started_in.is_dir():  # else on another machine, where a relative path cannot be meant
        os.chdir(plan.started_in)
    with _alone(folder) as lock:
        before = Record.read(folder, plan.space)
        record = Record(config["draw"], seed=None if before is None else before.seed)
        try:
            if tells_again:
                _tell_again(plan.read(index, record.draw), folder)
            if before is not None and before.status in ENDED:
                return
            record = _take_over(record, folder, index)
            spec, _ = lab.check(plan.read(index, record.draw, record.seed))
            write_json(folder.spec_file, {spec.name: spec.to_tree()})
            record.write(folder)
            told = Reporter(plan, spec, folder, index)
            Trial(spec, folder, told, lock=lock, stop=Stop(plan), workers=_workers(plan)).run()
        except Interrupted:
            return
        except Exception as error:
            reason = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
            replace(record, status=FAILED, error=reason).write(folder)
        else:
            replace(record, status=FINISHED).write(folder)


def _workers(plan: Plan) -> int:
    return max(1, int(plan.meta.search_resources.cpu))


@contextmanager
def _alone(folder: TrialFolder) -> Iterator[Lock]:
    """Holds the trial's lock, once a process that was killed with its machine, or is about to end, has let go of it."""
    folder.root.mkdir(exist_ok=True)
    ends = time.monotonic() + LONGEST_WAIT
    with ExitStack() as held:
        while True:
            try:
                lock = held.enter_context(locked(folder.lock_file, f"{folder.root} is being trained"))
                break
            except InputError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)
        yield lock


class Stop:
    """Whether the search was asked to stop: it leaves a file in the run's folder."""

    def __init__(self, plan: Plan):
        self.file = plan.run.stop_file
        self.looked_at, self.asked = 0.0, False

    def __call__(self) -> bool:
        if not self.asked and time.monotonic() - self.looked_at > SECONDS_BETWEEN_LOOKS:
            self.looked_at = time.monotonic()
            self.asked = self.file.exists()
        return self.asked


class Reporter:
    """Takes the display's place in a trial: each evaluation is reported to Ray."""

    live = False

    def __init__(self, plan: Plan, spec: Spec, folder: TrialFolder, index: int):
        self.plan, self.spec, self.folder, self.index = plan, spec, folder, index
        self.told: dict[int, int] = {}  # frames by session

    def update(self, progress: Any) -> None:
        if self.told.get(progress.session) == progress.frame:
            return
        self.told[progress.session] = progress.frame
        sessions = self.folder.sessions()
        report = _summary([table_metrics(session, self.spec) for session in sessions if session.eval_table.exists()])
        if self.plan.meta.search != "pbt":
            tune.report(report)
            return
        with TemporaryDirectory() as place:
            _pack(self.folder, self.index, self.spec.meta.seed, Path(place))
            tune.report(report, checkpoint=tune.Checkpoint.from_directory(place))

    def note(self, text: str, warning: bool = False) -> None:
        """The session's own log has it."""

    def detail(self, text: str) -> None:
        pass


def _summary(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """What Ray is told: frames of all sessions together, and the mean of each number over them."""
    metrics = trial_metrics(sessions)
    means = {name: values["mean"] for name, values in metrics.items() if isinstance(values, dict)}
    return {**means, "frame": sum(session.get("frames") or 0 for session in sessions)}


def _tell_again(spec: Spec, folder: TrialFolder) -> None:
    for report in history(spec, folder):
        tune.report(report)


def history(spec: Spec, folder: TrialFolder) -> Iterator[dict[str, Any]]:
    """What was reported of the trial so far, from its tables."""
    baseline, before = known_baseline(spec.env), list[dict[str, Any]]()
    for session in folder.sessions():
        if not (session.eval_table.exists() and session.train_table.exists()):
            continue
        train, evaluations = read_table(session.train_table), read_table(session.eval_table)
        for row, frame in enumerate(evaluations.get("frame", ())):
            early = {name: column[train["frame"] <= frame] for name, column in train.items()}
            until_now = {name: column[: row + 1] for name, column in evaluations.items()}
            metrics = session_metrics(early, until_now, baseline)
            yield _summary([*before, metrics])
        before.append(table_metrics(session, spec))


def _pack(folder: TrialFolder, index: int, seed: int | None, place: Path) -> None:
    """The state of its sessions, for another trial to take over."""
    write_json(place / DONOR, {"trial": index, "seed": seed})
    for session in folder.sessions():
        target = place / session.root.name
        shutil.copytree(session.root, target, ignore=shutil.ignore_patterns("memory", "*.png", "previous.*"))


def _take_over(record: Record, folder: TrialFolder, index: int) -> Record:
    """Where Ray hands this trial the state of another, that becomes its own, with the seeds that its episodes have."""
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return record
    with checkpoint.as_directory() as place:
        donor = read_json(Path(place) / DONOR)
        if donor["trial"] == index:
            return record  # its own folder is further on
        for session in folder.sessions():
            shutil.rmtree(session.root)
        for state in Path(place).glob("s*"):
            shutil.copytree(state, folder.root / state.name)
    return replace(record, seed=donor["seed"])
