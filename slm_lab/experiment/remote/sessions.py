"""The sessions of a trial as tasks of Ray's: one whose process died begins again from its own checkpoint."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from slm_lab.experiment.remote.cluster import quieten

quieten()

import ray  # noqa: E402
from ray.exceptions import RayError  # noqa: E402
from ray.util.queue import Queue  # noqa: E402

from slm_lab.errors import Interrupted  # noqa: E402
from slm_lab.experiment.folder import SessionFolder  # noqa: E402
from slm_lab.experiment.session import Session  # noqa: E402
from slm_lab.experiment.trial import Failure, Trial, Wire  # noqa: E402
from slm_lab.spec.schema import read_spec  # noqa: E402

SECONDS_BETWEEN_LOOKS = 0.25


@ray.remote(num_cpus=0)
class Bell:
    """Rung once, when all are to stop."""

    def __init__(self) -> None:
        self.rung = False

    def ring(self) -> None:
        self.rung = True

    def is_rung(self) -> bool:
        return self.rung


@ray.remote(num_cpus=1)
def run_session(tree: dict[str, Any], name: str, folder: SessionFolder, words: Queue, bell: Any, live: Any) -> None:
    looked_at, asked = 0.0, False

    def stop() -> bool:
        nonlocal looked_at, asked
        if not asked and time.monotonic() - looked_at > SECONDS_BETWEEN_LOOKS:
            looked_at = time.monotonic()
            asked = ray.get(bell.is_rung.remote())
        return asked

    try:
        Session(read_spec(tree, name), folder, Wire(words), stop=stop, live_seconds=live).run()
    except Interrupted:
        return
    except Exception as error:
        words.put(replace(Failure.of(folder, error), cause=None))


def run_sessions(trial: Trial, sessions: list[SessionFolder], stop: Any) -> list[Failure]:
    """All of them, wherever Ray has room; what went wrong."""
    words, bell = Queue(actor_options={"num_cpus": 0}), Bell.remote()
    tree, name = trial.spec.to_tree(), trial.spec.name
    task = run_session.options(max_retries=trial.spec.meta.max_failures)
    running = {
        task.remote(tree, name, folder.absolute(), words, bell, trial.live_seconds): folder for folder in sessions
    }
    failures: list[Failure] = []
    try:
        _follow(trial, running, words, bell, stop, failures)
    finally:  # a scheduler may have given the trial up
        for one in running:
            ray.cancel(one, force=True)
        ray.kill(bell)
        words.shutdown(force=True)
    return failures


def _follow(trial: Trial, running: dict, words: Queue, bell: Any, stop: Any, failures: list[Failure]) -> None:
    """Until none is running."""
    rung = False
    while running:
        ended, _ = ray.wait(list(running), timeout=0.1)
        if stop() and not rung:
            rung = True
            bell.ring.remote()
        failures += trial.listen(lambda seconds: words.get_nowait())
        for one in ended:
            folder = running.pop(one)
            try:
                ray.get(one)
            except RayError as error:
                reason = f"its process died, {trial.spec.meta.max_failures} times again: {type(error).__name__}"
                failures.append(Failure(folder, reason))
    failures += trial.listen(lambda seconds: words.get_nowait())
