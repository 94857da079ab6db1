"""What the user sees of a search: its trials as a live table, or a line for each that ends where nobody watches."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slm_lab.experiment.display import duration, number, short

_REFRESH = 0.25  # seconds between two drawings
_ENDED_SHOWN = 5  # trials that ended last, beside those that run
WAITING = "waiting"


@dataclass
class Line:
    """What is known of a trial."""

    index: int
    values: dict[str, Any]
    status: str = WAITING
    frame: int = 0
    score: float | None = None
    error: str = ""
    changed_at: float = field(default_factory=time.monotonic)

    def label(self) -> str:
        return " ".join(f"{path.rpartition('.')[2]}={_text(value)}" for path, value in self.values.items())


class Board:
    """Shows how a search gets on, while its `with` block lasts."""

    def __init__(self, metric: str, mode: str, total: int, frames: int, console: Console, verbosity: int = 0):
        """`total`: trials; `frames`: of a trial that comes to its end."""
        self.metric, self.sign, self.total, self.frames = metric, 1 if mode == "max" else -1, total, frames
        self.console, self.quiet = console, verbosity < 0
        self.lines: dict[int, Line] = {}
        self._began, self._frames_before = time.monotonic(), 0
        self._drawn_at = -math.inf
        self._live: Live | None = None

    def __enter__(self) -> Board:
        self._began, self._frames_before = time.monotonic(), self._done()
        if self.console.is_terminal and not self.quiet:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._draw()
            self._live.stop()
            self._live = None

    def know(self, index: int, values: dict[str, Any], status: str, row: dict[str, Any] | None = None) -> None:
        """A trial of an earlier run of the search."""
        row = row or {}
        self.lines[index] = Line(index, values, status, int(row.get("frames") or 0), row.get(self.metric))

    def started(self, index: int, values: dict[str, Any]) -> None:
        line = self.lines.setdefault(index, Line(index, values))
        line.status, line.values, line.changed_at = "running", values, time.monotonic()
        self.refresh()

    def told(self, index: int, report: dict[str, Any]) -> None:
        line = self.lines.setdefault(index, Line(index, {}))
        line.frame = max(line.frame, int(report.get("frame") or 0))
        line.score = report.get(self.metric, line.score)
        self.refresh()

    def ended(self, index: int, status: str, error: str = "") -> None:
        line = self.lines.setdefault(index, Line(index, {}))
        line.status, line.error, line.changed_at = status, error, time.monotonic()
        if self._live:
            self.refresh()
        elif not self.quiet:
            self._print(self._plain(line))
        if error:
            self._print(f"warning: t{index}: {error}", "yellow")

    def note(self, text: str, warning: bool = False) -> None:
        if warning or not self.quiet:
            self._print(f"warning: {text}" if warning else text, "yellow" if warning else "")

    def refresh(self) -> None:
        """Draw, if the last time is long enough ago."""
        if self._live and time.monotonic() - self._drawn_at >= _REFRESH:
            self._draw()

    def best(self) -> Line | None:
        known = [line for line in self.lines.values() if line.score is not None and math.isfinite(line.score)]
        return max(known, key=lambda line: self.sign * (line.score or 0), default=None)

    def summary(self) -> str:
        counts = Counter(line.status for line in self.lines.values())
        words = [f"{count} {status}" for status, count in counts.items() if status != WAITING]
        best = self.best()
        words += [f"best {self.metric} {number(best.score)} (t{best.index})"] if best else []
        return (
            f"{sum(line.status != WAITING for line in self.lines.values())} of {self.total} trials: {', '.join(words)}"
        )

    def left(self) -> str:
        """How long what is left will take, at the speed so far."""
        done = self._done()
        if done <= self._frames_before or done >= self.total * self.frames:
            return ""
        seconds = (time.monotonic() - self._began) * (self.total * self.frames - done) / (done - self._frames_before)
        return f", {duration(seconds)} left"

    def _done(self) -> int:
        """Frames, where trials that have ended need no more."""
        ended = [line for line in self.lines.values() if line.status not in ("running", WAITING, "interrupted")]
        going = sum(min(line.frame, self.frames) for line in self.lines.values() if line not in ended)
        return len(ended) * self.frames + going

    def _draw(self) -> None:
        assert self._live is not None
        self._live.update(self._block(), refresh=True)
        self._drawn_at = time.monotonic()

    def _block(self) -> Table:
        running = [line for line in self.lines.values() if line.status == "running"]
        ended = sorted((line for line in self.lines.values() if line.status not in ("running", WAITING)), key=_when)
        best = self.best()
        shown = {line.index: line for line in (*([best] if best else ()), *ended[-_ENDED_SHOWN:], *running)}
        block = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        for index in sorted(shown):
            line = shown[index]
            cells = [f"t{index}", line.status, f"{short(line.frame)}/{short(self.frames)}", number(line.score)]
            style = "bold" if line is best else "dim" if line.status != "running" else ""
            block.add_row(*(Text(cell, no_wrap=True, style=style) for cell in cells), Text(line.label(), style=style))
        whole = Table.grid()
        whole.add_row(block)
        whole.add_row(Text(f"{self.summary()}{self.left()}"))
        return whole

    def _plain(self, line: Line) -> str:
        score = f"{self.metric} {number(line.score)}"
        return f"t{line.index}  {line.status}  {line.frame:,} frames  {score}  {line.label()}".rstrip()

    def _print(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)


def _when(line: Line) -> float:
    return line.changed_at


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
