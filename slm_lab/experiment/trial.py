"""The sessions of one trial: the same spec with different seeds, one after the other or one process each."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from slm_lab.agent.agent import Agent, compile_pays
from slm_lab.agent.common import Common
from slm_lab.agent.stack import Stack
from slm_lab.analysis.metrics import trial_metrics
from slm_lab.analysis.plots import trial_curve
from slm_lab.analysis.tables import read_table
from slm_lab.env import VectorEnv
from slm_lab.errors import InputError, Interrupted, LabError, RunError
from slm_lab.experiment.display import Display, Progress
from slm_lab.experiment.distributed import make_common, spec_of_session
from slm_lab.experiment.folder import SessionFolder, TrialFolder
from slm_lab.experiment.interrupt import SIGNALS, signals_held_back, stop_on_signal
from slm_lab.experiment.logbook import note
from slm_lab.experiment.remote.cluster import ray_running
from slm_lab.experiment.session import Session, is_finished, read_metrics
from slm_lab.lib.files import write_json
from slm_lab.lib.lock import Lock
from slm_lab.lib.machine import usable_cores
from slm_lab.spec.schema import Spec, read_spec

LIVE_SECONDS = 0.2
SECONDS_BETWEEN_LOOKS = 0.05  # of a session's process at its parent


@dataclass(frozen=True)
class Failure:
    """Why a session could not go on."""

    folder: SessionFolder
    error: str
    cause: Exception | None = None  # where it happened in this process
    of_input: bool = False  # it never began: what it was to go on from cannot be used

    @classmethod
    def of(cls, folder: SessionFolder, error: Exception) -> Failure:
        """For an error that was just caught: its traceback goes into the session's log."""
        note(folder, traceback.format_exc())
        known = isinstance(error, LabError)
        told = str(error) if known else f"{type(error).__name__}: {error} (a fault of the lab)"
        return cls(folder, told, error, isinstance(error, InputError))

    def __str__(self) -> str:
        return f"session {self.folder.index}: {self.error}; the traceback is in {self.folder.log_file}"


