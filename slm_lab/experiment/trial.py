"""The sessions of one trial: the same spec with different seeds, one after the other or one process each."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import traceback
from dataclasses import dataclass
from typing import Any

from slm_lab.analysis.metrics import trial_metrics
from slm_lab.analysis.plots import trial_curve
from slm_lab.analysis.tables import read_table
from slm_lab.errors import Interrupted, LabError, RunError
from slm_lab.experiment.display import Display
from slm_lab.experiment.folder import SessionFolder, TrialFolder
from slm_lab.experiment.interrupt import stop_on_signal
from slm_lab.experiment.session import Session
from slm_lab.lib.files import read_json, write_json
from slm_lab.spec.schema import Spec, read_spec

LIVE_SECONDS = 0.2
STOPPED = 130  # exit code of a session's process that was asked to stop


@dataclass(frozen=True)
class Failure:
    """What a session's process says when its session cannot go on."""

    session: int
    reason: str


class Trial:
    def __init__(self, spec: Spec, folder: TrialFolder, display: Display, *, render: bool = False):
        self.spec = spec
        self.folder = folder
        self.display = display
        self.render = render
        self.live_seconds = LIVE_SECONDS if display.console.is_terminal else None

    def run(self) -> list[dict[str, Any]]:
        """The metrics of all sessions. Raises Interrupted, with their states saved, when a signal asks to stop."""
        sessions = [self.folder.session(index) for index in range(self.spec.meta.max_session)]
        unfinished = [session for session in sessions if not self._is_finished(session)]
        workers = min(len(unfinished), usable_cores())
        try:
            if workers > 1:
                self._run_in_processes(unfinished, workers)
            else:
                self._run_here(unfinished)
        finally:
            metrics = self._summarise(sessions)
        return metrics

    def _is_finished(self, session: SessionFolder) -> bool:
        if not session.metrics_file.exists():
            return False
        return (read_json(session.metrics_file).get("frames") or 0) >= self.spec.env.max_frame

    def _run_here(self, sessions: list[SessionFolder]) -> None:
        with stop_on_signal(self._say_stopping) as stop:
            for folder in sessions:
                Session(
                    self.spec,
                    folder,
                    report=self.display.update,
                    stop=stop,
                    live_seconds=self.live_seconds,
                    render=self.render,
                ).run()

    def _run_in_processes(self, sessions: list[SessionFolder], workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        words, stop = context.Queue(), context.Event()
        waiting, running, failures = list(sessions), [], []

        def ask_to_stop() -> None:
            stop.set()
            self._say_stopping()

        with stop_on_signal(ask_to_stop):
            try:
                while running or (waiting and not stop.is_set()):
                    while waiting and len(running) < workers and not stop.is_set():
                        arguments = (
                            self.spec.to_tree(),
                            self.spec.name,
                            waiting.pop(0),
                            words,
                            stop,
                            self.live_seconds,
                        )
                        running.append(context.Process(target=_run_session, args=arguments, daemon=True))
                        running[-1].start()
                    failures += self._listen(words)
                    running = [process for process in running if process.is_alive()]
                failures += self._listen(words)
            finally:
                for process in running:
                    process.kill()
        if failures:
            raise RunError("\n".join(f"session {failure.session}: {failure.reason}" for failure in failures))
        if stop.is_set():
            raise Interrupted
        lost = [folder.root for folder in sessions if not self._is_finished(folder)]
        if lost:
            raise RunError(f"{', '.join(map(str, lost))}: the process died without a word; was memory short?")

    def _listen(self, words: multiprocessing.Queue) -> list[Failure]:
        """Show what the sessions' processes have said; the failures among it."""
        failures = []
        try:
            word = words.get(timeout=0.1)
            while True:
                if isinstance(word, Failure):
                    failures.append(word)
                else:
                    self.display.update(word)
                word = words.get_nowait()
        except queue.Empty:
            return failures

    def _say_stopping(self) -> None:
        self.display.note("stopping: the state is being saved (once more to stop at once)")

    def _summarise(self, sessions: list[SessionFolder]) -> list[dict[str, Any]]:
        """Write and draw the trial's level from what the sessions have left so far."""
        known = [session for session in sessions if session.metrics_file.exists()]
        metrics = [read_json(session.metrics_file) for session in known]
        if known:
            write_json(self.folder.metrics_file, trial_metrics(metrics))
            tables = [(read_table(session.train_table), read_table(session.eval_table)) for session in known]
            count = "1 session" if len(known) == 1 else f"{len(known)} sessions"
            trial_curve(self.folder.curve_file, tables, f"{self.spec.name}, {count}")
        return metrics


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_session(
    tree: dict[str, Any], name: str, folder: SessionFolder, words: Any, stop: Any, live_seconds: float | None
) -> None:
    """A session's process: obeys the parent's `stop`, not the terminal's Ctrl-C, which reaches it too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def asked() -> bool:
        return stop.is_set() or not parent.is_alive()

    try:
        spec = read_spec(tree, name)
        Session(spec, folder, report=words.put, stop=asked, live_seconds=live_seconds).run()
    except Interrupted:
        raise SystemExit(STOPPED) from None
    except LabError as error:
        words.put(Failure(folder.index, str(error)))
    except Exception as error:
        words.put(Failure(folder.index, f"{error}\n{traceback.format_exc()}"))
