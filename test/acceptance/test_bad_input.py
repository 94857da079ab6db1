"""Malformed and hostile input of every kind: one readable error, exit code 2, no traceback, and nothing created."""

import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from slm_lab.cli import cli
from slm_lab.lib import tree_file
from slm_lab.spec.files import parse_json

CASES = Path(__file__).with_name("bad_specs.json")
BAD_SPECS = parse_json(CASES.read_text(encoding="utf-8"), CASES)
GOOD = {
    "agent": {
        "algorithm": {"name": "DQN", "gamma": 0.9, "training_frequency": 4},
        "memory": {"name": "Replay", "max_size": 500, "batch_size": 8},
        "net": {"type": "MLPNet", "hid_layers": [8], "optim_spec": {"name": "Adam", "lr": 0.01}},
    },
    "env": {"name": "CartPole-v1", "max_frame": 200},
    "meta": {"seed": 3, "eval_frequency": 100, "rigorous_eval": 1},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lab(*words):
    done = CliRunner().invoke(cli, list(map(str, words)))
    return done.exit_code, done.output


def everything(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(folder, told, *words):
    """It is, in words that hold `told`, and leaves all as it was."""
    before = everything(folder)
    code, out = lab(*words)
    assert code == 2, out
    assert "error: " in out, out
    assert told in out
    assert "Traceback" not in out
    assert "a fault of the lab" not in out
    assert everything(folder) == before
    return out


def changed(tree, path, value):
    tree, keys = json.loads(json.dumps(tree)), path.split(".")
    place = tree
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = "x" * 100_000 if value == "LONG" else value
    return tree


@pytest.mark.parametrize("case", BAD_SPECS)
def test_a_spec_with(folder, case):
    tree, told = GOOD, BAD_SPECS[case]["told"]
    for path, value in BAD_SPECS[case].items():
        if path != "told":
            tree = changed(tree, path, value)
    (folder / "spec.json").write_text(json.dumps({"mine": tree}))
    out = refused(folder, told, "spec.json", "mine", "train")
    assert len(out) < 3000


def text_of(tree):
    return json.dumps({"mine": tree})


def nested(depth):
    return '{"mine": ' + '{"a": ' * depth + "1" + "}" * (depth + 1)


FILES = {
    "nothing in it": (b"", "the file is empty"),
    "blanks alone": (b" \n\t ", "the file is empty"),
    "bytes that are not UTF-8": (text_of(GOOD).encode().replace(b"DQN", b"D\xffN"), "is not UTF-8 text"),
    "UTF-16": (text_of(GOOD).encode("utf-16"), "spec.json"),
    "its end cut off": (text_of(GOOD).encode()[:-20], "the file ends in the middle"),
    "a comma too few": (text_of(GOOD).replace(", ", " ", 1).encode(), "not JSON"),
    "words that are no JSON": (b"this is no spec", "not JSON"),
    "a key twice": (b'{"mine": {"env": {}, "env": {}}}', "the key 'env' is given twice"),
    "a spec twice": (b'{"mine": {}, "mine": {}}', "the key 'mine' is given twice"),
    "a list": (b"[1, 2]", "holds a list"),
    "a number": (b"5", "holds a int"),
    "a number of too many digits": (b'{"mine": {"agent": ' + b"9" * 10_000 + b"}}", "not JSON"),
    "blocks nested without end": (nested(100_000).encode(), "spec.json"),
    "blocks nested deeply": (nested(500).encode(), "mine"),
    "a spec without a name": (json.dumps(GOOD).encode(), "holds one spec without a name"),
    "other specs": (json.dumps({"other": GOOD}).encode(), "no spec named 'mine'"),
    "a spec that is text": (b'{"mine": "spec"}', "must be a block"),
    "an empty spec": (b'{"mine": {}}', "agent"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_with(folder, case):
    content, told = FILES[case]
    (folder / "spec.json").write_bytes(content)
    refused(folder, told, "spec.json", "mine", "train")


YAML = {
    "a block that holds itself": ("mine: &a\n  agent: *a\n  env: {name: CartPole-v1}\n", "itself"),
    "aliases that grow without end": (
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
        "g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nmine: {agent: *g, env: *g}\n",
        "mine",
    ),
    "an object of Python": ("mine: !!python/object/apply:os.system ['touch harm']\n", "not YAML"),
    "a tab": ("mine:\n\tagent: 1\n", "not YAML"),
    "an alias of nothing": ("mine: *nobody\n", "not YAML"),
}


@pytest.mark.parametrize("case", YAML)
def test_a_yaml_file_with(folder, case):
    content, told = YAML[case]
    (folder / "spec.yaml").write_text(content)
    refused(folder, told, "spec.yaml", "mine", "train")


def test_a_byte_order_mark_does_no_harm(folder):
    (folder / "spec.json").write_bytes(b"\xef\xbb\xbf" + text_of(GOOD).encode())
    assert lab("check", "spec.json") == (0, "mine: ok\n")


@pytest.mark.parametrize("name", ["..", "a/b", "/tmp/harm", "nul\\l", ""])
def test_a_spec_whose_name_leads_elsewhere(folder, name):
    (folder / "spec.json").write_text(json.dumps({name: GOOD}))
    refused(folder, "cannot name a folder", "spec.json", name, "train")


def test_a_spec_file_that_is_a_folder(folder):
    (folder / "spec.json").mkdir()
    refused(folder, "is a folder", "spec.json", "mine", "train")


def test_a_data_folder_that_is_a_file(folder):
    (folder / "spec.json").write_text(text_of(GOOD))
    (folder / "data").write_text("")
    refused(folder, "data", "spec.json", "mine", "train")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_data_folder_that_cannot_be_written(folder):
    (folder / "spec.json").write_text(text_of(GOOD))
    (folder / "data").mkdir()
    (folder / "data").chmod(stat.S_IRUSR | stat.S_IXUSR)
    refused(folder, "cannot write there", "spec.json", "mine", "train")


# run folders that somebody has tampered with


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "spec.json").write_text(text_of(GOOD))
    code, out = lab(folder / "spec.json", "mine", "train", "-q", "--data-dir", folder / "data")
    assert code == 0, out
    return folder / "data"


@pytest.fixture
def run(trained, folder):
    """A copy of a finished run, in ./data."""
    shutil.copytree(trained, folder / "data")
    [run] = (folder / "data").iterdir()
    return run


def with_both(run, change):
    """Both checkpoints with other contents, and the checksums that go with these."""
    for name in ("latest", "previous"):
        file = run / "t0" / "s0" / "checkpoint" / f"{name}.safetensors"
        tree = tree_file.read(file)
        change(tree)
        tree_file.write(file, tree)


def a_key_gone(tree):
    del tree["agent"]["algorithm"]


def other_parameters(tree):
    tree["agent"]["algorithm"]["learner"]["parameters"] = [np.zeros(5, np.float32)]


def text_for_a_number(tree):
    tree["clock"]["frame"] = "many"


def more_rows_than_files(tree):
    tree["agent"]["memory"]["ring"]["head"] = [10**15]
    tree["agent"]["memory"]["ring"]["seen"] = 10**15


def a_part_beyond_its_file(tree):
    segments = tree["agent"]["memory"]["ring"]["segments"]
    segments["parts"][:, 1] = 10**15
    segments["stop"][:] = segments["start"] + 10**15


def a_file_elsewhere(tree):
    tree["agent"]["memory"]["ring"]["segments"]["number"] = np.array(["../../../../etc/passwd"]).view(np.uint8)


def a_generator_of_another_kind(tree):
    tree["agent"]["memory"]["generator"]["bit_generator"] = "os.system"


def other_envs(tree):
    tree["env"]["episode"] = [1, 2, 3]


def a_longer_table(tree):
    tree["logbook"]["train"]["bytes"] = 10**12


def a_table_of_less_than_nothing(tree):
    tree["logbook"]["train"]["bytes"] = -1


def returns_without_a_mean(tree):
    tree["logbook"]["tally"]["recent"] = [float("inf"), float("-inf")]


def a_best_score_that_is_none(tree):
    tree["best"] = float("nan")


def a_time_without_end(tree):
    tree["clock"]["wall_time"] = "nan"


def no_digests_of_envs(tree):
    tree["env"]["obs"] = []


TREES = [
    a_key_gone,
    other_parameters,
    text_for_a_number,
    more_rows_than_files,
    a_part_beyond_its_file,
    a_file_elsewhere,
    a_generator_of_another_kind,
    other_envs,
    a_longer_table,
    a_table_of_less_than_nothing,
    returns_without_a_mean,
    a_best_score_that_is_none,
    a_time_without_end,
    no_digests_of_envs,
]


@pytest.mark.parametrize("change", TREES, ids=lambda change: change.__name__)
def test_a_checkpoint_with(run, folder, change):
    with_both(run, change)
    assert "checkpoint" in refused_to_go_on(run, folder, written=("log", "metrics.json"))


def refused_to_go_on(run, folder, written):
    """What is told; but for the files that may be `written`, all of the run stays."""
    (folder / "spec.json").write_text(text_of(GOOD))
    before = {path: content for path, content in everything(run).items() if path.name not in written}
    code, out = lab("spec.json", "mine", f"train@{run}", "-s", "env.max_frame=300")
    assert code == 2, out
    assert "error: " in out
    assert "Traceback" not in out
    assert {path: content for path, content in everything(run).items() if path in before} == before
    return out


def spoil(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def damaged_spec(run):
    (run / "spec.json").write_text("{")


def no_spec(run):
    (run / "spec.json").unlink()


def spec_of_another_kind(run):
    (run / "spec.json").write_text('{"mine": {}}')


def two_specs(run):
    (run / "spec.json").write_text(json.dumps({"mine": GOOD, "other": GOOD}))


def damaged_checkpoints(run):
    for file in (run / "t0" / "s0" / "checkpoint").glob("*.safetensors"):
        spoil(file)


def short_checkpoints(run):
    for file in (run / "t0" / "s0" / "checkpoint").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])


def no_checkpoints(run):
    shutil.rmtree(run / "t0" / "s0" / "checkpoint")


def no_rows(run):
    shutil.rmtree(run / "t0" / "s0" / "checkpoint" / "rows")


def damaged_rows(run):
    for file in (run / "t0" / "s0" / "checkpoint" / "rows").glob("*.bin"):
        spoil(file)


def newer_format(run):
    for file in (run / "t0" / "s0" / "checkpoint").glob("*.safetensors"):
        before = tree_file.FORMAT
        tree_file.FORMAT = 99
        try:
            tree_file.write(file, {})
        finally:
            tree_file.FORMAT = before


def pickles(run):
    import torch

    for file in (run / "t0" / "s0" / "checkpoint").glob("*.safetensors"):
        torch.save({"a": torch.zeros(3)}, file)


def no_table_at_all(run):
    (run / "t0" / "s0" / "train.csv").write_bytes(b"x" * 5000)


def a_shorter_table(run):
    file = run / "t0" / "s0" / "train.csv"
    file.write_bytes(file.read_bytes()[:-60])


FOLDERS = {
    damaged_spec: "not JSON",
    no_spec: "not a run folder",
    spec_of_another_kind: "agent",
    two_specs: "2 specs in it",
    damaged_checkpoints: "no checkpoint to go on from",
    short_checkpoints: "no checkpoint to go on from",
    no_checkpoints: "no checkpoint to go on from",
    no_rows: "rows",
    damaged_rows: "does not match its checksum",
    newer_format: "is newer than this lab's",
    pickles: "no checkpoint to go on from",
    no_table_at_all: "has no whole line",
    a_shorter_table: "shorter than its checkpoint says",
}


@pytest.mark.parametrize("damage", FOLDERS, ids=lambda damage: damage.__name__)
def test_a_run_with(run, folder, damage):
    damage(run)
    out = refused_to_go_on(run, folder, written=("log", "metrics.json"))
    assert FOLDERS[damage] in out


HARM = "open('harm', 'w')\nimport gymnasium\nclass Env(gymnasium.Env): pass\n"


@pytest.mark.parametrize("verb", ["train", "enjoy"])
@pytest.mark.parametrize(
    "name",
    ["{run}/own.py:Env", "own:Env-v0", "own:ns/Env-v0", "{dotted}.own:Env-v0", "{dotted}.own:x y", "data:{name}:own:x"],
)
def test_code_in_a_run_s_own_folder_is_not_run(run, folder, monkeypatch, verb, name):
    (run / "own.py").write_text(HARM)
    monkeypatch.syspath_prepend(run)  # as if the lab were started in that folder
    saved = json.loads((run / "spec.json").read_text())
    monkeypatch.syspath_prepend(folder)
    dotted = ".".join(run.relative_to(folder).parts)
    name = name.format(run=run.relative_to(folder), dotted=dotted, name=run.name)
    (folder / "spec.json").write_text(text_of(GOOD))
    for change in (
        {"env": {"name": name}},
        {"env": {"wrappers": [{"name": name}]}},
        {"agent": {"net": {"type": name}}},
    ):
        tampered = json.loads(json.dumps(saved))
        for block, keys in change.items():
            tampered["mine"][block].update(keys)
        (run / "spec.json").write_text(json.dumps(tampered))
        refused(folder, "is code in the run's own folder", "spec.json", "mine", f"{verb}@{run}")


@pytest.mark.parametrize("verb", ["check", "train"])
def test_the_spec_in_a_run_s_folder_brings_no_code_either(run, folder, verb):
    (run / "own.py").write_text(HARM)
    saved = json.loads((run / "spec.json").read_text())
    saved["mine"]["env"]["name"] = "own.py:Env"
    (run / "spec.json").write_text(json.dumps(saved))
    words = ("check", run / "spec.json") if verb == "check" else (run / "spec.json", "mine", "train")
    refused(folder, "is code in the run's own folder", *words)


LINKS = ["lock", ".spec.json.tmp", "t0/s0/train.csv", "t0/s0/log", "t0/s0/metrics.json", "t0/s0/checkpoint/rows"]


@pytest.mark.parametrize("verb", ["train", "enjoy"])
@pytest.mark.parametrize("name", LINKS)
def test_a_run_with_a_link_that_leads_out_of_it(run, folder, verb, name):
    (folder / "spec.json").write_text(text_of(GOOD))
    outside = folder / "outside"
    outside.mkdir()
    (outside / "precious").write_text("of somebody")
    place = run / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(outside if name.endswith("rows") else outside / "precious")
    refused(folder, "this is a link", "spec.json", "mine", f"{verb}@{run}", *FURTHER[verb])


FURTHER = {"train": ("-s", "env.max_frame=300"), "enjoy": ()}


def test_a_run_with_a_pipe_or_a_folder_where_a_file_belongs(run, folder):
    (folder / "spec.json").write_text(text_of(GOOD))
    (run / "t0" / "s0" / "metrics.json").unlink()
    os.mkfifo(run / "t0" / "s0" / "metrics.json")
    before = [path.name for path in run.rglob("*")]
    assert lab("spec.json", "mine", f"enjoy@{run}")[0] == 2
    (run / "t0" / "s0" / "metrics.json").unlink()
    (run / "t0" / "s0" / "metrics.json").mkdir()
    refused(folder, "is a folder where a file belongs", "spec.json", "mine", f"train@{run}", *FURTHER["train"])
    assert [path.name for path in run.rglob("*")] == before


NO_METRICS = [
    '{"status": "finished", "session": 0, "frames": "many"}',
    '{"status": "finished", "frames": 200}',
    '{"status": "finished", "session": 0, "frames": 1e300}',
    '{"status": "finished", "session": 0, "frames": 1000, "best_return": "x"}',
    '{"status": "ended", "session": 0, "frames": 5}',
    "[" * 100_000,
    "7",
]


@pytest.mark.parametrize("metrics", NO_METRICS)
def test_metrics_that_are_none_count_for_nothing(run, folder, metrics):
    (folder / "spec.json").write_text(text_of(GOOD))
    (run / "t0" / "s0" / "metrics.json").write_text(metrics)
    code, out = lab("spec.json", "mine", f"train@{run}", *FURTHER["train"])
    assert code == 0, out
    assert "300/300 frames" in out


def test_code_of_others_that_a_run_names_is_told_before_it_is_imported(run, folder):
    saved = json.loads((run / "spec.json").read_text())
    saved["mine"]["env"]["name"] = "nowhere.py:Env"
    (run / "spec.json").write_text(json.dumps(saved))
    (folder / "spec.json").write_text(text_of(GOOD))
    out = refused(folder, "there is no file nowhere.py", "spec.json", "mine", f"enjoy@{run}")
    assert out.startswith("the run's spec names code from outside the lab: env.name 'nowhere.py:Env'\n")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("data/nothing", "no such run folder"),
        ("data", "not a run folder"),
        ("spec.json", "not a folder"),
        ("", "of which run?"),
        ("RUN/t5", "no such folder"),
        ("RUN/t0/s9", "no such folder"),
        ("RUN/../../..", "not a run folder"),
        ("nul\0", "nul"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "enjoy"])
def test_a_target_that_is_none(run, folder, verb, target, told):
    (folder / "spec.json").write_text(text_of(GOOD))
    refused(folder, told, "spec.json", "mine", f"{verb}@{target.replace('RUN', str(run))}")


def test_of_these_there_are_enough():
    assert len(BAD_SPECS) + len(FILES) + len(YAML) + len(TREES) + len(FOLDERS) >= 80


def test_none_of_it_has_run_any_code(tmp_path_factory):
    assert not list(tmp_path_factory.getbasetemp().rglob("harm"))
