import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from slm_lab.analysis import plots
from slm_lab.analysis.plots import count_label, session_curve, trial_curve

NAN = float("nan")
EMPTY = ({"frame": np.empty(0), "return_ma": np.empty(0)}, {"frame": np.empty(0), "return": np.empty(0)})


def tables(rows: int, nan: bool = False) -> tuple[dict, dict]:
    frame, height = np.arange(1.0, rows + 1) * 1000, np.sqrt(np.arange(rows))
    eval = {"frame": frame, "return": height.copy(), "return_min": height - 1, "return_max": height + 1}
    eval["return_std"] = np.full(rows, NAN if nan else 0.5)
    if nan:
        eval["return"][::2] = NAN
    return {"frame": frame, "return_ma": height / 2}, eval


@pytest.fixture
def drawn(monkeypatch):
    """The axes of each picture, as they were when it was written."""
    pictures = []
    real = plots._picture

    def recording(path, title, draw):
        real(path, title, lambda axes: (draw(axes), pictures.append(axes)))

    monkeypatch.setattr(plots, "_picture", recording)
    return pictures


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", [tables(20), tables(1), tables(20, nan=True), (tables(20)[0], {}), EMPTY, ({}, {})])
def test_every_session_gets_a_picture(tmp_path, case):
    path = tmp_path / "learning_curve.png"
    session_curve(path, *case, "dqn $cartpole_")
    assert imread(path).shape[:2] == (750, 1200)
    assert [file.name for file in tmp_path.iterdir()] == ["learning_curve.png"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "cases", [[tables(20)] * 5, [tables(20), tables(3), EMPTY], [tables(9, nan=True)], [EMPTY], []]
)
def test_every_trial_gets_a_picture(tmp_path, cases):
    path = tmp_path / "learning_curve.png"
    trial_curve(path, cases, "dqn")
    assert imread(path).shape[:2] == (750, 1200)


def test_a_session_without_returns_says_so(tmp_path, drawn):
    session_curve(tmp_path / "a.png", *EMPTY, "dqn")
    assert [text.get_text() for text in drawn[0].texts] == ["no returns yet"]


def test_a_single_point_of_either_curve_is_seen(tmp_path, drawn):
    session_curve(tmp_path / "a.png", *tables(1), "dqn")
    assert [line.get_marker() for line in drawn[0].get_lines()] == ["o", "o"]


def test_the_legend_tells_what_the_band_is(tmp_path, drawn):
    session_curve(tmp_path / "a.png", *tables(9), "dqn")
    session_curve(tmp_path / "b.png", *tables(9, nan=True), "dqn")
    trial_curve(tmp_path / "c.png", [tables(9), tables(9)], "dqn")
    labels = [set(axes.get_legend_handles_labels()[1]) for axes in drawn]
    assert "evaluation\n(± 1 std)" in labels[0]
    assert "evaluation\n(min to max)" in labels[1]
    assert labels[2] == {"single sessions", "± 1 std", "mean of\n2 sessions"}


def test_counts_are_labelled_in_thousands_and_millions():
    assert [count_label(value) for value in (0, 500, 2000, 1.5e6, -0.5)] == ["0", "500", "2k", "1.5M", "-0.5"]


def test_matplotlib_is_only_imported_to_draw():
    code = "import sys, slm_lab.analysis.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
