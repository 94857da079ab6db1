"""What the user sees: one live block while sessions run, plain lines where nobody watches, and the closing table."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_REFRESH = 0.125  # seconds between two drawings of the live block
_ORDER = ("session", "bar", "frames", "fps", "return", "eval", "loss", "left")
_DROP = ("loss", "bar", "fps", "left", "return")  # what a narrow terminal does without, first to last
_BAR = (6, 30)  # narrowest, widest
_GAP = 2  # between two columns


@dataclass(frozen=True)
class Progress:
    session: int
    frame: int
    max_frame: int
    fps: float
    train_return: float | None
    eval_return: float | None
    loss: float | None
    done: bool = False


class Display:
    """Shows how sessions get on, while its `with` block lasts.

    On a terminal the block is drawn anew by `update`, at most eight times a second; no thread of its own draws.
    """

    def __init__(self, spec_name: str, num_sessions: int, verbosity: int = 0, console: Console | None = None):
        self.spec_name = spec_name
        self.num_sessions = num_sessions
        self.quiet = verbosity < 0
        self.verbose = verbosity > 0
        self.console = console or Console(highlight=False)
        self.live = self.console.is_terminal  # worth telling more than at each evaluation
        self._latest: dict[int, Progress] = {}
        self._drawn_at = -math.inf
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if self.console.is_terminal and not self.quiet:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._draw()
            self._live.stop()
            self._live = None

    def update(self, progress: Progress) -> None:
        before = self._latest.get(progress.session)
        self._latest[progress.session] = progress
        if self._live:
            if progress.done or time.monotonic() - self._drawn_at >= _REFRESH:
                self._draw()
        elif not self.quiet and (before is None or before.frame != progress.frame):
            _print_plain(self.console, self._line(progress))

    def note(self, text: str, warning: bool = False) -> None:
        """A line above the block; quiet shows the warnings only."""
        if warning:
            text = f"warning: {text}"
        if warning or not self.quiet:
            _print_plain(self.console, text, style="yellow" if warning else "")

    def detail(self, text: str) -> None:
        """A line that only those who asked for more want to see."""
        if self.verbose:
            self.note(text)

    def _draw(self) -> None:
        assert self._live is not None
        self._live.update(self._block(), refresh=True)
        self._drawn_at = time.monotonic()

    def _block(self) -> Table:
        """One line per session; a narrow terminal gets fewer columns, not broken lines."""
        sessions = sorted(self._latest.values(), key=lambda progress: progress.session)
        lines = [self._cells(progress) for progress in sessions]
        widths = {key: max(len(line[key]) for line in lines) for key in (lines[0] if lines else ())}
        widths["bar"] = _BAR[0]
        for key in _DROP if self.num_sessions > 1 else ("session", *_DROP):
            if _total(widths) <= self.console.width:
                break
            widths.pop(key, None)
        if "bar" in widths:
            widths["bar"] = min(_BAR[1], _BAR[0] + self.console.width - _total(widths))
        block = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        for progress, line in zip(sessions, lines, strict=True):
            bar = ProgressBar(total=max(1, progress.max_frame), completed=progress.frame, width=widths.get("bar"))
            block.add_row(*(bar if key == "bar" else Text(line[key], no_wrap=True) for key in _ORDER if key in widths))
        return block

    def _cells(self, progress: Progress) -> dict[str, str]:
        """The columns of the block as text, wide enough from the start that they stand still."""
        return {
            "session": self._label(progress),
            "frames": f"{short(progress.frame):>5}/{short(progress.max_frame)}",
            "fps": f"{short(progress.fps):>5} fps",
            "return": f"return {number(progress.train_return):>5}",
            "eval": f"eval {number(progress.eval_return):>5}",
            "loss": f"loss {number(progress.loss):<6}",
            "left": f"{_left(progress):<11}",
        }

    def _label(self, progress: Progress) -> str:
        return f"s{progress.session}" if self.num_sessions > 1 else self.spec_name[:20]

    def _line(self, progress: Progress) -> str:
        parts = [
            f"s{progress.session}" if self.num_sessions > 1 else "",
            f"{progress.frame:,}/{progress.max_frame:,} frames",
            f"{progress.fps:,.0f} fps",
            f"return {number(progress.train_return)}",
            f"eval {number(progress.eval_return)}",
            f"loss {number(progress.loss)}",
            _left(progress),
        ]
        return "  ".join(part for part in parts if part)


def closing(console: Console, rows: Sequence[Mapping[str, Any]], folder: Path, next_commands: Sequence[str]) -> None:
    """The sessions' metrics as a short table, their mean, where the results are, and what to do next.

    A row has the keys of `session_metrics` and `session`.
    """
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 1), pad_edge=False)
    for heading in ("session", "frames", "time", "fps", "final", "best"):
        table.add_column(heading, justify="left" if heading == "session" else "right", no_wrap=True)
    for row in rows:
        best = number(row.get("best_return"))
        if row.get("best_frame") is not None:
            best += f" @ {short(row['best_frame'])}"
        table.add_row(f"s{row['session']}", *_totals(row), best)
    if len(rows) > 1:
        mean = {key: _mean(row.get(key) for row in rows) for key in (*_TOTALS, "best_return")}
        table.add_row("mean", *_totals(mean), number(mean["best_return"]), style="bold")
    console.print()
    console.print(table)
    if any(row.get("source") == "train" for row in rows):
        _print_plain(console, "returns are training returns: there was no evaluation")
    _print_plain(console, f"results in {folder}")
    for command in next_commands:
        _print_plain(console, f"  {command}", style="cyan")


_TOTALS = ("frames", "wall_time", "fps", "final_return")


def _totals(row: Mapping[str, Any]) -> list[str]:
    frames, wall_time, fps, final_return = (row.get(key) for key in _TOTALS)
    return [short(frames), duration(wall_time), short(fps), number(final_return)]


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _print_plain(console: Console, text: str, style: str = "") -> None:
    """One line as it is: no markup, no wrapping, so that a path or command can be copied."""
    console.print(Text(text, style=style), soft_wrap=True)


def short(value: float | None) -> str:
    """950, 12.3k, 1.50M: a count in at most six characters."""
    if value is None or not math.isfinite(value):
        return "-"
    for bound, unit, suffix in ((1e4, 1, ""), (0.9995e6, 1e3, "k"), (0.9995e9, 1e6, "M")):
        if abs(value) < bound:
            scaled = value / unit
            text = f"{scaled:,.0f}" if unit == 1 or abs(scaled) >= 100 else f"{scaled:.3g}"
            return text + suffix
    return f"{value / 1e9:.3g}B"


def number(value: float | None) -> str:
    """A return or a loss, in about four digits."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value) or (value and not 1e-3 <= abs(value) < 1e6):
        return f"{value:.2g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """42s, 3m 05s, 2h 07m."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m {seconds:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m"


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _left(progress: Progress) -> str:
    if progress.done:
        return "done"
    if not progress.fps or not math.isfinite(progress.fps):
        return ""
    return f"{duration((progress.max_frame - progress.frame) / progress.fps)} left"
