"""One learner, and workers that play for it wherever Ray has room (Ape-X: Horgan 2018).

The workers act with copies of the policy and send the rows that they see, each env's in time order, to the learner's
memory, where a worker is a `source`; the learner sends its parameters out again every so many frames. Workers never
wait for each other: a run cannot be repeated bit for bit. A worker that dies is begun anew; what it had not sent is
lost.
"""

from __future__ import annotations

import os
import time
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from slm_lab.experiment.remote.cluster import quieten

quieten()

import ray  # noqa: E402
from ray.exceptions import RayActorError, RayTaskError  # noqa: E402

from slm_lab.agent.agent import make_algorithm  # noqa: E402
from slm_lab.env import VectorEnv  # noqa: E402
from slm_lab.errors import RunError  # noqa: E402
from slm_lab.experiment.session import Session, session_seed  # noqa: E402
from slm_lab.experiment.table import Tally  # noqa: E402
from slm_lab.lib import seeds  # noqa: E402
from slm_lab.lib.trees import mapped  # noqa: E402
from slm_lab.spec.schema import Spec, read_spec  # noqa: E402
from slm_lab.types import Arrays  # noqa: E402

LONGEST_CHUNK = 64  # steps of a worker between two words to the learner
LONGEST_SILENCE, SECONDS_BETWEEN_TRIES = 60.0, 0.05
AHEAD = 2  # chunks that a worker is asked for, so that it plays while the learner learns


@ray.remote(max_restarts=-1)
class Worker:
    """Plays some envs with the policy that it was last given."""

    def __init__(self, tree: dict[str, Any], name: str, session: int, index: int):
        torch.set_num_threads(1)
        spec = read_spec(tree, name)
        again = ray.get_runtime_context().was_current_actor_reconstructed
        seed = seeds.derive(session_seed(spec, session), "worker", index, os.getpid() if again else 0)
        self.env = VectorEnv(spec.env, seed, gamma=getattr(spec.agent.algorithm, "gamma", 1.0))
        self.algorithm = make_algorithm(spec, self.env.observation_space, self.env.action_space, seed)
        self.tally = Tally(spec.env.num_envs)
        self.obs = self.env.reset()
        self.version = -1

    def play(self, policy: dict, version: int, frame: int, steps: int) -> tuple[dict[str, Arrays], list, int]:
        """Rows (steps, N, ...) of N envs, and (return, length) of the episodes that ended; `frame`: the learner's,
        which exploration goes by. And the worker's process."""
        if version != self.version:
            self.algorithm.load_policy_state(policy)
            self.version = version
        rows: list[dict[str, Arrays]] = []
        for _ in range(steps):
            action = self.algorithm.act(self.obs, frame, True)
            step = self.env.step(action)
            ended = step.terminated | step.truncated
            rows.append(
                {
                    "obs": self.obs,
                    "action": action,
                    "reward": step.reward,
                    "terminated": step.terminated,
                    "truncated": step.truncated,
                    "next_obs": step.next_obs,
                }
            )
            score = step.reward if step.score is None else step.score
            self.tally.add(score, ended if step.goes_on is None else ended & ~step.goes_on)
            self.obs = step.obs
        return {name: _stacked([row[name] for row in rows]) for name in rows[0]}, self.tally.since(), os.getpid()


class LearnerSession(Session):
    """A session whose frames are played by workers."""

    def __init__(self, spec: Spec, *arguments: Any, **more: Any):
        meta = spec.meta
        self.worker_spec = _with_envs(spec, meta.envs_per_worker or spec.env.num_envs)
        self.each = self.worker_spec.env.num_envs
        super().__init__(_with_envs(spec, self.each * meta.num_workers), *arguments, **more)
        self.deaths, self.processes, self.silent_since = 0, dict[int, int](), dict[int, float]()

    def make_env(self, render: bool) -> VectorEnv:
        """One copy, for what it tells of the spaces; it is not played."""
        return VectorEnv(_with_envs(self.spec, 1).env, session_seed(self.spec, self.folder.index))

    def _train(self, obs: Any) -> None:
        workers = self._start_workers()
        try:
            self._learn_from(workers)
        finally:
            for worker in workers:
                ray.kill(worker)

    def _start_workers(self) -> list[Any]:
        number = self.spec.meta.num_workers
        group = ray.util.get_current_placement_group()
        share = min(1.0, ray.cluster_resources().get("CPU", 1) / number)
        if group is not None:  # in a trial of a search, which has room set aside for them
            share = group.bundle_specs[1]["CPU"]
        make = Worker.options(num_cpus=share)
        tree = self.worker_spec.to_tree()
        return [make.remote(tree, self.spec.name, self.folder.index, index) for index in range(number)]

    def _learn_from(self, workers: list[Any]) -> None:
        every = self.spec.meta.broadcast_frequency
        steps = max(1, min(LONGEST_CHUNK, every // self.spec.env.num_envs))
        asked: dict[Any, int] = {}  # chunk -> the worker that plays it
        policy, version, sent_at = self._policy(), 0, self.clock.frame

        def ask(index: int) -> None:
            asked[workers[index].play.remote(policy, version, self.clock.frame, steps)] = index

        for index in list(range(len(workers))) * AHEAD:
            ask(index)
        while self.clock.frame < self.spec.env.max_frame:
            for chunk in ray.wait(list(asked), timeout=0.25)[0]:
                index = asked.pop(chunk)
                self._take(index, chunk)
                if self.clock.frame - sent_at >= every:
                    policy, version, sent_at = self._policy(), version + 1, self.clock.frame
                ask(index)
            self._obey_stop()

    def _policy(self) -> Any:
        return ray.put(self.agent.algorithm.policy_state())

    def _take(self, index: int, chunk: Any) -> None:
        """Remember what a worker has seen, and learn as often as so many frames call for."""
        try:
            rows, episodes, process = ray.get(chunk)
        except RayTaskError as error:
            raise RunError(f"worker {index}: {error.cause}") from error
        except RayActorError:
            self._wait_for(index)
            return
        self._greet(index, process)
        memory, first = self.agent.memory, index * self.each
        for env in range(self.each):
            memory.add_rows(mapped(itemgetter((slice(None), env)), rows), first + env, source=index)
        self.clock.tick(rows["reward"].size)
        self.agent.learn(self.clock.frame)
        self.logbook.tally.count(episodes)
        self._keep_books()

    def _wait_for(self, index: int) -> None:
        """A chunk did not come: its worker died, and Ray is about to begin it anew."""
        now = time.monotonic()
        if now - self.silent_since.setdefault(index, now) > LONGEST_SILENCE:
            raise RunError(f"worker {index} died, and did not begin anew within {LONGEST_SILENCE:g} s")
        time.sleep(SECONDS_BETWEEN_TRIES)

    def _greet(self, index: int, process: int) -> None:
        """A worker told of itself; if it is not the process that it was, the other has died."""
        self.silent_since.pop(index, None)
        if self.processes.setdefault(index, process) == process:
            return
        self.processes[index] = process
        self.deaths += 1
        self._warn(f"worker {index} died; it has begun anew")
        if self.deaths > self.spec.meta.max_failures:
            raise RunError(f"workers died {self.deaths} times; was memory short?")


def _with_envs(spec: Spec, number: int) -> Spec:
    return spec.model_copy(update={"env": spec.env.model_copy(update={"num_envs": number})})


def _stacked(values: list[Arrays]) -> Arrays:
    """(T, N, ...) of T arrays (N, ...), or of dicts of such."""
    if isinstance(values[0], dict):
        return {key: np.stack([value[key] for value in values]) for key in values[0]}
    return np.stack(values)
