import re
from datetime import datetime
from pathlib import Path

import pytest

from slm_lab.errors import RunError
from slm_lab.experiment import folder as folder_module
from slm_lab.experiment.folder import RunFolder, find_latest, parse_target


def make_run(data_dir, name: str) -> Path:
    root = data_dir / name
    root.mkdir(parents=True)
    (root / "spec.json").write_text("{}")
    return root


@pytest.fixture
def frozen_clock(monkeypatch):
    class Frozen(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(folder_module, "datetime", Frozen)


def test_a_run_is_named_after_its_spec_and_the_time(tmp_path, frozen_clock):
    run = RunFolder.create(tmp_path / "new" / "data", "dqn")
    assert run.name == "dqn_2026_01_02_030405"
    assert run.root.is_dir()


def test_runs_that_start_in_the_same_second_get_a_suffix(tmp_path, frozen_clock):
    names = [RunFolder.create(tmp_path, "dqn").name for _ in range(3)]
    assert names == ["dqn_2026_01_02_030405", "dqn_2026_01_02_030405_2", "dqn_2026_01_02_030405_3"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "../up", "a\\b"])
def test_a_spec_name_cannot_lead_out_of_the_data_folder(tmp_path, name):
    with pytest.raises(RunError, match="cannot name a folder"):
        RunFolder.create(tmp_path, name)


def test_a_data_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path):
    (tmp_path / "data").write_text("a file is in the way")
    with pytest.raises(RunError, match=r"data: cannot write there .*--data-dir"):
        RunFolder.create(tmp_path / "data", "dqn")


def test_the_layout_is_the_documented_one(tmp_path):
    run = RunFolder(tmp_path / "run")
    session = run.trial(1).session(2)
    paths = [
        run.spec_file, run.trial(1).metrics_file, run.trial(1).curve_file, session.train_table, session.eval_table,
        session.metrics_file, session.log_file, session.curve_file, session.latest, session.previous, session.best,
    ]  # fmt: skip
    assert [path.relative_to(run.root).as_posix() for path in paths] == [
        "spec.json",
        "t1/metrics.json",
        "t1/learning_curve.png",
        "t1/s2/train.csv",
        "t1/s2/eval.csv",
        "t1/s2/metrics.json",
        "t1/s2/log",
        "t1/s2/learning_curve.png",
        "t1/s2/checkpoint/latest.safetensors",
        "t1/s2/checkpoint/previous.safetensors",
        "t1/s2/checkpoint/best.safetensors",
    ]


def test_existing_sessions_come_in_numeric_order(tmp_path):
    trial = RunFolder(tmp_path).trial(0)
    assert trial.sessions() == []
    for index in (10, 9, 0):
        trial.session(index).make()
    (trial.root / "s3").write_text("not a folder")
    (trial.root / "s01").mkdir()
    assert [session.index for session in trial.sessions()] == [0, 9, 10]
    assert trial.session(9).checkpoint_folder.is_dir()


def test_the_latest_run_is_the_one_with_the_latest_time_then_the_highest_suffix(tmp_path):
    for name in (
        "dqn_2026_01_02_030405",
        "dqn_2026_01_02_030405_2",
        "dqn_2026_01_02_030405_10",
        "dqn_2025_12_31_235959",
    ):
        make_run(tmp_path, name)
    assert find_latest(tmp_path, "dqn").name == "dqn_2026_01_02_030405_10"


def test_the_latest_run_is_of_exactly_that_spec(tmp_path):
    make_run(tmp_path, "dqn_2026_01_01_000000")
    make_run(tmp_path, "dqn_cartpole_2026_06_01_000000")
    make_run(tmp_path, "my_dqn_2026_06_01_000000")
    assert find_latest(tmp_path, "dqn").name == "dqn_2026_01_01_000000"


def test_a_folder_without_a_spec_is_never_the_latest(tmp_path):
    make_run(tmp_path, "dqn_2026_01_01_000000")
    (tmp_path / "dqn_2026_01_02_000000").mkdir()
    assert find_latest(tmp_path, "dqn").name == "dqn_2026_01_01_000000"


def test_no_run_of_a_spec_tells_which_specs_have_runs(tmp_path):
    make_run(tmp_path, "ppo_2026_01_01_000000")
    make_run(tmp_path, "a2c_2026_01_01_000000")
    with pytest.raises(
        RunError, match=f"no run of spec 'dqn' in {re.escape(str(tmp_path))}; there are runs of: a2c, ppo"
    ):
        find_latest(tmp_path, "dqn")
    with pytest.raises(RunError, match="no runs at all"):
        find_latest(tmp_path / "missing", "dqn")


@pytest.mark.parametrize(
    ("tail", "places"),
    [("", (None, None)), ("/", (None, None)), ("/t0", (0, None)), ("/t0/s1", (0, 1)), ("/t0/s1//", (0, 1))],
)
def test_a_target_names_a_run_a_trial_or_a_session(tmp_path, tail, places):
    root = make_run(tmp_path, "dqn_2026_01_01_000000")
    RunFolder(root).trial(0).session(1).make()
    run, trial, session = parse_target(f"{root}{tail}")
    assert run.root == root
    assert (trial, session) == places


def test_a_target_may_be_relative_to_the_run_itself(tmp_path, monkeypatch):
    root = make_run(tmp_path, "dqn_2026_01_01_000000")
    RunFolder(root).trial(0).session(1).make()
    monkeypatch.chdir(root)
    run, trial, session = parse_target("t0/s1")
    assert (run.name, trial, session) == (root.name, 0, 1)
    assert parse_target(".")[0].name == root.name


def test_a_target_that_does_not_exist_tells_what_does(tmp_path):
    root = make_run(tmp_path, "dqn_2026_01_01_000000")
    RunFolder(root).trial(0).session(1).make()
    with pytest.raises(RunError, match=r"t3: no such folder; .* has t0"):
        parse_target(f"{root}/t3")
    with pytest.raises(RunError, match=r"s0: no such folder; .* has s1"):
        parse_target(f"{root}/t0/s0")
    with pytest.raises(RunError, match=r"did you mean .*dqn_2026_01_01_000000"):
        parse_target(f"{tmp_path}/dqn_2026_01_01_00000")
    with pytest.raises(RunError, match=r"not a run folder: it has no spec\.json"):
        parse_target(str(tmp_path))
    with pytest.raises(RunError, match="no run named"):
        parse_target("")
