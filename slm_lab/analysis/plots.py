"""Learning curves as PNG files. Nothing global of matplotlib's changes, and no window is ever opened."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slm_lab.analysis.metrics import Columns, mean_band, return_curve
from slm_lab.lib.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# from Okabe and Ito's palette, told apart by colour-blind eyes and in grey print
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#999999"

_SIZE, _DPI = (8, 5), 150  # 1200 x 750 pixels
_FEW = 3  # so few points do not make a line that one sees


def session_curve(path: Path, train: Columns, eval: Columns, title: str) -> None:
    """Evaluation return against frames with its spread, and the training return's moving average behind it."""

    def draw(axes: Axes) -> None:
        if "return_ma" in train and np.isfinite(train["return_ma"]).any():
            style = {"color": ORANGE, "lw": 1.2, "alpha": 0.8}
            _line(axes, train["frame"], train["return_ma"], **style, label="training\n(moving average)")
        if "return" not in eval or not np.isfinite(eval["return"]).any():
            return
        spread = _spread(eval)
        if spread is not None:
            low, high, name = spread
            _band(axes, eval["frame"], low, high, label=f"evaluation\n({name})")
        _line(axes, eval["frame"], eval["return"], color=BLUE, lw=2, label="evaluation\n(mean)")

    _picture(path, title, draw)


def trial_curve(path: Path, session_tables: Sequence[tuple[Columns, Columns]], title: str) -> None:
    """The sessions' mean return with a band of one standard deviation; each session's own curve thin behind it.

    `session_tables` holds each session's (train, eval).
    """

    def draw(axes: Axes) -> None:
        found = [return_curve(train, eval) for train, eval in session_tables]
        curves = [(frames, returns) for frames, returns, _ in found if len(frames)]
        if not curves:
            return
        frames, mean, low, high = mean_band(curves)
        if len(curves) == 1:
            _line(axes, frames, mean, color=BLUE, lw=2, label="one session")
            return
        for place, curve in enumerate(curves):
            _line(axes, *curve, color=GREY, lw=0.8, label=None if place else "single sessions")
        _band(axes, frames, low, high, label="± 1 std")
        _line(axes, frames, mean, color=BLUE, lw=2, label=f"mean of\n{len(curves)} sessions")

    _picture(path, title, draw)


def _spread(eval: Columns) -> tuple[np.ndarray, np.ndarray, str] | None:
    """The best description of an evaluation's spread that its table has."""
    if "return_std" in eval and np.nanmax(eval["return_std"], initial=0) > 0:
        return eval["return"] - eval["return_std"], eval["return"] + eval["return_std"], "± 1 std"
    if "return_min" in eval and "return_max" in eval and np.isfinite(eval["return_min"]).any():
        return eval["return_min"], eval["return_max"], "min to max"
    return None


def _line(axes: Axes, frames: np.ndarray, values: np.ndarray, **style: Any) -> None:
    """A line through the values that exist; few of them are marked as points too."""
    known = np.isfinite(values)
    axes.plot(frames[known], values[known], marker="o" if known.sum() <= _FEW else None, ms=4, **style)


def _band(axes: Axes, frames: np.ndarray, low: np.ndarray, high: np.ndarray, label: str) -> None:
    known = np.isfinite(low) & np.isfinite(high)
    frames, low, high = frames[known], low[known], high[known]
    axes.fill_between(frames, low, high, color=BLUE, alpha=0.18, lw=0, label=label)
    if len(frames) <= _FEW:
        axes.vlines(frames, low, high, color=BLUE, alpha=0.35, lw=2)


def _picture(path: Path, title: str, draw: Callable[[Axes], None]) -> None:
    # matplotlib takes half a second to import, which only those who draw should wait for
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=_SIZE, dpi=_DPI, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=10, parse_math=False)
    axes.set_xlabel("frames")
    axes.set_ylabel("return")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#DDDDDD", lw=0.6)
    axes.set_axisbelow(True)
    draw(axes)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_label(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _return_label(value)))
        axes.set_xlim(0, axes.dataLim.x1 * 1.01 or 1)
        # an outside legend gets room of its own, so that no curve is ever behind it
        figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False, fontsize=9)
    else:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no returns yet", ha="center", va="center", color="#666666", transform=axes.transAxes)
    content = io.BytesIO()
    canvas.print_png(content)
    write_bytes(path, content.getvalue())


def count_label(value: float) -> str:
    """2000 -> "2k", 1.5e6 -> "1.5M", -0.5 -> "-0.5"."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def _return_label(value: float) -> str:
    """Like `count_label`, but 1,000 between 800 and 1,200."""
    return f"{value:,.4g}" if abs(value) < 1e4 else count_label(value)
