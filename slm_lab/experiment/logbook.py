"""What a session writes down as it goes: the train and eval tables, the episodes it has seen, and a log in words."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime

import numpy as np

from slm_lab.analysis.metrics import training_fps
from slm_lab.experiment.clock import Clock
from slm_lab.experiment.evaluate import Evaluation
from slm_lab.experiment.folder import SessionFolder
from slm_lab.experiment.table import Table, Tally
from slm_lab.types import Step

TRAIN_COLUMNS = (
    *("frame", "wall_time", "fps", "episodes", "opt_step", "return", "return_ma", "length"),
    *("loss", "lr", "explore_var", "entropy_coef", "entropy", "grad_norm"),
)
EVAL_COLUMNS = (
    *("frame", "wall_time", "opt_step", "episodes", "return", "return_ma"),
    *("return_std", "return_min", "return_max", "length"),
)
EVALUATIONS_IN_AVERAGE = 10


class Logbook:
    def __init__(self, folder: SessionFolder, num_envs: int, reports: tuple[str, ...], *, fresh: bool = False):
        """`reports`: the columns that the algorithm adds to the train table; `fresh`: no rows of an earlier start."""
        self.folder = folder
        if fresh:
            folder.train_table.unlink(missing_ok=True)
            folder.eval_table.unlink(missing_ok=True)
        self.train = Table(folder.train_table, list(dict.fromkeys((*TRAIN_COLUMNS, *reports))))
        self.eval = Table(folder.eval_table, EVAL_COLUMNS)
        self.tally = Tally(num_envs)
        self._row_frame, self._row_time = 0, 0.0  # frame and training time of the last train row

    def count(self, step: Step) -> None:
        """What the env paid counts, whatever of it is learned from; and whole games, whatever their lives end."""
        ended = step.terminated | step.truncated
        for lost in step.lost:
            ended[lost.env] = False
        score = step.reward if step.score is None else step.score
        self.tally.add(score, ended if step.goes_on is None else ended & ~step.goes_on)
        for lost in step.lost:
            self.tally.forget(lost.env)

    def write_train(self, clock: Clock, opt_step: int, report: dict[str, float]) -> None:
        """A row about all that happened since the last one."""
        frames, seconds = clock.frame - self._row_frame, clock.training_time - self._row_time
        self._row_frame, self._row_time = clock.frame, clock.training_time
        episodes = self.tally.since()
        self.train.append(
            {
                "frame": clock.frame,
                "wall_time": clock.wall_time,
                "fps": frames / seconds if seconds > 0 else 0.0,
                "episodes": self.tally.episodes,
                "opt_step": opt_step,
                "return": sum(episode[0] for episode in episodes) / len(episodes) if episodes else None,
                "return_ma": self.tally.moving_average,
                "length": sum(episode[1] for episode in episodes) / len(episodes) if episodes else None,
                **report,
            }
        )

    def write_eval(self, clock: Clock, opt_step: int, evaluation: Evaluation) -> None:
        row = evaluation.row()
        rows = [*self.eval.rows[1 - EVALUATIONS_IN_AVERAGE :], row]
        returns = [row["return"] for row in rows if row["return"] is not None and not math.isnan(row["return"])]
        times = {"frame": clock.frame, "wall_time": clock.wall_time, "opt_step": opt_step}
        self.eval.append({**times, **row, "return_ma": sum(returns) / len(returns) if returns else None})

    def last(self, table: Table, column: str) -> float | None:
        """The newest number in that column; there may be rows without one."""
        return next((row[column] for row in reversed(table.rows) if row[column] is not None), None)

    @property
    def fps(self) -> float:
        """Over the last tenth of the rows: single ones jump where learning comes in bursts."""
        count = min(max(10, len(self.train.rows) // 10), 100)
        rows = self.train.rows[-count:]
        before = self.train.rows[-count - 1]["frame"] if len(self.train.rows) > count else 0
        columns = np.array([(row["frame"], row["fps"]) for row in rows], np.float64).reshape(-1, 2)
        return training_fps(np.diff(columns[:, 0], prepend=before), columns[:, 1]) or 0.0

    def note(self, text: str) -> None:
        note(self.folder, text)

    def close(self) -> None:
        self.train.close()
        self.eval.close()

    def state_dict(self) -> dict:
        return {
            "train": self.train.state_dict(),
            "eval": self.eval.state_dict(),
            "tally": self.tally.state_dict(),
            "row_frame": self._row_frame,
            "row_time": self._row_time,
        }

    def load_state_dict(self, tree: dict) -> None:
        self.train.load_state_dict(tree["train"])
        self.eval.load_state_dict(tree["eval"])
        self.tally.load_state_dict(tree["tally"])
        self._row_frame, self._row_time = int(tree["row_frame"]), float(tree["row_time"])


def note(folder: SessionFolder, text: str) -> None:
    """Its time and `text` in the session's log."""
    with suppress(OSError), open(folder.log_file, "a", encoding="utf-8") as file:  # the tables tell of a full disk
        file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}\n")