class Trial:
    def __init__(
        self,
        spec: Spec,
        folder: TrialFolder,
        display: Display,
        *,
        lock: Lock | None = None,
        render: bool = False,
        watch: Callable[[Agent, VectorEnv], Agent] | None = None,
        stop: Callable[[], bool] | None = None,
        workers: int | None = None,
    ):
        """`lock`: on the run, for the sessions' processes to hold too; `render`: the first session's env in a window;
        `watch`: as `Session` takes it, for a trial of one session; `stop`: asked in the place of signals; `workers`:
        processes at the same time, else as many as there are cores."""
        self.spec = spec
        self.folder = folder
        self.display = display
        self.lock = lock
        self.render = render
        self.extras: dict[str, Any] = {} if watch is None else {"watch": watch}
        self.stop = stop
        self.workers = workers or usable_cores()
        self.live_seconds = LIVE_SECONDS if display.live else None
        self.sessions = [folder.session(index) for index in range(spec.meta.max_session)]
        self.common: dict[str, Common] | None = None  # what they train together, by learner

    def run(self) -> list[dict[str, Any]]:
        """The metrics of all sessions. Raises Interrupted, with their states saved, when a signal asks to stop, and
        RunError where a session failed, once the others have come to their end, or, where they train together, have
        stopped."""
        unfinished = self.unfinished()
        workers = min(len(unfinished), self.workers)
        if self.spec.meta.shares:
            workers = len(unfinished)
        with stop_on_signal(self._say_stopping) if self.stop is None else nullcontext(self.stop) as stop:
            if self.spec.meta.shares and unfinished:
                self._join(unfinished)
            failures = self._way_to_run(workers)(unfinished, workers, stop)
            metrics = self._summarise(failures)
            if stop():
                raise Interrupted(getattr(stop, "exit_code", 130))
        if failures:
            told = list(map(str, failures))
            if self.common and len(unfinished) > 1:
                told.append("sessions that were training with it were stopped, with their states saved")
            kind = InputError if all(failure.of_input for failure in failures) else RunError
            raise kind("\n".join(told)) from failures[0].cause
        return metrics

    def _way_to_run(self, workers: int) -> Callable[..., list[Failure]]:
        parallel = self.spec.meta.parallel
        if self.spec.meta.distributed == "actors":
            return self._run_with_actors
        if parallel == "ray":
            return self._run_on_ray
        if parallel == "stack":
            return self._run_stacked
        return self._run_in_processes if parallel == "process" or workers > 1 else self._run_here

    def unfinished(self) -> list[SessionFolder]:
        wanted = {folder: spec_of_session(self.spec, folder.index).env.max_frame for folder in self.sessions}
        return [folder for folder, max_frame in wanted.items() if not is_finished(folder, max_frame)]

    def _join(self, sessions: list[SessionFolder]) -> None:
        """Make what these sessions train together."""
        self.common, source = make_common(self.spec, self.sessions)
        if len(sessions) > 1:
            how = "the run cannot be repeated or resumed bit for bit"
            self.display.note(f"{len(sessions)} sessions train one set of parameters, without locks: {how}")
        if source is not None and len(self.sessions) > 1:
            self.display.note(f"the parameters are those that session {source.index} has saved")

    def _run_here(
        self,
        sessions: list[SessionFolder],
        workers: int,
        stop: Callable[[], bool],
        stack: Stack | None = None,
        kind: type[Session] = Session,
    ) -> list[Failure]:
        """One after the other in this process."""
        failures: list[Failure] = []
        for folder in sessions:
            if stop():
                break
            render = self.render and folder.index == 0
            try:
                kind(
                    spec_of_session(self.spec, folder.index),
                    folder,
                    self.display,
                    stop=stop,
                    live_seconds=self.live_seconds,
                    render=render,
                    common=self.common,
                    stack=stack,
                    **self.extras,
                ).run()
            except Interrupted:
                break
            except Exception as error:  # one session's end is not the others'
                failures.append(Failure.of(folder, error))
                self._say_failed(failures[-1])
        return failures

    def _run_with_actors(self, sessions: list[SessionFolder], workers: int, stop: Callable[[], bool]) -> list[Failure]:
        """One after the other in this process, each with workers of its own."""
        with ray_running():
            from slm_lab.experiment.remote.actors import LearnerSession

            self.display.note(f"{self.spec.meta.num_workers} workers play: the run cannot be repeated bit for bit")
            return self._run_here(sessions, workers, stop, kind=LearnerSession)

    def _run_in_processes(self, sessions: list[SessionFolder], workers: int, stop: Callable[[], bool]) -> list[Failure]:
        """At most so many at a time, each in its own process."""
        context = multiprocessing.get_context("spawn")
        waiting, running, failures = list(sessions), dict[int, Any](), list[Failure]()
        with signals_held_back():  # the first of these starts a helper process of Python's
            words, stop_event = context.Queue(), context.Event()
        try:
            while running or waiting:
                if stop() or (failures and self.common):
                    stop_event.set()
                    waiting.clear()
                while waiting and len(running) < workers:
                    folder = waiting.pop(0)
                    render = self.render and folder.index == 0
                    tree = spec_of_session(self.spec, folder.index).to_tree()
                    told = (words, stop_event, self.live_seconds, render, self.lock, self.common)
                    arguments = (tree, self.spec.name, folder, *told)
                    running[folder.index] = context.Process(target=_run_session, args=arguments, daemon=True)
                    with signals_held_back():
                        running[folder.index].start()
                ended = [index for index, process in running.items() if not process.is_alive()]
                # after the look: what an ended process said is there by now
                failures += self.listen(partial(words.get, True))
                for index in ended:
                    failures += self._unheard(running.pop(index), self.folder.session(index), failures)
        finally:
            for process in running.values():
                process.kill()
        return failures

    def _run_on_ray(self, sessions: list[SessionFolder], workers: int, stop: Callable[[], bool]) -> list[Failure]:
        """As tasks of Ray's, wherever it has room."""
        with ray_running():
            from slm_lab.experiment.remote.sessions import run_sessions

            return run_sessions(self, sessions, stop) if sessions else []

    def _run_stacked(self, sessions: list[SessionFolder], workers: int, stop: Callable[[], bool]) -> list[Failure]:
        """All in this process, in turns, with their learn steps taken as one."""
        stack = Stack(len(sessions), compile_pays(self.spec))
        failures: list[Failure] = []

        def run(folder: SessionFolder) -> None:
            with stack.session():
                failures.extend(self._run_here([folder], 1, stop, stack))

        threads = [threading.Thread(target=run, args=(folder,), daemon=True) for folder in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures

    def listen(self, word: Callable[[float], Any]) -> list[Failure]:
        """Show what the sessions' processes have said; the failures among it. `word`: the next that is there within so
        many seconds, or queue.Empty."""
        failures, patience = [], 0.1
        try:
            while True:
                said, patience = word(patience), 0.0
                if isinstance(said, Failure):
                    failures.append(said)
                    self._say_failed(said)
                else:
                    method, arguments = said
                    getattr(self.display, method)(*arguments)
        except queue.Empty:
            return failures

    def _unheard(self, process: Any, folder: SessionFolder, failures: list[Failure]) -> list[Failure]:
        """The failure of a process that ended without being able to tell of it."""
        if process.exitcode == 0 or any(failure.folder == folder for failure in failures):
            return []
        reason = f"its process ended with code {process.exitcode} and no word"
        if process.exitcode == -signal.SIGKILL:
            reason = "its process was killed; was memory short?"
        failure = Failure(folder, reason)
        self._say_failed(failure)
        return [failure]

    def _say_stopping(self) -> None:
        self.display.note("stopping: the state is being saved (once more to stop at once)")

    def _say_failed(self, failure: Failure) -> None:
        if len(self.sessions) > 1:
            self.display.note(str(failure), warning=True)

    def _summarise(self, failures: list[Failure]) -> list[dict[str, Any]]:
        """Write and draw the trial's level from what the sessions have left so far, but for those that are damaged."""
        damaged = [failure.folder for failure in failures if failure.of_input]
        known = [session for session in self.sessions if session not in damaged and read_metrics(session)]
        metrics = [read_metrics(session) for session in known]
        if known:
            write_json(self.folder.metrics_file, trial_metrics(metrics))
            tables = [(read_table(session.train_table), read_table(session.eval_table)) for session in known]
            count = "1 session" if len(known) == 1 else f"{len(known)} sessions"
            trial_curve(self.folder.curve_file, tables, f"{self.spec.name}, {count}")
        return metrics


class Wire:
    """What a session in a process of its own tells goes through here to the parent's display."""

    def __init__(self, words: Any):
        self.words = words

    def update(self, progress: Progress) -> None:
        self.words.put(("update", (progress,)))

    def note(self, text: str, warning: bool = False) -> None:
        self.words.put(("note", (text, warning)))

    def detail(self, text: str) -> None:
        self.words.put(("detail", (text,)))


def _run_session(
    tree: dict[str, Any],
    name: str,
    folder: SessionFolder,
    words: Any,
    stop: Any,
    live_seconds: float | None,
    render: bool,
    lock: Lock | None,
    common: dict[str, Common] | None,
) -> None:
    """A session's process: obeys the parent's `stop`, not the terminal's Ctrl-C, which reaches it too."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    looked_at, asked = 0.0, False

    def asked_to_stop() -> bool:
        nonlocal looked_at, asked
        if not asked and time.monotonic() - looked_at > SECONDS_BETWEEN_LOOKS:
            looked_at = time.monotonic()
            asked = stop.is_set() or parent is None or not parent.is_alive()
        return asked

    try:
        spec = read_spec(tree, name)
        Session(
            spec, folder, Wire(words), stop=asked_to_stop, live_seconds=live_seconds, render=render, common=common
        ).run()
    except Interrupted:
        return
    except Exception as error:
        failure = Failure.of(folder, error)
        words.put(replace(failure, cause=None))  # which may not survive the way
