"""A few hundred frames of learning in each family of envs, from the spec to the tables; skipped where an extra is not
installed."""

import importlib.util
import json

import numpy as np
import pytest

from slm_lab.analysis.tables import read_table
from slm_lab.experiment import lab
from slm_lab.spec.schema import read_spec

MLP = {"type": "MLPNet", "hid_layers": [8]}
CONV = {"type": "ConvNet", "conv_hid_layers": [[4, 8, 8]], "fc_hid_layers": [16]}
GRID = {**MLP, "encoders": {"image": {"type": "ConvNet", "conv_hid_layers": [[4, 3]]}}}
DQN = {"name": "DQN", "training_start_step": 32, "training_frequency": 16}
SAC = {"name": "SAC", "training_start_step": 32, "training_frequency": 16}
PPO = {"name": "PPO", "time_horizon": 32, "minibatch_size": 32, "training_epoch": 1}
REPLAY = {"name": "Replay", "max_size": 400, "batch_size": 8}
HINDSIGHT = {"name": "HindsightReplay", "max_size": 400, "batch_size": 8}
BATCH = {"name": "OnPolicyBatchReplay"}
FAMILIES = {
    "classic control": ("gymnasium", {"name": "Acrobot-v1", "max_t": 40}, DQN, REPLAY, MLP),
    "toy text": ("gymnasium", {"name": "FrozenLake-v1"}, DQN, REPLAY, MLP),
    "a tuple of classes": ("gymnasium", {"name": "Blackjack-v1"}, PPO, BATCH, MLP),
    "Box2D": ("Box2D", {"name": "LunarLander-v3", "max_t": 60}, DQN, REPLAY, MLP),
    "MuJoCo": ("mujoco", {"name": "Hopper-v5", "normalize_obs": True, "clip_obs": 5.0}, PPO, BATCH, MLP),
    "MuJoCo, replayed": ("mujoco", {"name": "InvertedPendulum-v5"}, SAC, REPLAY, MLP),
    "Atari": ("ale_py", {"name": "ALE/Breakout-v5", "max_t": 60}, DQN, REPLAY, CONV),
    "Atari, at random": ("ale_py", {"name": "ALE/Pong-v5", "max_t": 30}, {"name": "Random"}, None, None),
    "MiniGrid": ("minigrid", {"name": "MiniGrid-Empty-5x5-v0", "max_t": 30}, PPO, BATCH, GRID),
    "goals": ("gymnasium_robotics", {"name": "FetchReach-v4"}, SAC, HINDSIGHT, MLP),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_it_runs_learns_and_is_evaluated(family, tmp_path):
    package, env, algorithm, memory, net = FAMILIES[family]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    meta = {"seed": 1, "eval_frequency": 160, "rigorous_eval": 1, "max_session": 1}
    env = {"num_envs": 2, "max_frame": 160, **env, "vectorization": "sync"}
    parts = {"algorithm": algorithm, "memory": memory, "net": net}
    agent = {name: part for name, part in parts.items() if part is not None}
    spec = read_spec({"agent": agent, "env": env, "meta": meta}, "small")
    run = lab.train(spec, data_dir=tmp_path, file="a.json", verbosity=-1)
    trained, evaluated = (read_table(run / "t0" / "s0" / f"{name}.csv") for name in ("train", "eval"))
    assert np.isfinite(trained["loss"]).any() == (memory is not None)  # not in each row: PPO learns between
    assert np.isfinite(evaluated["return"][-1])
    if family == "Atari":
        saved = json.loads((run / "spec.json").read_text())
        assert saved["small"]["agent"]["memory"]["frame_stack"] == 4  # each frame is held once
