import numpy as np
import pytest
import torch

from slm_lab.analysis.tables import read_table
from slm_lab.errors import RunError
from slm_lab.experiment.table import Table, Tally


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train.csv"


def test_cells_are_written_so_that_they_read_back_exactly(path):
    table = Table(path, ["frame", "loss", "done", "lr"])
    table.append({"frame": 4, "loss": 0.1 + 0.2, "done": True})
    table.append({"frame": np.int64(8), "loss": float("nan"), "done": np.False_, "lr": np.float32(0.1)})
    table.append({"frame": 12, "loss": None, "lr": torch.tensor(1e-300, dtype=torch.float64)})
    assert path.read_text() == ("frame,loss,done,lr\n4,0.30000000000000004,1,\n8,,0,0.10000000149011612\n12,,,1e-300\n")
    assert table.rows[1] == {"frame": 8, "loss": None, "done": 0, "lr": 0.10000000149011612}
    assert Table(path, ["frame", "loss", "done", "lr"]).rows == table.rows


def test_an_unknown_column_is_refused_and_nothing_is_written(path):
    table = Table(path, ["frame"])
    with pytest.raises(ValueError, match="has no column 'farme'; it has frame"):
        table.append({"farme": 1})
    with pytest.raises(TypeError, match="holds numbers"):
        table.append({"frame": "1"})
    assert path.read_text() == "frame\n"
    assert table.rows == []


def test_rows_written_after_the_checkpoint_vanish_on_resume(path):
    table = Table(path, ["frame", "loss"])
    table.append({"frame": 1, "loss": 0.5})
    state = table.state_dict()
    table.append({"frame": 2, "loss": 0.25})
    resumed = Table(path, ["frame", "loss"])
    resumed.load_state_dict(state)
    assert resumed.rows == [{"frame": 1, "loss": 0.5}]
    resumed.append({"frame": 2, "loss": 0.125})
    assert path.read_text() == "frame,loss\n1,0.5\n2,0.125\n"


def test_a_checkpoint_from_before_the_first_row_empties_the_table(path):
    table = Table(path, ["frame"])
    state = table.state_dict()
    table.append({"frame": 1})
    table.load_state_dict(state)
    assert (path.read_text(), table.rows) == ("frame\n", [])


@pytest.mark.parametrize("torn", ["3", "3,0.", "3,0.5,7"])
def test_a_torn_last_line_is_forgotten(path, torn):
    table = Table(path, ["frame", "loss"])
    table.append({"frame": 1, "loss": 0.5})
    with open(path, "a") as file:
        file.write(torn)
    assert read_table(path)["frame"].tolist() == [1]
    again = Table(path, ["frame", "loss"])
    again.append({"frame": 2, "loss": 1.0})
    assert path.read_text() == "frame,loss\n1,0.5\n2,1.0\n"


def test_a_file_without_a_whole_line_is_refused_and_stays(path):
    path.write_text("fra")
    with pytest.raises(RunError, match=r"train.csv: damaged: it has no whole line"):
        Table(path, ["frame"])
    assert path.read_text() == "fra"


def test_a_table_that_does_not_fit_its_checkpoint_is_refused(path):
    table = Table(path, ["frame"])
    table.append({"frame": 1})
    state = table.state_dict()
    path.write_text("frame\n")
    with pytest.raises(RunError, match=r"train.csv: shorter than its checkpoint says \(6 of 8 bytes\)"):
        table.load_state_dict(state)
    path.write_text("frame\n1\n2\n")
    with pytest.raises(RunError, match="not the table of this checkpoint, which has 2 rows"):
        table.load_state_dict({"rows": 2, "bytes": 8})
    with pytest.raises(RunError, match="its columns are 'frame', not 'frame,loss'"):
        Table(path, ["frame", "loss"])
    path.write_text("frame\none\n")
    with pytest.raises(RunError, match="line 2 is not a row"):
        Table(path, ["frame"])


def test_tally_counts_returns_and_lengths_of_every_env():
    tally = Tally(2)
    for reward, ended in [((1, 2), (0, 0)), ((4, 8), (0, 1)), ((16, 32), (1, 1))]:
        tally.add(np.array(reward, float), np.array(ended, bool))
    assert tally.episodes == 3
    assert tally.since() == [(10.0, 2), (21.0, 3), (32.0, 1)]
    assert tally.since() == []
    assert tally.moving_average == 21.0


def test_tally_averages_over_the_last_episodes_only():
    tally = Tally(1, window=2)
    assert tally.moving_average is None
    for reward in (100.0, 1.0, 2.0):
        tally.add(np.array([reward]), np.array([True]))
    assert tally.moving_average == 1.5


def test_tally_agrees_with_a_loop_over_envs():
    rng = np.random.default_rng(0)
    rewards, ends = rng.normal(size=(500, 3)), rng.random((500, 3)) < 0.1
    tally, expected, returns, lengths = Tally(3), [], [0.0] * 3, [0] * 3
    for reward, ended in zip(rewards, ends, strict=True):
        tally.add(reward, ended)
        for env in range(3):
            returns[env] += reward[env]
            lengths[env] += 1
            if ended[env]:
                expected.append((returns[env], lengths[env]))
                returns[env], lengths[env] = 0.0, 0
    assert tally.since() == expected


def test_a_restored_tally_goes_on_as_if_nothing_had_happened():
    rng = np.random.default_rng(1)
    steps = [(rng.normal(size=2), rng.random(2) < 0.2) for _ in range(60)]
    whole, first = Tally(2, window=5), Tally(2, window=5)
    for step in steps[:30]:
        whole.add(*step)
        first.add(*step)
    second = Tally(2, window=5)
    second.load_state_dict(first.state_dict())
    for step in steps[30:]:
        whole.add(*step)
        second.add(*step)
    assert second.since() == whole.since()
    assert (second.episodes, second.moving_average) == (whole.episodes, whole.moving_average)
