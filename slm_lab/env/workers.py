"""Sub-envs in worker processes: each worker steps some of them, all at the same time, with the same results.

gymnasium's AsyncVectorEnv starts a process for every sub-env and resets in a round of its own; here a worker has as
many as come to a core, resets within the step, and replays a saved state by itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from slm_lab.env.arrays import make_scatter
from slm_lab.env.make import EnvFault
from slm_lab.env.sub_envs import SubEnvs
from slm_lab.errors import LabError, RunError
from slm_lab.lib.machine import usable_cores
from slm_lab.spec.schema import EnvSpec
from slm_lab.types import Arrays, Lost, Step


class Workers:
    """`num_envs` sub-envs in `count` processes. Has the face of SubEnvs, whose keywords it takes."""

    def __init__(self, spec: EnvSpec, seed: int, num_envs: int, count: int | None = None, **keywords: Any):
        count = min(num_envs, count or usable_cores())
        self.name = spec.name
        self.restarts = bool(keywords.get("restarts"))
        self.shares = [list(map(int, share)) for share in np.array_split(np.arange(num_envs), count)]
        self.episode = [-1] * num_envs
        self.stream = "train"
        self._now = 0  # vector steps so far
        self._begun = [0] * num_envs  # `_now` when the current episode of each began
        self._obs: Arrays = None
        self._begin_with = (spec, seed, keywords)
        self._workers = [_Worker(spec, seed, share, keywords) for share in self.shares]
        try:
            action_space, *_ = self._answers()
            self._scatter = make_scatter(action_space)
        except BaseException:
            self.close()
            raise

    def begin(self, numbers: Sequence[int], stream: str) -> Arrays:
        self.stream, self.episode = stream, list(numbers)
        self._begun = [self._now] * len(numbers)
        self._forget_unbegun()
        self._ask("begin", [([numbers[index] for index in share], stream) for share in self.shares])
        return self._together(self._answers())

    def replay(self, numbers: Sequence[int], actions: Sequence[Arrays], stream: str) -> Arrays:
        self.stream, self.episode = stream, list(numbers)
        self._begun = [self._now - steps_in(taken) for taken in actions]
        self._forget_unbegun()
        told = [
            ([numbers[index] for index in share], [actions[index] for index in share], stream) for share in self.shares
        ]
        self._ask("replay", told)
        return self._together(self._answers())

    def step(self, action: Arrays) -> Step:
        self._ask("step", [(rows_of(action, share[0], share[-1] + 1),) for share in self.shares])
        steps = self._answers(action)
        self._now += 1
        ends = [step.goes_on if step.goes_on is not None else np.zeros(len(step.reward), np.bool_) for step in steps]
        obs = self._together([step.obs for step in steps])
        apart = any(step.obs is not step.next_obs for step in steps)
        terminated, truncated = (np.concatenate([step[place] for step in steps]) for place in (3, 4))
        goes_on = np.concatenate(ends)
        for index in np.flatnonzero((terminated | truncated) & ~goes_on):
            self.episode[index] += 1
            self._begun[index] = self._now
        self._obs = obs
        return Step(
            obs,
            self._together([step.next_obs for step in steps]) if apart else obs,
            np.concatenate([step.reward for step in steps]),
            terminated,
            truncated,
            goes_on=goes_on if goes_on.any() else None,
            lost=tuple(lost for step in steps for lost in step.lost),
        )

    def take_unbegun(self) -> list[Lost]:
        """Episodes since the last call that were passed over, because their reset failed."""
        taken = [lost for worker in self._workers for lost in worker.unbegun]
        self._forget_unbegun()
        for lost in taken:
            self.episode[lost.env] += 1
        return taken

    def _forget_unbegun(self) -> None:
        for worker in self._workers:
            worker.unbegun = []

    def render(self) -> Any:
        self._workers[0].ask("render")
        return self._workers[0].told()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _ask(self, call: str, arguments: list[tuple]) -> None:
        for worker, given in zip(self._workers, arguments, strict=True):
            with contextlib.suppress(OSError):  # of one that is dead, which its answer tells
                worker.ask(call, *given)

    def _answers(self, action: Arrays = None) -> list[Any]:
        """What every worker answers; after all have, the first fault is raised. `action`: of a step."""
        answers, faults = [], list[LabError]()
        for place, worker in enumerate(self._workers):
            try:
                answers.append(worker.told())
            except WorkerDied as death:
                reason = self._told_of(place, death, action)
                if action is not None and self.restarts:
                    answers.append(self._revived(place, reason))
                else:
                    faults.append(EnvFault(reason))
            except LabError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return answers

    def _told_of(self, place: int, death: WorkerDied, action: Arrays) -> str:
        chosen = None if action is None else self._scatter(action)
        where = "; ".join(self._moment(index, chosen) for index in self.shares[place])
        return f"env {self.name}: its worker process {death} ({where})"

    def _moment(self, index: int, chosen: list[Any] | None) -> str:
        told = f"sub-env {index}"
        if self.episode[index] >= 0:
            told += f", episode {self.episode[index]}, step {self._now - self._begun[index]}"
        return told if chosen is None else f"{told}, action {chosen[index]}"

    def _revived(self, place: int, reason: str) -> Step:
        """A new worker in the place of a dead one, with the next episodes; a step that tells of the lost ones."""
        share = self.shares[place]
        spec, seed, keywords = self._begin_with
        self._workers[place].close()
        worker = self._workers[place] = _Worker(spec, seed, share, keywords)
        try:
            worker.told()
            worker.ask("begin", [self.episode[index] + 1 for index in share], self.stream)
            obs = worker.told()
        except (WorkerDied, OSError) as death:
            raise EnvFault(f"{reason}; the one in its place {death} as its episodes began") from death
        before = rows_of(self._obs, share[0], share[-1] + 1)
        cut, none = np.ones(len(share), np.bool_), np.zeros(len(share))
        lost = tuple(Lost(index, reason) for index in share)
        return Step(obs, before, none, ~cut, cut, lost=lost)

    def _together(self, parts: list[Arrays]) -> Arrays:
        self._obs = together(parts)
        return self._obs


class WorkerDied(Exception):
    """A worker's process is no more."""


