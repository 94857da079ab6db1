"""The specs of spec/memory: each fits its env and learns from its memory, for a short while."""

from pathlib import Path

import numpy as np
import pytest

from slm_lab.analysis.tables import read_table
from slm_lab.experiment import lab
from slm_lab.spec import overrides, registry
from slm_lab.spec.files import read_file
from slm_lab.spec.schema import read_spec

FOLDER = Path(__file__).parents[2] / "spec" / "memory"
SPECS = {(file.name, name): tree for file in sorted(FOLDER.glob("*.json")) for name, tree in read_file(file).items()}


@pytest.mark.parametrize(("file", "name"), SPECS)
def test_a_short_run_learns_from_its_memory(file, name, tmp_path):
    short = ["env.max_frame=600", "meta.log_frequency=100", "meta.rigorous_eval=0", "meta.seed=3", "meta.compile=false"]
    if "DQN" in SPECS[file, name]["agent"]["algorithm"]["name"]:
        start, often = "agent.algorithm.training_start_step=100", "agent.algorithm.training_iter=1"
        short += [start, often, "agent.algorithm.training_frequency=32"]
    if "MPC" in SPECS[file, name]["agent"]["algorithm"]["name"]:
        short += ["agent.algorithm.horizon=3", "agent.memory.epochs=3"]
    spec = read_spec(overrides.apply(SPECS[file, name], short), name)
    lab.check(spec)
    run = lab.train(spec, data_dir=tmp_path, file=str(FOLDER / file), verbosity=-1)
    table = read_table(run / "t0" / "s0" / "train.csv")
    assert table["opt_step"][-1] > 0
    losses = table["loss"][~np.isnan(table["loss"])]  # a row without an update has none
    assert losses.size
    assert np.isfinite(losses).all()


def test_every_memory_that_an_algorithm_learns_from_has_a_spec():
    shipped = {tree["agent"]["memory"]["name"] for tree in SPECS.values()}
    assert shipped == set(registry.names("memory"))
