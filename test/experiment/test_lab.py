import hashlib
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from slm_lab.analysis.tables import read_table
from slm_lab.errors import RunError, SpecError
from slm_lab.experiment import lab
from slm_lab.experiment.folder import RunFolder


def contents(folder):
    """Each file's bytes and time of change."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def small(make_spec, tmp_path, capsys):
    """A finished run of 100 frames."""
    folder = lab.train(make_spec(env={"max_frame": 100}), data_dir=tmp_path / "data", file="a.json", verbosity=-1)
    capsys.readouterr()
    return folder


def test_a_run_leaves_the_documented_files_and_no_other(small):
    assert sorted(path.relative_to(small).as_posix() for path in small.rglob("*") if path.is_file()) == [
        "spec.json",
        "t0/learning_curve.png",
        "t0/metrics.json",
        "t0/s0/checkpoint/best.safetensors",
        "t0/s0/checkpoint/latest.safetensors",
        "t0/s0/checkpoint/rows/rows_000000.bin",
        "t0/s0/eval.csv",
        "t0/s0/learning_curve.png",
        "t0/s0/log",
        "t0/s0/metrics.json",
        "t0/s0/train.csv",
    ]


def test_quiet_prints_the_folder_alone_and_verbose_each_checkpoint(make_spec, tmp_path, capsys):
    spec = make_spec("Random", env={"max_frame": 200})
    folder = lab.train(spec, data_dir=tmp_path, file="a.json", verbosity=-1)
    assert capsys.readouterr().out == f"{folder}\n"
    lab.train(spec, data_dir=tmp_path, file="a.json")
    plain = capsys.readouterr().out
    lab.train(spec, data_dir=tmp_path, file="a.json", verbosity=1)
    verbose = capsys.readouterr().out
    assert "\x1b" not in plain
    assert "saved" not in plain
    assert [line.split(", saved")[0] for line in verbose.splitlines() if "saved" in line] == [
        "session 0: frame 100",
        "session 0: frame 200",
    ]


def test_a_seed_that_is_drawn_is_printed_and_saved(make_spec, tmp_path, capsys):
    folder = lab.train(make_spec("Random", env={"max_frame": 1}, seed=None), data_dir=tmp_path, file="a.json")
    seed = lab.saved_spec(RunFolder(folder)).meta.seed
    assert capsys.readouterr().out.startswith(f"small: seed {seed} (drawn), results go to {folder}\n")


def test_resuming_a_finished_run_says_so_and_changes_nothing(small, capsys):
    before = contents(small)
    lab.resume(small)
    assert contents(small) == before
    assert f"{small} is finished, at 100 frames" in capsys.readouterr().out


def test_a_run_goes_on_to_a_later_end_which_its_spec_then_says(small, capsys):
    lab.resume(small, overrides=["env.max_frame=200"])
    assert lab.saved_spec(RunFolder(small)).env.max_frame == 200
    assert "200/200 frames" in capsys.readouterr().out
    lab.resume(small)
    assert "is finished, at 200 frames" in capsys.readouterr().out


def test_what_would_make_another_run_of_it_is_refused(small):
    before = contents(small)
    with pytest.raises(SpecError) as problem:
        lab.resume(small, overrides=["meta.seed=2", "agent.net.hid_layers=[4]", "env.max_frame=200"])
    mistakes = {mistake.path: mistake.problem for mistake in problem.value.mistakes}
    assert list(mistakes) == ["agent.net.hid_layers", "meta.seed"]
    assert mistakes["agent.net.hid_layers"].startswith("was [8], is [4]: a run that has begun keeps it, unless --force")
    assert contents(small) == before


def test_with_force_a_run_goes_on_with_other_settings_which_its_spec_then_says(small):
    changes = ["agent.net.optim_spec.lr=0.5", "env.max_frame=120"]
    lab.resume(small, overrides=changes, force=True)
    assert lab.saved_spec(RunFolder(small)).agent.net.optim_spec.lr == 0.5
    assert read_table(small / "t0" / "s0" / "train.csv")["lr"][-1] == 0.5


def test_with_force_what_does_not_fit_the_checkpoint_is_told_and_nothing_is_lost(small):
    before = contents(small / "t0" / "s0" / "checkpoint")
    with pytest.raises(RunError, match="the saved memory has rows of 1 envs, this one is for 2"):
        lab.resume(small, overrides=["env.num_envs=2", "env.max_frame=200"], force=True)
    assert contents(small / "t0" / "s0" / "checkpoint") == before
    lab.resume(small, overrides=["env.max_frame=200"])
    assert lab.saved_spec(RunFolder(small)).env.num_envs == 1


def test_what_cannot_be_repeated_is_told_as_the_run_begins(make_spec, tmp_path, capsys):
    (tmp_path / "dice.py").write_text(DICE)
    env = {"name": f"{tmp_path}/dice.py:Dice", "max_frame": 50}
    lab.train(make_spec("Random", env=env, seed=1), data_dir=tmp_path / "data", file="a.json")
    second_line = capsys.readouterr().out.splitlines()[1]
    assert "does not repeat itself exactly (from the same seed and actions it came to something else" in second_line
    assert second_line.endswith("is not, bit for bit, the run that was never stopped")


DICE = """
import gymnasium
import numpy as np

