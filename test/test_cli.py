import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

import slm_lab.experiment
import slm_lab.experiment.search  # before the lab is replaced, which it would hold on to
from slm_lab.cli import cli
from slm_lab.errors import Interrupted, Mistake, RunError, SpecError
from slm_lab.spec.files import SHIPPED, spec_files
from slm_lab.spec.schema import read_spec

ROOT = Path(__file__).parent.parent
RANDOM = {"agent": {"algorithm": {"name": "Random"}}, "env": {"name": "CartPole-v1", "max_frame": 100}}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """An empty folder with two specs, and a lab that only notes what it is asked to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec").mkdir()
    specs = {"random": {"description": "a coin for each step", **RANDOM}, "wrong": {**RANDOM, "met": {}}}
    (tmp_path / "spec" / "a.json").write_text(json.dumps(specs))
    lab = types.ModuleType("slm_lab.experiment.lab")
    noted = []
    for name in ("train", "resume", "enjoy", "check"):
        setattr(lab, name, lambda *words, _name=name, **options: noted.append((_name, words, options)))
    lab.read = read_spec
    monkeypatch.setitem(sys.modules, "slm_lab.experiment.lab", lab)
    monkeypatch.setattr(slm_lab.experiment, "lab", lab, raising=False)
    return noted


def invoke(*words):
    """Exit code, what was printed, and what was printed as an error."""
    result = CliRunner().invoke(cli, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_the_random_policy_s_return_is_kept_in_the_user_s_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert invoke("baseline", "CliffWalking-v1", "--episodes", "1")[1].endswith("over 1 episodes (measured)\n")
    assert invoke("baseline", "CliffWalking-v1", "--episodes", "1")[1].endswith("over 1 episodes (cached)\n")
    assert json.loads((tmp_path / "slm_lab" / "random_baselines.json").read_text()).keys() == {"CliffWalking-v1"}


def job_file(tree):
    Path("job.json").write_text(json.dumps(tree))
    return "job.json"


def test_train_reads_the_spec_with_its_changes_and_hands_it_to_the_lab(calls):
    words = ["spec/a.json", "random", "train", "-s", "env.max_frame=7", "--set", "env.num_envs=2", "--seed", "5"]
    assert invoke(*words, "--device", "auto", "--data-dir", "out", "-v") == (0, "", "")
    [(name, (spec,), options)] = calls
    assert name == "train"
    assert (spec.env.max_frame, spec.env.num_envs, spec.meta.seed, spec.meta.device) == (7, 2, 5, "auto")
    assert options == {
        "data_dir": Path("out"),
        "mode": "train",
        "file": "spec/a.json",
        "overrides": ["env.max_frame=7", "env.num_envs=2", "meta.seed=5", "meta.device=auto"],
        "render": False,
        "verbosity": 1,
    }


def test_options_may_come_before_the_words(calls):
    assert invoke("--seed", "5", "-q", "a.json", "random", "dev", "--render")[0] == 0
    [(_, (spec,), options)] = calls
    assert (spec.meta.seed, options["mode"], options["render"], options["verbosity"]) == (5, "dev", True, -1)


def test_train_and_enjoy_go_on_with_a_run(calls):
    run = Path("data/random_2026_01_01_000000")
    run.mkdir(parents=True)
    (run / "spec.json").write_text('{"random": {}}')
    (run / "t0" / "s0").mkdir(parents=True)
    assert invoke("spec/a.json", "random", "train@latest", "--seed", "3")[0] == 0
    assert invoke("spec/a.json", "random", f"enjoy@{run}/t0/s0")[0] == 0
    assert calls[0] == ("resume", (run,), {"overrides": ["meta.seed=3"], "force": False, "verbosity": 0})
    assert calls[1] == ("enjoy", (run / "t0" / "s0",), {"episodes": 10, "render": False, "verbosity": 0, "video": None})


@pytest.mark.parametrize("verb", ["train", "enjoy"])
def test_a_run_of_another_spec_than_the_one_typed_is_refused(calls, verb):
    run = Path("data/dqn_2026_01_01_000000")
    run.mkdir(parents=True)
    (run / "spec.json").write_text('{"dqn": {}}')
    told = f"error: {run} is a run of 'dqn', not of 'random'\n"
    assert invoke("a.json", "random", f"{verb}@{run}") == (2, "", told)
    assert calls == []


def test_completion_offers_the_runs_of_that_spec_alone(calls):
    for name in ("random_2026_01_01_000000", "random_walk_2026_01_01_000000"):
        Path("data", name).mkdir(parents=True)
        Path("data", name, "spec.json").write_text("{}")
    words = {"COMP_WORDS": "slm-lab a.json random enjoy@d", "COMP_CWORD": "3", "_SLM_LAB_COMPLETE": "bash_complete"}
    assert CliRunner().invoke(cli, [], env=words).stdout == "plain,enjoy@data/random_2026_01_01_000000\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["spec/b.json", "random", "train"],
            2,
            "error: spec/b.json: no such file, here or under spec/; did you mean 'spec",
        ),
        (["spec/a.json", "randm", "train"], 2, "error: spec/a.json: no spec named 'randm'; did you mean 'random'?"),
        (["spec/a.json", "random", "trian"], 2, "error: no mode 'trian'; did you mean 'train'?"),
        (["spec/a.json", "random"], 2, "error: 'random' in which mode? one of train, dev"),
        (["spec/a.json"], 2, "error: spec/a.json: holds specs; add the name of one and a mode: random, wrong"),
        (["spec/a.json", "wrong", "train"], 2, "error: spec/a.json: wrong: met: no such key; did you mean 'meta'?"),
        (["spec/a.json", "random", "train", "-s", "env.x"], 2, "error: spec/a.json: random: 'env.x' is no change"),
        (
            ["spec/a.json", "random", "train", "-s", "env.num_env=1"],
            2,
            "error: spec/a.json: random: env.num_env: no such",
        ),
        (["spec/a.json", "random", "train", "--seed", "-1"], 2, "error: Invalid value for '--seed'"),
        (["spec/a.json", "random", "train", "--sed", "1"], 2, "error: No such option"),
        (["spec/a.json", "random", "train", "more"], 2, "error: Got unexpected extra argument"),
        (["--seed", "1"], 2, "error: name a spec file"),
        (["spec/a.json", "random", "search"], 2, "error: spec/a.json: random: search: nothing to search"),
        (["spec/a.json", "random", "train@latest"], 2, "error: no run of spec 'random' in data"),
        (["spec/a.json", "random", "enjoy@latest", "--seed", "1"], 2, "error: enjoy plays the spec saved in the run"),
        (["spec/a.json", "random", "train", "--episodes", "3"], 2, "error: --episodes goes with enjoy"),
        (["spec/a.json", "random", "train", "--video", "films"], 2, "error: --video goes with enjoy"),
        (["spec/a.json", "random", "train", "--force"], 2, "error: --force goes with train@RUN"),
        (["spec/a.json", "random", "enjoy@latest", "--force"], 2, "error: --force goes with train@RUN"),
        (["baseline", "CartPol-v1"], 2, "error: env.name: gymnasium has no env 'CartPol-v1'; did you mean"),
        (["spec/a.json", "random", "enjoy@latest", "--episodes", "0"], 2, "error: Invalid value for '--episodes'"),
        (["spec/a.json", "random", "train@latest", "--render"], 2, "error: --render goes with train, dev and enjoy"),
        (["completion", "tcsh"], 2, "error: Invalid value"),
    ],
)
def test_a_mistake_is_one_line_with_its_exit_code_and_leaves_nothing_behind(calls, words, code, message):
    exit_code, _, error = invoke(*words)
    assert exit_code == code
    assert error.startswith(message)
    assert "Traceback" not in error
    assert calls == []
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (
            SpecError([Mistake("agent.memory", "does not fit")]),
            2,
            "error: spec/a.json: random: agent.memory: does not fit\n",
        ),
        (RunError("no space left"), 1, "error: no space left\n"),
        (TypeError("oops"), 1, "error: TypeError: oops (a fault of the lab; see -v)\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (Interrupted(143), 143, "\n"),
    ],
)
def test_what_the_lab_raises_becomes_an_exit_code(calls, monkeypatch, problem, code, message):
    def train(*words, **options):
        raise problem

    monkeypatch.setattr(sys.modules["slm_lab.experiment.lab"], "train", train)
    assert invoke("spec/a.json", "random", "train")[::2] == (code, message)
    assert ("Traceback" in invoke("spec/a.json", "random", "train", "-v")[2]) is (code < 128)


def test_a_job_file_runs_one_after_another(calls):
    code, out, _ = invoke(job_file({"spec/a.json": {"random": "train"}, "a.json": {"random": "dev"}}), "--seed", "1")
    assert code == 0
    assert [name for name, _, _ in calls] == ["check", "check", "train", "train"]
    assert [options["mode"] for name, _, options in calls if name == "train"] == ["train", "dev"]
    assert out.splitlines() == ["spec/a.json random train", "a.json random dev"]


def test_a_job_file_with_a_wrong_spec_starts_nothing(calls):
    code, _, error = invoke(job_file({"spec/a.json": {"random": "train", "wrong": "train"}}))
    assert code == 2
    assert "wrong: met: no such key" in error
    assert [name for name, _, _ in calls] == ["check"]


def test_a_failed_run_does_not_stop_the_other_jobs(calls):
    code, _, error = invoke(job_file({"spec/a.json": {"random": "train@latest"}, "a.json": {"random": "dev"}}))
    assert code == 1
    assert error.startswith("error: no run of spec 'random'")
    assert [name for name, _, _ in calls] == ["check", "train"]


def test_check_tells_of_every_spec_of_a_file_and_runs_nothing(calls):
    code, out, error = invoke("check", "spec/a.json")
    assert code == 2
    assert out == "random: ok\n"
    assert error == "error: spec/a.json: wrong: met: no such key; did you mean 'meta'?\n"
    assert invoke("check", "spec/a.json", "random") == (0, "random: ok\n", "")
    assert {name for name, _, _ in calls} == {"check"}


DQN = {
    "algorithm": {"name": "DQN"},
    "memory": {"name": "Replay"},
    "net": {"type": "MLPNet", "hid_layers": [4], "hid_layers_activation": "relu"},
}


@pytest.mark.parametrize(
    ("tree", "places"),
    [
        (
            {
                "agent": {**DQN, "memory": {"name": "Replay", "max_sise": 9}},
                "env": {"name": "CartPol-v1", "max_frame": 1},
            },
            ["agent.memory.max_sise", "env.name"],
        ),
        (
            {"agent": {**DQN, "algorithm": {"name": "PPO"}}, "env": {"name": "CartPol-v1", "max_frame": 1}},
            ["agent.memory.name", "env.name"],
        ),
        (
            {
                "agent": {**DQN, "algorithm": {"name": "PPO"}},
                "env": {"name": "CartPol-v1"},
                "meta": {"distributed": "synced", "device": "cuda:99"},
            },
            ["env.max_frame", "agent.memory.name", "meta.device", "meta.device"],
        ),
        (
            {"agent": DQN, "env": {"name": "Nope-v1", "max_frame": 1}, "meta": {"device": "cuda:99"}},
            ["meta.device", "env.name"],
        ),
        ({"agent": 3, "env": [], "meta": None}, ["env", "agent", "meta"]),
        ([], [""]),
    ],
)
def test_mistakes_of_all_parts_are_told_together(tmp_path, tree, places):
    (tmp_path / "a.json").write_text(json.dumps({"a": tree}))
    code, _, error = invoke("check", str(tmp_path / "a.json"))
    assert code == 2
    first, *lines = error.splitlines()
    if len(places) == 1:
        assert places[0] in first
    else:
        assert [line.strip().split(": ")[0] for line in lines] == places


@pytest.mark.parametrize("file", spec_files(SHIPPED), ids=str)
def test_every_spec_that_ships_passes_the_check(file):
    code, out, error = invoke("check", str(file))
    assert (code, error) == (0, "")
    assert all(line.endswith(": ok") for line in out.splitlines())


def test_a_call_without_words_lists_the_specs_and_how_to_run_one(calls):
    code, out, _ = invoke()
    assert code == 0
    assert out.startswith("spec/a.json  random  a coin for each step\nspec/a.json  wrong   Random on CartPole-v1\n")
    assert "python run_lab.py SPEC_FILE SPEC_NAME MODE" in out
    assert invoke("list")[1] == out[: out.index("\n\n") + 1]


def test_help_names_the_options_modes_and_commands(calls):
    code, out, _ = invoke("--help")
    assert code == 0
    for word in ("--seed", "--set", "--data-dir", "--version", "train@latest", "check", "schema", "completion"):
        assert word in out


def test_schema_prints_json():
    code, out, _ = invoke("schema")
    assert code == 0
    assert json.loads(out)["$schema"].startswith("https://json-schema.org/draft/2020-12")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("slm-lab sp", "plain,spec/a.json"),
        ("slm-lab sch", "plain,schema"),
        ("slm-lab --se", "plain,--set\nplain,--seed"),
        ("slm-lab spec/a.json r", "plain,random"),
        ("slm-lab spec/a.json random s", "plain,search\nplain,search@latest"),
        ("slm-lab spec/a.json random enjoy@l", "plain,enjoy@latest"),
        ("slm-lab check spec/a.json w", "plain,wrong"),
    ],
)
def test_completion_knows_files_names_modes_commands_and_options(calls, typed, completed):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_SLM_LAB_COMPLETE": "bash_complete"}
    assert CliRunner().invoke(cli, [], env=words).stdout.startswith(f"{completed}\n")


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ([], {}),
        (["--help"], {}),
        (["--version"], {}),
        (["list"], {}),
        (["completion", "bash"], {}),
        ([], {"COMP_WORDS": "slm-lab spec/", "COMP_CWORD": "1", "_SLM_LAB_COMPLETE": "bash_complete"}),
    ],
)
def test_quick_commands_import_nothing_heavy(words, environment):
    code = f"""
import os, sys
os.environ |= {environment!r}
sys.argv[1:] = {words!r}
from slm_lab.cli import main
try:
    main()
except SystemExit as stop:
    heavy = {{"torch", "numpy", "gymnasium", "pydantic", "numba", "matplotlib"}} & set(sys.modules)
    sys.exit(f"imported {{heavy}}" if heavy else stop.code)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_front_door_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "run_lab.py", "nowhere.json", "x", "train"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere.json: no such file")
