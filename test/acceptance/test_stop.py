"""A run that is stopped goes on as if it never had been, and its saved spec says all that it takes to repeat it."""

import os
import pty
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slm_lab.cli import cli
from slm_lab.experiment import trial
from slm_lab.experiment.folder import RunFolder
from slm_lab.lib.files import read_json

SCRIPT = Path(sys.executable).with_name("slm-lab")


def run_here(*words):
    """What the command prints that is run in this process, its sessions one after the other: seconds faster."""
    done = CliRunner().invoke(cli, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def statuses(run):
    return [read_json(session.metrics_file)["status"] for session in RunFolder(run).trial(0).sessions()]


@pytest.mark.parametrize(("spec", "sessions", "group"), [("ddqn_per", 1, False), ("ppo", 2, True)])
def test_a_stopped_run_goes_on_to_what_its_spec_gives_in_one_piece(kill, lab, monkeypatch, spec, sessions, group):
    words = ("specs.json", spec, "train", "-s", f"meta.max_session={sessions}")
    exit_code, out = lab.run_until(words, signal.SIGINT, sessions=sessions, group=group)
    run = lab.latest()
    assert exit_code == 130, out
    assert "Traceback" not in out
    assert f"{spec} train@data/{run.name}\n" in out.split("stopped; go on with:")[1]
    assert "seed" in out.splitlines()[0]
    assert "(drawn)" in out.splitlines()[0]
    assert set(statuses(run)) == {"stopped"}
    assert (run / "t0" / "learning_curve.png").exists()
    monkeypatch.setattr(trial, "usable_cores", lambda: 1)
    if sessions == 1:
        assert lab.run("specs.json", spec, "train@latest", "-q") == (0, f"data/{run.name}\n")
    else:
        run_here("specs.json", spec, f"train@{run}", "-q")
    assert set(statuses(run)) == {"finished"}
    again = run_here(run / "spec.json", spec, "train", "-q", "--data-dir", lab.folder / "again")
    assert list(kill.differences(run, Path(again))) == []


def test_a_second_signal_stops_at_once(lab):
    words = ("specs.json", "dqn", "train", "-s", "meta.max_session=2")
    exit_code, out = lab.run_until(words, signal.SIGINT, signal.SIGTERM, sessions=2, door=[SCRIPT])
    assert exit_code == 143, out
    assert "Traceback" not in out
    assert "stopped at once; go on from the last checkpoint with:\n" in out
    assert f"slm-lab specs.json dqn train@data/{lab.latest().name}\n" in out


def test_ctrl_c_in_a_terminal_leaves_it_clean(lab):
    mine, its = pty.openpty()
    pid = os.fork()
    if pid == 0:  # becomes the lab, with the terminal as its own, so that Ctrl-C comes from there
        os.setsid()
        for number in range(3):
            os.dup2(its, number)
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(lab.folder)
        root = Path(__file__).parent.parent.parent
        words = [sys.executable, str(root / "run_lab.py"), "specs.json", "dqn", "train"]
        os.execve(sys.executable, words, {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"})
    os.close(its)
    out, pressed = "", False
    while True:
        try:
            part = os.read(mine, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            break
        if not part:
            break
        out += part
        if not pressed and " fps" in out:
            os.write(mine, b"\x03")
            pressed = True
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130, out
    assert "Traceback" not in out
    assert "stopping: the state is being saved" in out
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")  # the cursor is shown again
    assert f"train@data/{lab.latest().name}" in out[out.rindex("stopped; go on with:") :].replace("\r\n", "")
