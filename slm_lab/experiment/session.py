"""One seeded run of one agent in one env: the training loop, its evaluations and its snapshots."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from slm_lab.agent.agent import Agent
from slm_lab.agent.common import Common
from slm_lab.agent.stack import Stack
from slm_lab.analysis.metrics import session_metrics
from slm_lab.analysis.plots import session_curve
from slm_lab.analysis.tables import read_table
from slm_lab.env import EnvFault, VectorEnv
from slm_lab.env.baseline import known_baseline
from slm_lab.errors import Interrupted, RunError
from slm_lab.experiment.checkpoint import Checkpoints, taking_up
from slm_lab.experiment.clock import Clock
from slm_lab.experiment.display import Progress
from slm_lab.experiment.evaluate import Evaluator
from slm_lab.experiment.folder import SessionFolder
from slm_lab.experiment.logbook import Logbook
from slm_lab.lib import seeds
from slm_lab.lib.files import read_json, write_json
from slm_lab.spec.schema import Spec
from slm_lab.types import Step

ROWS_OF_A_RUN = 100  # of the train table, where the spec does not say how often to log
SECONDS_BETWEEN_PICTURES = 60.0
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"  # how a session ended, in its metrics


class Listener(Protocol):
    """Who is told how a session gets on: the display, or in a process of its own the wire to it."""

    def update(self, progress: Progress) -> None: ...

    def note(self, text: str, warning: bool = False) -> None: ...

    def detail(self, text: str) -> None: ...


class Session:
    """Resumes from the folder's checkpoint if it has one; otherwise begins."""

    def __init__(
        self,
        spec: Spec,
        folder: SessionFolder,
        listener: Listener,
        *,
        stop: Callable[[], bool] = lambda: False,
        live_seconds: float | None = None,
        render: bool = False,
        watch: Callable[[Agent, VectorEnv], Agent] = lambda agent, env: agent,
        common: Mapping[str, Common] | None = None,
        stack: Stack | None = None,
    ):
        """`stop` is asked after each step; `live_seconds`: time between reports beside those of the evaluations;
        `watch` may put a watched agent in the place of the agent; `common`: what the other sessions train too; `stack`:
        with which their learn steps are taken as one."""
        torch.set_num_threads(1)
        self.spec = spec
        self.folder = folder.make()
        self.listener = listener
        self.stop = stop
        self.live_seconds = live_seconds
        seed = session_seed(spec, folder.index)
        self.clock = Clock()
        self.env = self.make_env(render)
        spaces = self.env.observation_space, self.env.action_space
        agent = Agent(spec, *spaces, seed, self.env.goal_functions, folder.memory_folder, common)
        agent.keep_rows_in(folder.saved_rows)
        if stack is not None:
            agent.stack_with(stack)
        self.agent = watch(agent, self.env)
        self.carried = self.agent.first_carried(self.env.num_envs)  # by the net, through the episodes of training
        episodes = spec.meta.rigorous_eval
        restarts = spec.meta.on_env_error == "restart_episode"
        self.evaluator = Evaluator(spec.env, episodes, seed, self.env.statistics, restarts) if episodes else None
        self.checkpoints = Checkpoints(folder)
        self.resumes = folder.latest.exists() or folder.previous.exists()
        reports = self.agent.algorithm.reports
        with taking_up(folder):
            self.logbook = Logbook(folder, spec.env.num_envs, reports, fresh=not self.resumes)
        self.best: float | None = None
        self.evaluation_due = False
        self.failed_in: dict[str, Any] | None = None  # the step to be made, where an env failed in it
        self.told_of_evaluations = False
        self.diverged = False
        self.unsaved = ""  # why the last try to write something failed
        self.log_frequency = log_frequency(spec)
        self._reported_at = self._drawn_at = self.clock.wall_time

    def make_env(self, render: bool) -> VectorEnv:
        return VectorEnv(
            self.spec.env,
            session_seed(self.spec, self.folder.index),
            render_mode="human" if render else None,
            gamma=getattr(self.spec.agent.algorithm, "gamma", 1.0),
            restarts=self.spec.meta.on_env_error == "restart_episode",
        )

    def run(self) -> dict[str, Any]:
        """Train until max_frame; the metrics. Raises Interrupted, with all saved, when asked to stop."""
        try:
            obs = self._begin()
            self._obey_stop()
            self._train(obs)
        except Exception:
            if self.clock.frame:  # else nothing was trained, and what may be there is left as it is
                self._finish(FAILED)
            raise
        else:
            return self._finish(FINISHED)
        finally:
            self._close()

    def _train(self, obs: Any) -> None:
        while self.clock.frame < self.spec.env.max_frame:
            action = self._act(obs)
            step = self._step(action)
            self.agent.remember(obs, action, step, self.carried)
            self.clock.tick(self.env.num_envs)
            self.agent.learn(self.clock.frame)
            self.logbook.count(step)
            obs = step.obs
            self._keep_books()
            self._obey_stop()

    def _act(self, obs: Any) -> Any:
        """(N, ...) the actions for these observations, which may have been chosen before an env failed in them."""
        if self.failed_in is None:
            return self.agent.act(obs, self.clock.frame, carried=self.carried)
        action, self.failed_in = self.failed_in["action"], None
        return action

    def _step(self, action: Any) -> Step:
        """A step of the env; where it fails, the state of the moment before is saved, with the action to be made."""
        try:
            step = self.env.step(action)
        except EnvFault:
            if self.clock.frame:
                self.failed_in = {"action": action, "before": None if self.carried is None else self.carried.before}
                self._save()
            raise
        for lost in step.lost:
            self._warn(f"frame {self.clock.frame}: the episode is lost: {lost.reason}")
        if self.env.unbegun:
            self._warn_of_unbegun()
        return step

    def _warn_of_unbegun(self) -> None:
        for lost in self.env.take_unbegun():
            self._warn(f"frame {self.clock.frame}: the episode is passed over: {lost.reason}")

    def _begin(self) -> Any:
        """(N, ...) the observations to act on: of a new run, or of the moment that the checkpoint holds."""
        if not self.resumes:
            self.folder.best.unlink(missing_ok=True)  # of a start that came to no checkpoint
            self.logbook.note(f"begins with seed {self.spec.meta.seed}")
            obs = self.env.reset()
            self._warn_of_unbegun()
            return obs
        tree, trouble = self.checkpoints.load()
        with taking_up(self.folder):
            self.load_state_dict(tree)
        if trouble:
            self._warn(trouble)
        self._log(f"goes on from frame {self.clock.frame}")
        if self.env.strayed and self.failed_in is not None:
            self._choose_again()
        strayed = np.isin(np.arange(self.env.num_envs), self.env.strayed)
        if self.carried is not None:
            self.carried.begin_anew(strayed)
        for index in self.env.strayed:
            self.logbook.tally.forget(index)
            self._warn(f"{self.env.name} does not repeat itself exactly: sub-env {index} goes on with its next episode")
        if self.evaluation_due:
            self._take_stock()
        return self.env.current_obs()

    def _choose_again(self) -> None:
        """The actions that an env failed in are not for what the envs show now."""
        if self.carried is not None:
            self.carried.values = self.carried.before
        self.failed_in = None

    def _keep_books(self) -> None:
        """What is due at this frame: a train row, an evaluation with a snapshot, a word to the user."""
        ends = self.clock.frame >= self.spec.env.max_frame
        evaluates = ends or self.clock.passed(self.spec.meta.eval_frequency)
        if evaluates or self.clock.passed(self.log_frequency):
            algorithm = self.agent.algorithm
            report = self.agent.report(self.clock.frame)
            self._warn_of_divergence(report)
            with self._writing("a row of the train table"):
                self.logbook.write_train(self.clock, algorithm.opt_step, report)
        if evaluates:
            self._take_stock()
        elif self.live_seconds is not None and self.clock.wall_time - self._reported_at >= self.live_seconds:
            self._report()

    def _take_stock(self) -> None:
        """Evaluate, look into the memory, save, draw, report."""
        self.unsaved = ""
        with self.clock.paused():
            self._evaluate()
            if self.evaluation_due:
                return  # a stop was asked for
            if held := self.agent.describe_memory():
                self.logbook.note(f"frame {self.clock.frame}: memory {json.dumps(held)}")
            self._save()
            if self.clock.wall_time - self._drawn_at > SECONDS_BETWEEN_PICTURES:
                self._draw()
        self._report()

    def _evaluate(self) -> None:
        """Measure the agent and keep it if it is the best so far."""
        self.evaluation_due = True
        score = self.logbook.tally.moving_average
        if self.evaluator is not None:
            try:
                evaluation = self.evaluator.run(self.agent, self.clock.frame, self.stop)
            except EnvFault:
                self._save()  # the evaluation is still due
                raise
            if evaluation is None:
                return
            for reason in evaluation.lost:
                self._warn(reason)
            with self._writing("a row of the eval table"):
                self.logbook.write_eval(self.clock, self.agent.algorithm.opt_step, evaluation)
            score = float(evaluation.returns.mean()) if len(evaluation.returns) else None
            if evaluation.note and not self.told_of_evaluations:
                self.told_of_evaluations = True
                self.logbook.note(evaluation.note)
                self.listener.note(evaluation.note)
        self.evaluation_due = False
        if score is None or math.isnan(score) or (self.best is not None and score < self.best):
            return
        policy, statistics = self.agent.algorithm.policy_state(), self.env.statistics_state()
        with self._writing("the best policy"):
            best = {"frame": self.clock.frame, "score": score, "policy": policy, "statistics": statistics}
            self.checkpoints.save_best(best)
            self.best = score
            self.listener.detail(f"session {self.folder.index}: frame {self.clock.frame}, best so far: {score:g}")

    def _obey_stop(self) -> None:
        if self.evaluation_due or self.stop():
            self.unsaved = ""
            self._save()
            self._finish(STOPPED)
            raise Interrupted

    def _save(self) -> None:
        with self._writing("the checkpoint"):
            self.checkpoints.save(self.state_dict())
            self.agent.saved()
            size = self.folder.latest.stat().st_size / 1e6
            self.listener.detail(f"session {self.folder.index}: frame {self.clock.frame}, saved {size:.2f} MB")

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Where the disk refuses, the user is told and training goes on: the next checkpoint tries again."""
        try:
            yield
        except (OSError, RunError) as error:
            self.unsaved = f"{what} could not be written: {error}"
            self._warn(f"frame {self.clock.frame}: {self.unsaved}")

    def _report(self) -> None:
        self._reported_at = self.clock.wall_time
        book = self.logbook
        self.listener.update(
            Progress(
                session=self.folder.index,
                frame=self.clock.frame,
                max_frame=self.spec.env.max_frame,
                fps=book.fps,
                train_return=book.tally.moving_average,
                eval_return=book.last(book.eval, "return"),
                loss=book.last(book.train, "loss"),
                done=self.clock.frame >= self.spec.env.max_frame,
            )
        )

    def _warn_of_divergence(self, report: dict[str, float]) -> None:
        """Once, when a number of the learn steps is no longer finite: nothing good comes after that."""
        wrong = [name for name, value in report.items() if not math.isfinite(value)]
        if wrong and not self.diverged:
            self.diverged = True
            remedy = "lower agent.net.optim_spec.lr or set agent.net.clip_grad_val"
            self._warn(f"learning has diverged by frame {self.clock.frame}: {', '.join(wrong)} not finite; {remedy}")

    def _warn(self, text: str) -> None:
        self.logbook.note(f"warning: {text}")
        self.listener.note(f"session {self.folder.index}: {text}", warning=True)

    def _log(self, text: str) -> None:
        self.logbook.note(text)
        self.listener.detail(f"session {self.folder.index}: {text}")

    def _draw(self) -> None:
        self._drawn_at = self.clock.wall_time
        tables = read_table(self.folder.train_table), read_table(self.folder.eval_table)
        with self._writing("the learning curve"):
            session_curve(self.folder.curve_file, *tables, f"{self.spec.name}, session {self.folder.index}")

    def _finish(self, status: str) -> dict[str, Any]:
        """The session's metrics, written and drawn. Raises RunError if what it has come to is not all on disk."""
        unsaved = self.unsaved
        metrics = {
            "session": self.folder.index,
            "status": FAILED if unsaved else status,
            **table_metrics(self.folder, self.spec),
        }
        with self._writing("the metrics"):
            write_json(self.folder.metrics_file, metrics)
        self._draw()
        self._report()
        self._log(f"{metrics['status']} at frame {self.clock.frame}")
        if self.unsaved and status != FAILED:
            raise RunError(f"{self.folder.root}: at frame {self.clock.frame}, {unsaved or self.unsaved}")
        return metrics

    def _close(self) -> None:
        with self._writing("the rest of the tables"):
            self.logbook.close()
        with self._writing("the memory"):
            self.agent.close()
        self.env.close()
        if self.evaluator is not None:
            self.evaluator.close()

    def state_dict(self) -> dict:
        return {
            "clock": self.clock.state_dict(),
            "agent": self.agent.state_dict(),
            "env": self.env.state_dict(),
            "carried": None if self.carried is None else self.carried.state_dict(),
            "logbook": self.logbook.state_dict(),
            "best": self.best,
            "evaluation_due": self.evaluation_due,
            "failed_in": self.failed_in,
        }

    def load_state_dict(self, tree: dict) -> None:
        self.agent.load_state_dict(tree["agent"])
        self.env.load_state_dict(tree["env"])
        if self.carried is not None:
            self.carried.load_state_dict(tree["carried"])
        self._take_up_failed(tree.get("failed_in"))
        self.logbook.load_state_dict(tree["logbook"])
        self.best = None if tree["best"] is None else float(tree["best"])
        if self.best is not None and math.isnan(self.best):
            raise ValueError("the best score is no number")
        self.evaluation_due = bool(tree["evaluation_due"])
        self.clock.load_state_dict(tree["clock"])

    def _take_up_failed(self, failed_in: dict[str, Any] | None) -> None:
        self.failed_in = failed_in
        if failed_in is None:
            return
        if len(failed_in["action"]) != self.env.num_envs:
            raise ValueError(f"actions of {len(failed_in['action'])} envs")
        if self.carried is not None:
            self.carried.before = np.asarray(failed_in["before"]).reshape(self.carried.values.shape)


