"""Searches as a user runs them: every method, trials that fail, workers and drivers that are killed, nodes that go."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

ray = pytest.importorskip("ray", reason="a search needs the extra 'search'")
pytest.importorskip("optuna", reason="a search needs the extra 'search'")

from slm_lab.cli import cli  # noqa: E402

ROOT = Path(__file__).parents[2]
SMALL = {
    "agent": {
        "algorithm": {"name": "DQN", "training_start_step": 40, "training_frequency": 8},
        "memory": {"name": "Replay", "batch_size": 8, "max_size": 500},
        "net": {"type": "MLPNet", "hid_layers": [8]},
    },
    "env": {"name": "CartPole-v1", "max_frame": 300},
    "meta": {"max_trial": 3, "eval_frequency": 100, "rigorous_eval": 1, "seed": 3, "compile": False},
    "search": {
        "agent.memory.batch_size__choice": [4, 8],
        "agent.net.optim_spec.lr__loguniform": [0.0001, 0.01],
    },
}


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all searches of this process."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=128 * 2**20)
    yield
    ray.shutdown()


@pytest.fixture
def search(cluster, tmp_path):
    """A search of the spec with changes to it: its folder, and what it printed."""

    def run(spec=SMALL, *words, code=0, mode="search"):
        file = tmp_path / "spec.json"
        file.write_text(json.dumps({"mine": spec}))
        data = tmp_path / "data"
        done = CliRunner().invoke(cli, [str(file), "mine", mode, "--data-dir", str(data), *words])
        assert done.exit_code == code, done.output
        assert "Traceback" not in done.output
        return next(iter(data.glob("*")), None), done.output

    return run


def table(run):
    with open(run / "experiment.csv", newline="") as file:
        return list(csv.DictReader(file))


def statuses(run):
    return [row["status"] for row in table(run)]


def record(run, trial):
    return json.loads((run / f"t{trial}" / "trial.json").read_text())


def changed(**blocks):
    return {**SMALL, **{name: {**SMALL.get(name, {}), **block} for name, block in blocks.items()}}


def test_random_leaves_a_table_its_trials_and_a_best_spec_that_runs_as_it_did(search, kill, tmp_path):
    run, out = search()
    rows = table(run)
    assert [row["trial"] for row in rows] == ["0", "1", "2"]
    assert set(statuses(run)) == {"finished"}
    assert {row["agent.memory.batch_size"] for row in rows} <= {"4", "8"}
    assert all(0.0001 <= float(row["agent.net.optim_spec.lr"]) <= 0.01 for row in rows)
    best = max(rows, key=lambda row: float(row["strength"]))["trial"]
    assert f"best: t{best}" in out
    done = CliRunner().invoke(
        cli, [str(run / "best_spec.json"), "mine", "train", "--data-dir", str(tmp_path / "again")]
    )
    assert done.exit_code == 0, done.output
    [again] = (tmp_path / "again").iterdir()
    shutil.copytree(run / f"t{best}", tmp_path / "best" / "t0")
    assert list(kill.differences(tmp_path / "best", again)) == []


def test_the_same_seed_draws_the_same_and_another_key_changes_nothing(search):
    first, _ = search(SMALL, "-s", "env.max_frame=100")
    draws = [record(first, trial)["draw"] for trial in range(3)]
    shutil.rmtree(first)
    more = {**SMALL, "search": {"agent.algorithm.gamma__uniform": [0.9, 0.99], **SMALL["search"]}}
    again, _ = search(more, "-s", "env.max_frame=100")
    for trial, draw in enumerate(draws):
        gamma = record(again, trial)["draw"].pop("agent.algorithm.gamma")
        assert 0.9 <= gamma <= 0.99
        assert draw.items() <= record(again, trial)["draw"].items()


def test_grid_runs_every_combination_and_random_is_crossed_with_grid_search(search):
    space = {"agent.memory.batch_size__choice": [4, 8], "agent.algorithm.gamma__grid_search": [0.9, 0.99]}
    run, _ = search({**changed(meta={"search": "grid"}), "search": space}, "-s", "env.max_frame=100")
    combinations = {(row["agent.memory.batch_size"], row["agent.algorithm.gamma"]) for row in table(run)}
    assert combinations == {("4", "0.9"), ("4", "0.99"), ("8", "0.9"), ("8", "0.99")}
    assert len(table(run)) == 4
    shutil.rmtree(run)
    run, _ = search({**changed(meta={"max_trial": 2}), "search": space}, "-s", "env.max_frame=100")
    assert [row["agent.algorithm.gamma"] for row in table(run)] == ["0.9", "0.99"] * 2


def test_a_blocks_own_keys_are_searched_only_where_it_is_drawn(search):
    blocks = [{"name": "Replay", "batch_size": 4}, {"name": "PrioritizedReplay", "alpha__uniform": [0.4, 0.8]}]
    spec = {**changed(meta={"max_trial": 6}), "search": {"agent.memory__choice": blocks}}
    run, _ = search(spec, "-s", "env.max_frame=60")
    rows = table(run)
    assert {row["agent.memory"] for row in rows} == {"Replay", "PrioritizedReplay"}
    for row in rows:
        saved = json.loads((run / f"t{row['trial']}" / "spec.json").read_text())["mine"]["agent"]["memory"]
        assert saved["name"] == row["agent.memory"]
        assert (row["agent.memory.alpha"] == "") == (saved["name"] == "Replay")
        if saved["name"] == "PrioritizedReplay":
            assert saved["alpha"] == pytest.approx(float(row["agent.memory.alpha"]))


def test_optuna_learns_from_trials_of_an_earlier_run_too(search):
    blocks = [{"name": "Replay"}, {"name": "PrioritizedReplay", "alpha__quniform": [0.4, 0.8, 0.1]}]
    space = {"agent.memory__choice": blocks, "agent.algorithm.gamma__normal": [0.95, 0.001], **SMALL["search"]}
    del space["agent.memory.batch_size__choice"]
    run, _ = search({**changed(meta={"search": "optuna"}), "search": space}, "-s", "env.max_frame=100")
    assert statuses(run) == ["finished"] * 3
    search(SMALL, "-s", "meta.max_trial=5", mode=f"search@{run}")
    assert statuses(run) == ["finished"] * 5


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_a_scheduler_stops_what_is_worse(search, scheduler):
    space = {"agent.net.optim_spec.lr__grid_search": [0.001, 0.002, 0.003, 0.004, 0.005, 0.006]}
    grace = {"name": scheduler, "grace_period": 100, "reduction_factor": 2}
    spec = {**changed(meta={"max_trial": 1, "search_scheduler": grace, "max_concurrent": 1}), "search": space}
    run, out = search(spec)
    assert statuses(run)[0] == "finished"
    early = [row for row in table(run) if row["status"] == "stopped early" and row["frames"] != "300"]
    assert early
    assert "stopped early" in out
    before = table(run)
    search(SMALL, mode=f"search@{run}")
    assert table(run) == before


def test_a_population_takes_over_what_is_better(search):
    population = {
        "search_resources": {"cpu": 2},  # all there is: they take turns, so that each is compared with the other
        "search": "pbt",
        "search_scheduler": {"name": "pbt", "interval": 100, "quantile": 0.5},
        "max_trial": 2,
    }
    run, _ = search(changed(meta=population))
    assert statuses(run) == ["finished"] * 2
    taken = [trial for trial in range(2) if record(run, trial)["seed"] is not None]
    assert taken
    for trial in taken:
        saved = json.loads((run / f"t{trial}" / "spec.json").read_text())["mine"]
        assert saved["meta"]["seed"] == record(run, trial)["seed"]
        assert 0.0001 <= saved["agent"]["net"]["optim_spec"]["lr"] <= 0.01
        log = (run / f"t{trial}" / "s0" / "log").read_text()
        assert "does not repeat itself" not in log


def test_spec_params_make_a_set_of_trials_each_with_a_best_spec(search):
    spec = {
        **changed(env={"name": "${env}"}, meta={"max_trial": 1}),
        "spec_params": {"env": ["CartPole-v1", "Acrobot-v1"]},
    }
    del spec["search"]
    run, _ = search(spec, "-s", "env.max_frame=60")
    assert [row["env"] for row in table(run)] == ["CartPole-v1", "Acrobot-v1"]
    best = json.loads((run / "best_spec.json").read_text())
    assert {name: tree["env"]["name"] for name, tree in best.items()} == {
        "mine_CartPole-v1": "CartPole-v1",
        "mine_Acrobot-v1": "Acrobot-v1",
    }


def test_a_trial_that_raises_is_recorded_and_ends_no_other(search, tmp_path):
    env = tmp_path / "breaks.py"
    env.write_text(BREAKS)
    space = {"env.kwargs.when__grid_search": [0, 150]}
    spec = {**changed(env={"name": f"{env}:Breaks", "kwargs": {"when": 0}}, meta={"max_trial": 1}), "search": space}
    run, out = search(spec)
    assert statuses(run) == ["finished", "failed"]
    assert "it broke" in table(run)[1]["error"]
    assert "1 finished, 1 failed" in out


BREAKS = (
    "from gymnasium.envs.classic_control import CartPoleEnv\n"
    "class Breaks(CartPoleEnv):\n"
    "    def __init__(self, when=0, **more):\n"
    "        super().__init__(**more)\n"
    "        self.left = when\n"
    "    def step(self, action):\n"
    "        self.left -= 1\n"
    "        if self.left == 0:\n"
    "            raise RuntimeError('it broke')\n"
    "        return super().step(action)\n"
)


def test_a_population_goes_on_without_a_member_that_fails(search, tmp_path):
    env = tmp_path / "breaks.py"
    env.write_text(BREAKS)
    population = {"search": "pbt", "search_scheduler": {"name": "pbt", "interval": 100}, "max_trial": 3}
    spec = changed(env={"name": f"{env}:Breaks", "kwargs": {"when": 0}}, meta=population)
    space = {"env.kwargs.when__choice": [0, 0, 50], "agent.algorithm.gamma__uniform": [0.9, 0.99]}
    run, _ = search({**spec, "search": space}, "--seed", "1")
    assert sorted(set(statuses(run))) == ["failed", "finished"]


def test_a_population_can_be_stopped(search):
    population = {"search": "pbt", "search_scheduler": {"name": "pbt", "interval": 100}, "max_trial": 3}
    _, out = search(changed(meta={**population, "search_time_budget": 0.01}))
    assert "the time budget is spent" in out


def test_a_search_runs_where_it_is_started_with_an_env_from_there(search, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(BREAKS)
    spec = changed(env={"name": "own.py:Breaks", "max_frame": 100}, meta={"max_trial": 1})
    Path("mine.json").write_text(json.dumps({"mine": spec}))
    done = CliRunner().invoke(cli, ["mine.json", "mine", "search"])
    assert done.exit_code == 0, done.output
    [run] = Path("data").glob("mine_*")
    assert statuses(run) == ["finished"]
    done = CliRunner().invoke(cli, ["mine.json", "mine", "enjoy@latest", "-q", "--episodes", "1"])
    assert done.exit_code == 0, done.output


def test_a_trial_may_have_workers(search):
    run, _ = search(changed(meta={"distributed": "actors", "max_trial": 1, "num_workers": 2}))
    assert statuses(run) == ["finished"]


def test_damaged_records_of_trials_with_results_are_told(search):
    run, _ = search(SMALL, "-s", "env.max_frame=100", "-s", "meta.max_trial=1")
    (run / "t0" / "trial.json").write_text("{")
    _, out = search(SMALL, mode=f"search@{run}", code=2)
    assert "t0/trial.json: is damaged" in out


def test_a_search_that_goes_on_keeps_its_space(search):
    run, _ = search(SMALL, "-s", "env.max_frame=100", "-s", "meta.max_trial=1")
    _, out = search(SMALL, "-s", "env.max_frame=200", mode=f"search@{run}", code=2)
    assert "env.max_frame: was 100, is 200" in out


def test_sessions_of_a_trial_count_together(search):
    run, _ = search(changed(meta={"max_session": 2, "max_trial": 2}), "-s", "env.max_frame=100")
    assert [row["frames"] for row in table(run)] == ["100", "100"]
    assert [row["sessions"] for row in table(run)] == ["2", "2"]
    assert (run / "t1" / "s1" / "eval.csv").exists()


def test_the_time_budget_leaves_a_search_that_can_go_on(search):
    run, out = search(SMALL, "-s", "meta.search_time_budget=0.01")
    assert "the time budget is spent" in out
    assert "finished" not in statuses(run) if (run / "experiment.csv").exists() else True
    search(SMALL, "-s", "meta.search_time_budget=1000", mode=f"search@{run}")
    assert statuses(run) == ["finished"] * 3


WRONG = [
    (
        {"search": {"agent.memory.bach_size__choice": [1]}},
        "search.agent.memory.bach_size: no such key; did you mean 'batch_size'?",
    ),
    ({"search": {"agent.memory.max_size__uniform": [10, 100]}}, "search.agent.memory.max_size: got 44.3"),
    (
        {"search": {"agent.algorithm.gamma__uniform": [0.5, 1.5]}},
        "search.agent.algorithm.gamma: got 1.499; must be a number >= 0 and <= 1",
    ),
    (
        {"search": {"agent.memory__choice": [{"name": "Replay"}, {"name": "Reply"}]}},
        "search.agent.memory.name: no memory named 'Reply'",
    ),
    ({"search": {}}, "nothing to search"),
    ({"meta": {"search": "grid"}}, "has no end of values for search 'grid'"),
    ({"meta": {"search": "pbt", "max_trial": 1}}, "a population needs 2 or more"),
    ({"meta": {"search_metric": "strenght"}}, "meta.search_metric: got 'strenght'; did you mean 'strength'?"),
    ({"meta": {"search_scheduler": "pbt"}}, "search_scheduler 'pbt' goes with search 'pbt'"),
    ({"meta": {"search_scheduler": "asa"}}, "no such scheduler; did you mean 'asha'?"),
    ({"spec_params": {"env": ["CartPole-v1"]}}, "spec_params.env: nothing in the spec holds ${env}"),
    ({"spec_params": ["env"]}, "spec_params: got"),
    ({"search": {"env.name.x__choice": [1]}}, "search.env.name.x: leads to no place in the spec"),
    ({"search": {"meta.max_failures__choice": [1]}}, "belongs to the search itself"),
    (
        {"search": {"agent.memory__choice": [{"name": "Replay", "batch_size__grid_search": [4, 8]}]}},
        "inside of a block write __choice",
    ),
    ({"meta": {"search_scheduler": "asha", "parallel": "stack"}}, "'stack' cannot give up a trial"),
    ({"spec_params": {"env": "CartPole-v1"}}, "spec_params.env: got 'CartPole-v1'; must be a list of values"),
]


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_what_is_wrong_is_told_before_anything_starts(tmp_path, change, told):
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({"mine": {**SMALL, **change}}))
    commands = [[str(file), "mine", "search", "--data-dir", str(tmp_path / "data")], ["check", str(file)]]
    for words in commands[: 1 if change == {"search": {}} else 2]:  # a spec need not be searched
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 2, done.output
        assert told in done.output
    assert not (tmp_path / "data").exists()


LONG = changed(env={"max_frame": 3000}, meta={"max_trial": 2, "eval_frequency": 250})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(its spec's file, the run of a search that nobody killed)"""
    folder = tmp_path_factory.mktemp("search")
    (folder / "spec.json").write_text(json.dumps({"mine": LONG}))
    done = subprocess.run(command(folder, "search"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, next((folder / "data").iterdir())


def command(folder, mode, data="data"):
    return [
        sys.executable,
        str(ROOT / "run_lab.py"),
        str(folder / "spec.json"),
        "mine",
        mode,
        "--data-dir",
        str(folder / data),
    ]


def begun(data, rows=2, timeout=120):
    """The run, once its first trial has come to some evaluations."""
    ends = time.monotonic() + timeout
    while time.monotonic() < ends:
        for evals in data.glob("*/t0/s0/eval.csv"):
            if evals.read_text().count("\n") > rows:
                return evals.parents[2]
        time.sleep(0.02)
    raise AssertionError("the search did not begin")


def workers_of(run):
    """Processes that train a trial of the run, which have its table open or its lock."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(os.readlink(handle)).startswith(f"{run}/t") for handle in (folder / "fd").iterdir()):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for the workers")
@pytest.mark.parametrize("how", ["interrupt", "terminate", "driver", "worker"])
def test_after_a_kill_a_search_comes_to_the_same(kill, undisturbed, tmp_path, how):
    folder, whole = undisturbed
    data = f"data_{how}"
    with open(tmp_path / "out", "w") as out:
        driver = subprocess.Popen(
            command(folder, "search", data), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        run = begun(folder / data)
        if how in ("interrupt", "terminate"):
            driver.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGTERM)
            assert driver.wait(120) == (130 if how == "interrupt" else 143)
            assert "go on with" in (tmp_path / "out").read_text()
        elif how == "driver":
            driver.kill()
            driver.wait()
        else:
            killed = workers_of(run)
            assert killed
            for worker in killed:
                os.kill(worker, signal.SIGKILL)
            assert driver.wait(240) == 0, (tmp_path / "out").read_text()
            assert sum(int(row["retries"]) for row in table(run)) >= 1
    if how != "worker":
        done = subprocess.run(command(folder, "search@latest", data), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(run) == ["finished", "finished"]
    assert list(kill.differences(whole, run)) == []


def test_a_trial_of_a_lost_node_moves_to_another(undisturbed, kill, tmp_path):
    from ray.cluster_utils import Cluster

    folder, whole = undisturbed
    ray.shutdown()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 * 2**20})
    try:
        first = nodes.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        nodes.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        nodes.wait_for_nodes()
        data = folder / "data_nodes"
        words = [*command(folder, "search", "data_nodes"), "--address", nodes.address]
        driver = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said: list[str] = []
        listening = threading.Thread(target=lambda: said.extend(driver.stdout))
        listening.start()
        run = begun(data)
        nodes.remove_node(first, allow_graceful=False)
        assert driver.wait(240) == 0, "".join(said)
        listening.join()
    finally:
        nodes.shutdown()
    assert statuses(run) == ["finished", "finished"]
    assert list(kill.differences(whole, run)) == []
