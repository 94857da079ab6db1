"""Whole runs through the command line, in processes of their own, from a folder that is not the checkout."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NET = {"type": "MLPNet", "hid_layers": [8], "hid_layers_activation": "tanh"}
META = {"eval_frequency": 100, "log_frequency": 50, "rigorous_eval": 1}
SPECS = {
    "dqn": {
        "agent": {
            "algorithm": {"name": "DQN", "training_frequency": 1},
            "memory": {"name": "Replay", "max_size": 500, "batch_size": 8},
            "net": NET,
        },
        "env": {"name": "CartPole-v1", "max_frame": 2000},
        "meta": META,
    },
    "ddqn_per": {
        "agent": {
            "algorithm": {"name": "DoubleDQN", "training_frequency": 1},
            "memory": {"name": "PrioritizedReplay", "max_size": 500, "batch_size": 8},
            "net": NET,
        },
        "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 2000},
        "meta": META,
    },
    "ppo": {
        "agent": {
            "algorithm": {"name": "PPO", "time_horizon": 16, "minibatch_size": 8, "training_epoch": 8},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": NET,
        },
        "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 3000},
        "meta": META,
    },
    "reinforce": {
        "agent": {
            "algorithm": {"name": "Reinforce"},
            "memory": {"name": "OnPolicyReplay"},
            "net": NET,
        },
        "env": {"name": "CartPole-v1", "max_frame": 6000},
        "meta": {**META, "rigorous_eval": 2},
    },
    "a2c": {
        "agent": {
            "algorithm": {"name": "ActorCritic", "training_frequency": 4},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": NET,
        },
        "env": {"name": "CartPole-v1", "max_frame": 4000},
        "meta": META,
    },
}


class Lab:
    """The command line in a folder with these specs."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "specs.json").write_text(json.dumps(SPECS))

    def start(self, *words, door=(sys.executable, str(ROOT / "run_lab.py"))):
        return subprocess.Popen(
            [*door, *map(str, words)],
            cwd=self.folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "DISPLAY": "", "WAYLAND_DISPLAY": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that a signal to its group does not reach the tests
        )

    def run(self, *words, **options):
        """Exit code and all that was printed."""
        process = self.start(*words, **options)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    def run_until(self, words, *numbers, sessions=1, group=False, **options):
        """The same, with a signal once each session has told of its progress; further ones follow at once."""
        process = self.start(*words, **options)
        seen, out = set(), ""
        for line in process.stdout:
            out += line
            if " frames  " in line:
                seen.add(line.split()[0] if sessions > 1 else "")
            if len(seen) == sessions:
                break
        for number in numbers:
            (os.killpg if group else os.kill)(process.pid, number)
        rest, _ = process.communicate(timeout=60)
        return process.returncode, out + rest

    def latest(self):
        return max((self.folder / "data").iterdir(), key=lambda run: run.stat().st_ctime)


@pytest.fixture(scope="session")
def kill():
    """benchmark/kill.py, as a module."""
    place = importlib.util.spec_from_file_location("kill", ROOT / "benchmark" / "kill.py")
    module = sys.modules["kill"] = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


@pytest.fixture(autouse=True)
def _signals_as_usual():
    """A runner may have been started with Ctrl-C ignored, which the lab's processes would inherit."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
