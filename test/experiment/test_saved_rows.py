"""A session's checkpoints and the rows of its memory, which lie in files beside them, go together at every moment."""

import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

from slm_lab.agent.memory import store
from slm_lab.analysis.tables import read_table
from slm_lab.errors import Interrupted, RunError
from slm_lab.experiment import checkpoint
from slm_lab.experiment.session import Session
from slm_lab.spec.schema import read_spec

MEMORY = {"name": "NStepReplay", "max_size": 120, "batch_size": 8, "sample_by": "episode"}


class Killed(BaseException):
    """Stands for the process dying: nothing in the lab may catch it."""


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch):
    monkeypatch.setattr(store, "CHUNK_BYTES", 500)


def returns(folder):
    return [read_table(file)["return"].tolist() for file in (folder.train_table, folder.eval_table)]


def stop_at(step):
    calls = [0]

    def stop():
        calls[0] += 1
        return calls[0] == step

    return stop


@pytest.fixture
def disk_spec(make_spec):
    def make(**keys):
        tree = make_spec().model_dump(exclude_unset=True)
        tree.pop("name")
        tree["agent"]["memory"] = {**MEMORY, **keys}
        return read_spec(tree, "small")

    return make


def test_a_memory_on_disk_read_by_another_process_goes_on_exactly(make_folder, ear, disk_spec):
    spec, whole, broken = disk_spec(workers=1), make_folder(), make_folder()
    Session(spec, whole, ear).run()
    with pytest.raises(Interrupted):
        Session(spec, broken, ear, stop=stop_at(170)).run()
    Session(spec, broken, ear).run()
    for name in ("latest", "best"):
        ours, theirs = (checkpoint.read(getattr(folder, name)) for folder in (whole, broken))
        policies = [tree["policy"] if name == "best" else tree["agent"]["algorithm"] for tree in (ours, theirs)]
        assert str(policies[0]) == str(policies[1])
    np.testing.assert_equal(returns(whole), returns(broken))
    assert not whole.memory_folder.exists()


def test_a_snapshot_is_left_where_it_is_asked_for(make_folder, ear, disk_spec):
    folder = make_folder()
    Session(disk_spec(save_snapshot=True), folder, ear).run()
    assert sorted(path.name for path in folder.memory_folder.iterdir()) == ["snapshot"]
    assert (folder.memory_folder / "snapshot" / "tree_a.safetensors").exists()


def test_checkpoints_hold_no_rows_but_the_newest(make_spec, make_folder, ear):
    folder = make_folder()
    Session(make_spec(), folder, ear).run()
    for file in (folder.latest, folder.previous):
        ring = checkpoint.read(file)["agent"]["memory"]["ring"]
        assert "rows" not in ring
        assert len(ring["newest"]) == 1
    assert checkpoint.read(folder.best).keys() == {"frame", "score", "policy", "statistics"}


@pytest.mark.parametrize("function", ["fsync", "replace", "unlink"])
def test_killed_at_any_point_of_a_checkpoint_both_that_are_left_can_be_gone_on_from(
    make_spec, make_folder, ear, monkeypatch, function
):
    folder = make_folder()
    with pytest.raises(Interrupted):
        Session(make_spec(), folder, ear, stop=stop_at(150)).run()
    for call in range(1, 9):
        broken = make_folder()
        shutil.copytree(folder.root, broken.root, dirs_exist_ok=True)
        session = Session(make_spec(), broken, ear)
        session._begin()
        for _ in range(30):
            obs = session.env.current_obs()
            action = session.agent.act(obs, 0)
            session.agent.remember(obs, action, session.env.step(action))
        with monkeypatch.context() as patch:
            real, calls = getattr(os, function), []

            def dying(*args, real=real, calls=calls, call=call, **kwargs):
                calls.append(args)
                if len(calls) >= call:
                    raise Killed
                return real(*args, **kwargs)

            patch.setattr(os, function, dying)
            with suppress(Killed):
                session._save()
        session._close()
        for file in (broken.latest, broken.previous):
            if file.exists():
                again = Session(make_spec(), broken, ear)
                again.load_state_dict(checkpoint.read(file))
                assert again.agent.memory.size >= 100
                again._close()


def test_rows_that_are_gone_are_told(make_spec, make_folder, ear):
    folder = make_folder()
    with pytest.raises(Interrupted):
        Session(make_spec(), folder, ear, stop=stop_at(150)).run()
    shutil.rmtree(folder.saved_rows)
    with pytest.raises(RunError, match="rows cannot be read: No such file"):
        Session(make_spec(), folder, ear).run()
