"""One seeded run of one agent in one env: the training loop, its evaluations and its snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from slm_lab.agent.agent import Agent
from slm_lab.analysis.metrics import session_metrics
from slm_lab.analysis.plots import session_curve
from slm_lab.analysis.tables import read_table
from slm_lab.env import VectorEnv
from slm_lab.errors import Interrupted
from slm_lab.experiment.checkpoint import Checkpoints
from slm_lab.experiment.clock import Clock
from slm_lab.experiment.display import Progress
from slm_lab.experiment.evaluate import Evaluator
from slm_lab.experiment.folder import SessionFolder
from slm_lab.experiment.logbook import Logbook
from slm_lab.lib import seeds
from slm_lab.lib.files import write_json
from slm_lab.spec.schema import Spec

ROWS_OF_A_RUN = 100  # of the train table, where the spec does not say how often to log
SECONDS_BETWEEN_PICTURES = 60.0


class Session:
    """Resumes from the folder's checkpoint if it has one; otherwise begins."""

    def __init__(
        self,
        spec: Spec,
        folder: SessionFolder,
        *,
        report: Callable[[Progress], None],
        stop: Callable[[], bool] = lambda: False,
        live_seconds: float | None = None,
        render: bool = False,
    ):
        """`stop` is asked after each step; `live_seconds`: time between reports beside those of the evaluations."""
        torch.set_num_threads(1)
        self.spec = spec
        self.folder = folder.make()
        self.report = report
        self.stop = stop
        self.live_seconds = live_seconds
        self.render = render
        seed = seeds.derive(spec.meta.seed, "session", folder.index)
        self.clock = Clock()
        self.env = VectorEnv(spec.env, seed, render_mode="human" if render else None)
        self.agent = Agent(spec, self.env.observation_space, self.env.action_space, seed)
        episodes = spec.meta.rigorous_eval
        self.evaluator = Evaluator(spec.env, episodes, seed) if episodes else None
        self.logbook = Logbook(folder, spec.env.num_envs, self.agent.algorithm.reports)
        self.checkpoints = Checkpoints(folder)
        self.best: float | None = None
        self.log_frequency = spec.meta.log_frequency or max(1, spec.env.max_frame // ROWS_OF_A_RUN)
        self._reported_at = self._drawn_at = self.clock.wall_time

    def run(self) -> dict[str, Any]:
        """Train until max_frame; the metrics. Raises Interrupted, with all saved, when asked to stop."""
        try:
            obs = self._begin()
            while self.clock.frame < self.spec.env.max_frame:
                action = self.agent.act(obs, self.clock.frame)
                step = self.env.step(action)
                self.agent.remember(obs, action, step)
                self.clock.tick(self.env.num_envs)
                self.agent.learn(self.clock.frame)
                self.logbook.count(step)
                obs = step.obs
                self._keep_books()
                if self.stop():
                    self._save()
                    self._finish(f"stopped at frame {self.clock.frame}")
                    raise Interrupted
            return self._finish(f"done at frame {self.clock.frame}")
        except Exception as error:
            self.logbook.note(f"failed at frame {self.clock.frame}: {type(error).__name__}: {error}")
            raise
        finally:
            self._close()

    def _begin(self) -> Any:
        """(N, ...) the observations to act on: of a new run, or of the moment that the checkpoint holds."""
        if not self.folder.latest.exists() and not self.folder.previous.exists():
            self.logbook.note(f"begins with seed {self.spec.meta.seed}")
            return self.env.reset()
        tree, trouble = self.checkpoints.load()
        self.load_state_dict(tree)
        self.logbook.note(f"goes on from frame {self.clock.frame}" + (f" ({trouble})" if trouble else ""))
        return self.env.current_obs()

    def _keep_books(self) -> None:
        """What is due at this frame: a train row, an evaluation with a snapshot, a word to the user."""
        ends = self.clock.frame >= self.spec.env.max_frame
        evaluates = ends or self.clock.passed(self.spec.meta.eval_frequency)
        if evaluates or self.clock.passed(self.log_frequency):
            algorithm = self.agent.algorithm
            self.logbook.write_train(self.clock, algorithm.opt_step, algorithm.report(self.clock.frame))
        if evaluates:
            with self.clock.paused():
                self._evaluate()
                self._save()
                if self.clock.wall_time - self._drawn_at > SECONDS_BETWEEN_PICTURES:
                    self._draw()
            self._report()
        elif self.live_seconds is not None and self.clock.wall_time - self._reported_at >= self.live_seconds:
            self._report()

    def _evaluate(self) -> None:
        """Measure the agent and keep it if it is the best so far."""
        if self.evaluator is not None:
            evaluation = self.evaluator.run(self.agent, self.clock.frame)
            self.logbook.write_eval(self.clock, self.agent.algorithm.opt_step, evaluation)
            score = self.logbook.last(self.logbook.eval, "return")
        else:
            score = self.logbook.tally.moving_average
        if score is not None and (self.best is None or score >= self.best):
            self.best = score
            policy = self.agent.algorithm.policy_state()
            self.checkpoints.save_best({"frame": self.clock.frame, "score": score, "policy": policy})

    def _report(self, done: bool = False) -> None:
        self._reported_at = self.clock.wall_time
        book = self.logbook
        self.report(
            Progress(
                session=self.folder.index,
                frame=self.clock.frame,
                max_frame=self.spec.env.max_frame,
                fps=book.fps,
                train_return=book.tally.moving_average,
                eval_return=book.last(book.eval, "return"),
                loss=book.last(book.train, "loss"),
                done=done,
            )
        )

    def _save(self) -> None:
        self.checkpoints.save(self.state_dict())

    def _draw(self) -> None:
        self._drawn_at = self.clock.wall_time
        tables = read_table(self.folder.train_table), read_table(self.folder.eval_table)
        session_curve(self.folder.curve_file, *tables, f"{self.spec.name}, session {self.folder.index}")

    def _finish(self, text: str) -> dict[str, Any]:
        """The session's metrics, written and drawn."""
        metrics = session_metrics(read_table(self.folder.train_table), read_table(self.folder.eval_table))
        metrics = {"session": self.folder.index, **metrics}
        write_json(self.folder.metrics_file, metrics)
        self._draw()
        self._report(done=self.clock.frame >= self.spec.env.max_frame)
        self.logbook.note(text)
        return metrics

    def _close(self) -> None:
        self.logbook.close()
        self.env.close()
        if self.evaluator is not None:
            self.evaluator.close()

    def state_dict(self) -> dict:
        return {
            "clock": self.clock.state_dict(),
            "agent": self.agent.state_dict(),
            "env": self.env.state_dict(),
            "logbook": self.logbook.state_dict(),
            "best": self.best,
        }

    def load_state_dict(self, tree: dict) -> None:
        self.clock.load_state_dict(tree["clock"])
        self.agent.load_state_dict(tree["agent"])
        self.env.load_state_dict(tree["env"])
        self.logbook.load_state_dict(tree["logbook"])
        self.best = tree["best"]
