import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from slm_lab.experiment.display import Display, Progress, closing, duration, number, short

HALF = Progress(
    session=0, frame=50_000, max_frame=100_000, fps=5_000.0, train_return=21.5, eval_return=487.25, loss=0.0123
)


def console(width: int = 100, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def output(console: Console) -> str:
    return console.file.getvalue()


def last_block(console: Console) -> list[str]:
    """The lines of the live block as it was last drawn, after the codes that wipe the one before."""
    return re.split(r"\x1b\[\??\d*[A-Za-z]", output(console).removesuffix("\x1b[?25h"))[-1].splitlines()


def test_a_pipe_gets_one_plain_line_for_each_new_frame():
    out = console()
    with Display("dqn", 1, console=out) as display:
        display.update(HALF)
        display.update(HALF)
        display.update(replace(HALF, frame=100_000, done=True))
    assert output(out).splitlines() == [
        "50,000/100,000 frames  5,000 fps  return 21.5  eval 487.2  loss 0.0123  10s left",
        "100,000/100,000 frames  5,000 fps  return 21.5  eval 487.2  loss 0.0123  done",
    ]


def test_lines_of_several_sessions_say_whose_they_are():
    out = console()
    with Display("dqn", 2, console=out) as display:
        display.update(HALF)
        display.update(replace(HALF, session=1, fps=0.0, train_return=None, eval_return=None, loss=float("nan")))
    first, second = output(out).splitlines()
    assert first.startswith("s0  50,000/")
    assert second == "s1  50,000/100,000 frames  0 fps  return -  eval -  loss -"


def test_quiet_shows_warnings_only():
    for terminal in (True, False):
        out = console(terminal=terminal)
        with Display("dqn", 1, verbosity=-1, console=out) as display:
            display.update(HALF)
            display.note("resumed at frame 5")
            display.note("disk full", warning=True)
        assert output(out) == "warning: disk full\n"


def test_a_note_is_printed_as_it_is_however_long():
    out = console(width=20)
    with Display("dqn", 1, console=out) as display:
        display.note("see [data]/dqn_cartpole_2026_01_02_030405")
    assert output(out) == "see [data]/dqn_cartpole_2026_01_02_030405\n"


def test_a_terminal_gets_one_line_per_session():
    out = console(terminal=True)
    with Display("dqn", 2, console=out) as display:
        display.update(replace(HALF, done=True))
        display.update(replace(HALF, session=1, frame=25_000, done=True))
    last = last_block(out)
    assert last[0].startswith("s0  ━")
    assert "  50k/100k  5,000 fps  return  21.5  eval 487.2  loss 0.0123  done" in last[0]
    assert last[1].startswith("s1  ━")


def test_a_terminal_is_drawn_at_most_eight_times_a_second(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("slm_lab.experiment.display.time.monotonic", lambda: now[0])
    drawn = []
    with Display("dqn", 1, console=console(terminal=True)) as display:
        monkeypatch.setattr(display._live, "update", lambda *args, **kwargs: drawn.append(now[0]))
        for frame in range(1000):  # one second
            now[0] = 100.0 + frame / 1000
            display.update(replace(HALF, frame=frame))
        assert len(drawn) == 8


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 140])
@pytest.mark.parametrize("sessions", [1, 3])
def test_the_block_fits_the_terminal(width, sessions):
    out = console(width=width, terminal=True)
    with Display("a_spec_with_a_rather_long_name", sessions, console=out) as display:
        for session in range(sessions):
            display.update(replace(HALF, session=session, done=True))
    lines = last_block(out)
    assert len(lines) == sessions
    assert all(len(line) <= width for line in lines)
    assert all("eval 487.2" in line for line in lines)


ROW = {
    "session": 0, "frames": 100_000, "wall_time": 75.0, "fps": 1333.0, "final_return": 480.0, "best_return": 500.0,
    "best_frame": 62_000, "source": "eval",
}  # fmt: skip


def test_the_closing_table_has_the_sessions_their_mean_and_what_to_do_next():
    out = console(width=60)
    closing(
        out, [ROW, {**ROW, "session": 1, "final_return": 460.0}], Path("data/run"), ["python run_lab.py x y enjoy@run"]
    )
    assert [line.rstrip() for line in output(out).splitlines()] == [
        "",
        "session  frames    time    fps  final         best",
        "s0         100k  1m 15s  1,333  480.0  500.0 @ 62k",
        "s1         100k  1m 15s  1,333  460.0  500.0 @ 62k",
        "mean       100k  1m 15s  1,333  470.0        500.0",
        "results in data/run",
        "  python run_lab.py x y enjoy@run",
    ]


def test_the_closing_table_bears_a_run_without_returns():
    out = console()
    closing(out, [dict.fromkeys(ROW) | {"session": 0}], Path("data/run"), [])
    assert output(out).splitlines()[2].split() == ["s0", "-", "-", "-", "-", "-"]


def test_returns_from_training_are_said_to_be_that():
    out = console()
    closing(out, [{**ROW, "source": "train"}], Path("data/run"), [])
    assert "training returns" in output(out)


def test_numbers_are_short_enough_to_read():
    assert [short(value) for value in (0, 950, 9_999, 12_345, 999_600, 1.5e6, 3e9, None, float("nan"))] == [
        "0", "950", "9,999", "12.3k", "1M", "1.5M", "3B", "-", "-",
    ]  # fmt: skip
    assert [number(value) for value in (0.0, 0.00012, 1.25, -21.0, 12345.6, 1e7, float("inf"), None)] == [
        "0", "0.00012", "1.25", "-21.0", "12,346", "1e+07", "inf", "-",
    ]  # fmt: skip
    assert [duration(value) for value in (0.4, 59.7, 185, 7_620, None)] == ["0s", "1m 00s", "3m 05s", "2h 07m", "-"]
