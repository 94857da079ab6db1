"""What a disk can do to a run: files cut short, bits flipped, files gone, no room, and a clock that was set back. A run
comes to what it would have come to, or says in words why it cannot; it never goes on to something else."""

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slm_lab.cli import cli

ROOT = Path(__file__).parents[2]
SPEC = {
    "agent": {
        "algorithm": {"name": "DoubleDQN", "training_frequency": 4, "training_start_step": 50},
        "memory": {"name": "PrioritizedReplay", "max_size": 300, "batch_size": 8},
        "net": {"type": "MLPNet", "hid_layers": [8]},
    },
    "env": {"name": "CartPole-v1", "num_envs": 2, "max_frame": 600},
    "meta": {"seed": 4, "eval_frequency": 100, "log_frequency": 50, "rigorous_eval": 1, "compile": False},
}


def lab(*words):
    done = CliRunner().invoke(cli, list(map(str, words)))
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(the run that was never disturbed, one that stands at half of it)"""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "spec.json").write_text(json.dumps({"mine": SPEC}))
    for name, frames in (("whole", 600), ("half", 300)):
        words = ("train", "-q", "-s", f"env.max_frame={frames}", "--data-dir", folder / name)
        code, out = lab(folder / "spec.json", "mine", *words)
        assert code == 0, out
    return *(next((folder / name).iterdir()) for name in ("whole", "half")), folder / "spec.json"


def cut_short(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def emptied(file):
    file.write_bytes(b"")


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)


def gone(file):
    file.unlink()


FILES = [
    "spec.json",
    "t0/metrics.json",
    "t0/learning_curve.png",
    *(f"t0/s0/{name}" for name in ("train.csv", "eval.csv", "metrics.json", "log", "learning_curve.png")),
    *(f"t0/s0/checkpoint/{name}.safetensors" for name in ("latest", "previous", "best")),
    "t0/s0/checkpoint/rows/*",
]


def on_to_the_end(run, spec_file):
    return lab(spec_file, "mine", f"train@{run}", "-s", "env.max_frame=600")


@pytest.mark.parametrize("damage", [cut_short, emptied, flipped, gone])
@pytest.mark.parametrize("name", FILES)
def test_a_run_with_a_damaged_file_comes_to_the_same_or_says_why_not(kill, runs, tmp_path, name, damage):
    whole, half, spec_file = runs
    run = tmp_path / half.name
    shutil.copytree(half, run)
    files = list(run.glob(name))
    assert files
    for file in files:
        damage(file)
    code, out = on_to_the_end(run, spec_file)
    assert "Traceback" not in out
    assert "a fault of the lab" not in out
    if code == 2:
        assert "error: " in out
        assert name.split("/")[-1].split(".")[0].replace("*", "rows") in out
        assert "safetensors" not in name  # there is another one to go on from
        return
    assert code == 0, out
    found = list(kill.differences(whole, run))
    if name.endswith("best.safetensors"):
        assert all(text.startswith("best") for text in found)
    else:
        assert found == []
    if name.endswith("latest.safetensors"):
        assert "going on from the one before it" in out


def test_a_run_of_the_future_goes_on_after_the_clock_was_set_back(kill, runs, tmp_path):
    whole, half, spec_file = runs
    run = tmp_path / half.name.replace("_20", "_21")
    shutil.copytree(half, run)
    for path in run.rglob("*"):
        os.utime(path, (4e9, 4e9))
    code, out = on_to_the_end(run, spec_file)
    assert code == 0, out
    assert list(kill.differences(whole, run)) == []


def test_where_files_may_not_grow_training_goes_on_and_the_end_tells(kill, runs, tmp_path):
    """A quota: no file of more than so many bytes, which is more than the tables and less than a checkpoint takes."""
    whole, _, spec_file = runs
    words = [sys.executable, ROOT / "run_lab.py", spec_file, "mine", "train", "--data-dir", tmp_path / "data"]
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)),
        check=False,
    )
    out = done.stdout + done.stderr
    assert done.returncode == 1, out
    assert "the checkpoint could not be written" in out
    assert "File too large" in out
    assert "Traceback" not in out
    assert "600/600 frames" in out
    [run] = (tmp_path / "data").iterdir()
    code, out = on_to_the_end(run, spec_file)
    assert code in (0, 2), out
    if code == 0:
        assert list(kill.differences(whole, run)) == []


def without_rank():
    """In a process about to start: being root opens no closed folder any more."""
    prctl_drop_capability, override_access = 24, 1
    ctypes.CDLL(None).prctl(prctl_drop_capability, override_access, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="takes the rights of root away as Linux does")
def test_a_folder_that_became_read_only_costs_no_checkpoint_that_is_there(kill, runs, tmp_path):
    whole, half, spec_file = runs
    run = tmp_path / half.name
    shutil.copytree(half, run)
    folders = [run / "t0/s0/checkpoint", run / "t0/s0/checkpoint/rows"]
    words = [sys.executable, ROOT / "run_lab.py", spec_file, "mine", f"train@{run}", "-s", "env.max_frame=600"]
    try:
        for folder in folders:
            folder.chmod(0o555)
        done = subprocess.run(
            list(map(str, words)), capture_output=True, text=True, preexec_fn=without_rank, check=False
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    out = done.stdout + done.stderr
    assert done.returncode == 1, out
    assert "the checkpoint could not be written" in out
    assert "Permission denied" in out
    assert "Traceback" not in out
    code, out = on_to_the_end(run, spec_file)
    assert code == 0, out
    assert list(kill.differences(whole, run)) == []


def may_mount():
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") and subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="mounts a small file system of its own, which this user may not")
def test_on_a_disk_that_is_full_training_goes_on_and_no_checkpoint_is_lost(kill, runs, tmp_path):
    whole, half, spec_file = runs
    disk, saved, run = tmp_path / "disk", tmp_path / "saved", tmp_path / "disk" / half.name
    disk.mkdir()
    script = (
        'set -e; mount -t tmpfs -o size=2m tmpfs "$1"; cp -r "$2" "$1"\n'
        'dd if=/dev/zero of="$1/filler" bs=4096 status=none 2>/dev/null || true\n'  # until nothing fits any more
        'code=0; "$4" "$5" "$6" mine "train@$3" -s env.max_frame=600 || code=$?\n'
        'cp -r "$3" "$7"; exit $code'
    )
    words = [disk, half, run, sys.executable, ROOT / "run_lab.py", spec_file, saved]
    command = ["unshare", "-m", "sh", "-c", script, "sh", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    out = done.stdout + done.stderr
    assert done.returncode == 1, out
    assert "No space left on device" in out
    assert "Traceback" not in out
    code, out = on_to_the_end(saved, spec_file)
    assert code == 0, out
    assert list(kill.differences(whole, saved)) == []