def log_frequency(spec: Spec) -> int:
    """Frames between rows of the train table: as the spec says, else by the length of the run."""
    return spec.meta.log_frequency or max(1, spec.env.max_frame // ROWS_OF_A_RUN)


def session_seed(spec: Spec, index: int) -> int:
    return seeds.derive(spec.meta.seed, "session", index)


def is_finished(folder: SessionFolder, max_frame: int) -> bool:
    """Whether the session came to its end, and that end is not before `max_frame`."""
    metrics = read_metrics(folder)
    return metrics.get("status") == FINISHED and (metrics.get("frames") or 0) >= max_frame


def table_metrics(folder: SessionFolder, spec: Spec) -> dict[str, Any]:
    """What its tables tell by now; the baseline is that of the spec's env, where it is known."""
    tables = read_table(folder.train_table), read_table(folder.eval_table)
    return session_metrics(*tables, known_baseline(spec.env))


def read_metrics(folder: SessionFolder) -> dict[str, Any]:
    """What the session has written of itself; nothing where that is damaged: it is written anew as the session ends."""
    if not folder.metrics_file.exists():
        return {}
    try:
        metrics = read_json(folder.metrics_file)
    except (RunError, RecursionError):
        return {}
    return metrics if _are_metrics(metrics) else {}


def _are_metrics(metrics: Any) -> bool:
    """Whether they can be what a session writes."""
    if not isinstance(metrics, dict) or metrics.get("status") not in (FINISHED, STOPPED, FAILED):
        return False
    numbers = [value for key, value in metrics.items() if key not in ("status", "source")]
    whole = (metrics.get(key) for key in ("session", "frames"))
    return all(value is None or isinstance(value, int | float) for value in numbers) and all(
        isinstance(value, int) and 0 <= value < 2**53 for value in whole
    )