class Dice(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.random.random(1).astype(np.float32), 0.0, np.random.random() < 0.1, False, {}
"""


@pytest.mark.parametrize("part", ["", "/t0", "/t0/s0"])
def test_enjoy_plays_and_changes_nothing(small, capsys, part):
    before = contents(small)
    lab.enjoy(f"{small}{part}", episodes=2)
    assert contents(small) == before
    first, *episodes, video, mean = capsys.readouterr().out.splitlines()
    assert first == f"small from {small}/t0/s0, 2 greedy episodes"
    film = Path(video.removeprefix("video: "))  # of the first, where there is no display
    assert film.stat().st_size > 0
    assert film.parent == small.with_name(f"{small.name}_video")
    assert len(episodes) == 2
    assert episodes[0].startswith("  episode 1: return ")
    assert mean.startswith("mean return ")


def test_enjoy_quietly_prints_the_mean_alone(small, capsys):
    lab.enjoy(small, episodes=2, verbosity=-1)
    assert capsys.readouterr().out.startswith("mean return ")


def test_dev_runs_its_checks(make_spec, tmp_path, capsys):
    lab.train(make_spec(max_session=2), data_dir=tmp_path, file="a.json", mode="dev")
    out = capsys.readouterr().out
    for check in ("actions", "observations", "memory", "learning", "loss", "gradients", "parameters"):
        assert f"\ncheck {check}: ok" in out
    assert "s1" not in out


def test_dev_tells_what_is_wrong_in_the_end(make_spec, tmp_path, capsys):
    spec = make_spec(env={"max_frame": 40})
    algorithm = spec.agent.algorithm.model_copy(update={"training_frequency": 1000})
    spec = spec.model_copy(update={"agent": spec.agent.model_copy(update={"algorithm": algorithm})})
    with pytest.raises(RunError, match="dev mode found something wrong: learning"):
        lab.train(spec, data_dir=tmp_path, file="a.json", mode="dev")
    assert "check learning: no learn step in 40 frames" in capsys.readouterr().out


def test_a_data_folder_that_cannot_be_made_is_told(make_spec, tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(RunError, match="data: cannot write there"):
        lab.train(make_spec("Random"), data_dir=tmp_path / "data", file="a.json")


@pytest.mark.parametrize(
    ("door", "found", "typed"),
    [
        ("run_lab.py", "/here/.venv/bin/python", "python run_lab.py"),
        ("run_lab.py", "/usr/bin/python", ".venv/bin/python run_lab.py"),
        ("run_lab.py", None, ".venv/bin/python run_lab.py"),
        ("/usr/bin/slm-lab", "/usr/bin/slm-lab", "slm-lab"),
        ("/there/bin/slm-lab", None, "/there/bin/slm-lab"),
    ],
)
def test_the_next_command_works_where_it_was_printed(make_spec, monkeypatch, tmp_path, door, found, typed):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [door])
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/.venv/bin/python")
    monkeypatch.setattr("shutil.which", lambda name: found and found.replace("/here", str(tmp_path)))
    command = lab.command("my specs.json", make_spec().name, "train", RunFolder("data/x"))
    assert command == f"{typed} 'my specs.json' small train@data/x"


HOLD = """
import sys
from pathlib import Path
from slm_lab.lib.lock import locked
with locked(Path(sys.argv[1]), "it is held"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_another_process_trains_is_refused_and_left_as_it_is(small, capsys):
    lock = RunFolder(small).lock_file
    with subprocess.Popen([sys.executable, "-c", HOLD, lock], stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        before = contents(small)
        told = f"{small} is being trained by process {other.pid} on {socket.gethostname()}; wait for it"
        with pytest.raises(RunError, match=re.escape(told)):
            lab.resume(small, overrides=["env.max_frame=200"])
        lab.enjoy(small, episodes=1)
        assert contents(small) == before
        other.kill()
    assert lock.exists()  # of a process that was killed, and counts no more
    lab.resume(small, overrides=["env.max_frame=200"])
    assert "200/200 frames" in capsys.readouterr().out
    assert not lock.exists()


@pytest.mark.parametrize("gone", ["checkpoint/latest.safetensors", "checkpoint"])
@pytest.mark.parametrize("metrics", [True, False])
def test_results_whose_checkpoints_are_gone_are_not_erased(small, gone, metrics):
    session = RunFolder(small).trial(0).session(0)
    if gone == "checkpoint":
        shutil.rmtree(session.checkpoint_folder)
    else:
        session.latest.unlink()
    if not metrics:
        session.metrics_file.unlink()
    before = contents(small)
    if gone == "checkpoint" or metrics:
        with pytest.raises(RunError, match=r"s0: no checkpoint to go on from, though there are results"):
            lab.resume(small, overrides=["env.max_frame=200"])
        assert contents(small) == before
    else:  # as a kill before the first checkpoint leaves it
        lab.resume(small)
        assert session.metrics_file.exists()


def test_the_longest_episode_changes_the_task_so_it_takes_force(small):
    with pytest.raises(SpecError, match=r"env\.max_t: was null, is 3"):
        lab.resume(small, overrides=["env.max_frame=200", "env.max_t=3"])
    lab.resume(small, overrides=["env.max_frame=200", "env.max_t=3"], force=True)
    lengths = read_table(RunFolder(small).trial(0).session(0).eval_table)["length"]
    assert lengths[-1] == 3 < lengths[0]
