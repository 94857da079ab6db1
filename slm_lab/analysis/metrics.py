"""What a run achieved, as pure functions of its tables.

A table is a dict of float64 columns, as `read_table` gives it; NaN marks an empty cell. A metric that cannot be told is
None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Columns = Mapping[str, np.ndarray]
Curve = tuple[np.ndarray, np.ndarray]  # frames (T,) ascending, returns (T,)

_LAST_ROWS = 10  # evaluations in `final_return_ma`


def return_curve(train: Columns, eval: Columns) -> tuple[np.ndarray, np.ndarray, str]:
    """Frames (T,), returns (T,) without NaN, and their source: "eval", or "train" where there was no evaluation."""
    frames, returns = _curve(eval, "return")
    if len(frames):
        return frames, returns, "eval"
    return *_curve(train, "return_ma"), "train"


def session_metrics(train: Columns, eval: Columns, baseline: float | None = None) -> dict[str, Any]:
    """The session in a dozen numbers.

    - final_return: the last evaluation's mean return; final_return_ma: mean of the last ten evaluations
    - best_return, best_frame: the highest evaluation, and when it was first reached
    - area: the evaluation curve's mean height over frames (trapezoid rule)
    - strength: area above `baseline`, the random policy's mean return
    - wall_time: seconds of all that the session did; fps: frames per second of training, without evaluation and saving
    """
    frames, returns, source = return_curve(train, eval)
    metrics: dict[str, Any] = dict.fromkeys(
        ("source", "final_return", "final_return_ma", "best_return", "best_frame", "area", "strength")
    )
    if len(frames):
        best = int(np.argmax(returns))
        metrics = {
            "source": source,
            "final_return": float(returns[-1]),
            "final_return_ma": float(np.mean(returns[-_LAST_ROWS:])),
            "best_return": float(returns[best]),
            "best_frame": int(frames[best]),
            "area": (area := _mean_height(frames, returns)),
            "strength": None if baseline is None else area - baseline,
        }
    for name, column in (("frames", "frame"), ("opt_steps", "opt_step"), ("episodes", "episodes")):
        last = _highest(train, eval, column)
        metrics[name] = None if last is None else int(last)
    metrics["wall_time"] = _highest(train, eval, "wall_time")
    metrics["fps"] = training_fps(np.diff(train["frame"], prepend=0), train["fps"]) if "fps" in train else None
    return metrics


def training_fps(frames: np.ndarray, fps: np.ndarray) -> float | None:
    """Frames per second over several rows, of which each tells its frames and its fps, both (T,)."""
    known = np.isfinite(fps) & (fps > 0)
    seconds = np.sum(frames[known] / fps[known])
    return float(np.sum(frames[known]) / seconds) if seconds > 0 else None


def trial_metrics(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, std, min and max over the sessions that have it, for each number of `session_metrics`.

    The std is the sample's (divided by n - 1), None for a single session.
    """
    names = list(dict.fromkeys(name for session in sessions for name in session if name != "session"))
    metrics: dict[str, Any] = {"sessions": len(sessions)}
    for name in names:
        values = [session[name] for session in sessions if _is_number(session.get(name))]
        if values:
            metrics[name] = {
                "mean": float(np.mean(values)),
                "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
                "min": float(min(values)),
                "max": float(max(values)),
            }
    return metrics


def mean_band(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Frames, mean, low and high, each (T,): several curves on the frames of all, one std (sample's) up and down.

    Each curve counts within its own range only, by linear interpolation; frames that no curve covers are left out.
    """
    curves = [(frames, values) for frames, values in curves if len(frames)]
    if not curves:
        return np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    grid = np.unique(np.concatenate([frames for frames, _ in curves]).astype(np.float64))
    rows = np.stack([np.interp(grid, frames, values, left=np.nan, right=np.nan) for frames, values in curves])
    covered = np.isfinite(rows)
    count = covered.sum(axis=0)
    grid, rows, covered, count = grid[count > 0], rows[:, count > 0], covered[:, count > 0], count[count > 0]
    mean = np.where(covered, rows, 0).sum(axis=0) / count
    squares = np.where(covered, rows - mean, 0) ** 2
    std = np.sqrt(squares.sum(axis=0) / np.maximum(count - 1, 1))
    return grid, mean, mean - std, mean + std


def _curve(table: Columns, column: str) -> Curve:
    if column not in table:
        return np.empty(0), np.empty(0)
    known = np.isfinite(table[column]) & np.isfinite(table["frame"])
    return table["frame"][known], table[column][known]


def _mean_height(frames: np.ndarray, values: np.ndarray) -> float:
    span = frames[-1] - frames[0]
    if span <= 0:
        return float(np.mean(values))
    return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(frames)) / span)


def _highest(train: Columns, eval: Columns, column: str) -> float | None:
    """A running count's last value, in whichever table has it."""
    values = np.concatenate([np.empty(0), *(table[column] for table in (train, eval) if column in table)])
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