class _Worker:
    """A process with some sub-envs, and the pipe to it.

    It is a program of its own and no fork, which would copy torch's threads half, nor one of multiprocessing's, which
    run the user's main script again.
    """

    def __init__(self, spec: EnvSpec, seed: int, share: list[int], keywords: dict[str, Any]):
        self.unbegun: list[Lost] = []
        self.pipe, theirs = multiprocessing.Pipe()
        handle = theirs.fileno()
        code = f"from slm_lab.env.workers import serve; serve({handle})"
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), *sys.path)))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[handle],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is this process's matter
        )
        theirs.close()
        with contextlib.suppress(OSError):
            self.pipe.send((spec, seed, share, keywords))

    def ask(self, call: str, *arguments: Any) -> None:
        self.pipe.send((call, arguments))

    def told(self) -> Any:
        """The answer to the oldest question; a fault there is raised here."""
        try:
            right, answer, unbegun = self.pipe.recv()
        except (EOFError, OSError) as problem:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
            code = self.process.returncode
            how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
            raise WorkerDied(how) from problem
        if not right:
            raise answer
        self.unbegun += unbegun
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(handle: int) -> None:
    """A worker's process: does what is asked until the pipe ends."""
    pipe = Connection(handle)
    envs = None
    try:
        spec, seed, share, keywords = pipe.recv()
        try:
            envs = SubEnvs(spec, seed, share, **keywords)
        except LabError as fault:
            pipe.send((False, RunError(str(fault)), []))
            return
        pipe.send((True, envs.envs[0].action_space, []))
        while (told := pipe.recv()) is not None:
            call, arguments = told
            try:
                answer = True, getattr(envs, call)(*arguments), envs.take_unbegun()
            except LabError as fault:
                answer = False, type(fault)(str(fault)), []
            pipe.send(answer)
    except (EOFError, OSError):  # the parent is gone
        pass
    finally:
        if envs is not None:
            envs.close()


def steps_in(actions: Arrays) -> int:
    """How many there are of (T, ...) actions."""
    return len(next(iter(actions.values())) if isinstance(actions, dict) else actions)


def rows_of(values: Arrays, start: int, stop: int) -> Arrays:
    if isinstance(values, dict):
        return {key: part[start:stop] for key, part in values.items()}
    return values[start:stop]


def together(parts: list[Arrays]) -> Arrays:
    """Arrays of several workers as one."""
    if isinstance(parts[0], dict):
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)
