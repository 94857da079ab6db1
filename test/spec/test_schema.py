import json
import math

import pydash
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm_lab.errors import SpecError
from slm_lab.spec import registry
from slm_lab.spec.schema import EnvSpec, MetaSpec, read_spec


def mistakes(tree):
    with pytest.raises(SpecError) as caught:
        read_spec(tree, "demo", "spec/demo.json")
    return [str(mistake) for mistake in caught.value.mistakes]


def changed(flat, path, value):
    return pydash.set_(flat, path, value)


def test_both_shapes_make_the_same_spec(flat, nested):
    assert read_spec(flat, "demo") == read_spec(nested, "demo")


def test_blocks_are_the_settings_of_the_classes_they_name(flat):
    spec = read_spec(flat, "demo")
    assert (spec.agent.algorithm.gamma, spec.agent.memory.batch_size, spec.agent.net.hid_layers) == (0.9, 10, [32, 16])
    assert (spec.name, spec.env.num_envs, spec.meta.max_session, spec.meta.rigorous_eval) == ("demo", 1, 2, 8)


def test_the_filled_in_tree_is_json_and_reads_back_to_an_equal_spec(flat):
    spec = read_spec(flat, "demo")
    tree = json.loads(json.dumps(spec.to_tree()))
    assert tree["agent"]["algorithm"]["bounds"] == [0.0, 1.0]
    assert read_spec(tree, "demo") == spec


@pytest.mark.parametrize("algorithm", ["Random", "standin:Actor"])
def test_an_algorithm_that_does_not_learn_needs_neither_memory_nor_net(flat, algorithm):
    flat["agent"] = {"algorithm": {"name": algorithm}}
    spec = read_spec(flat, "demo")
    assert spec.agent.memory is None
    assert spec.agent.net is None
    assert read_spec(spec.to_tree(), "demo") == spec


def test_an_algorithm_that_learns_needs_memory_and_net(flat):
    del flat["agent"]["memory"], flat["agent"]["net"]
    assert [line.partition(";")[0] for line in mistakes(flat)] == ["agent.memory: missing", "agent.net: missing"]


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("agent.memory.max_sise", 5, "agent.memory.max_sise: no such key; did you mean 'max_size'?"),
        ("agent.memory.batch_size", -4, "agent.memory.batch_size: got -4; must be an integer >= 1"),
        ("agent.memory.batch_size", True, "agent.memory.batch_size: got true; must be an integer >= 1"),
        ("agent.memory.batch_size", 1.5, "agent.memory.batch_size: got 1.5; must be an integer >= 1"),
        ("agent.memory.use_cer", 1, "agent.memory.use_cer: got 1; must be true or false"),
        ("agent.memory.batch_size", 500, "agent.memory: batch_size 500 is more than max_size 100"),
        ("agent.memory.name", 3, "agent.memory.name: got 3; must be one of Replay, PrioritizedReplay, "),
        ("agent.algorithm.name", "DQNN", "agent.algorithm.name: no algorithm named 'DQNN'; did you mean 'DQN'?"),
        ("agent.algorithm.name", "standin:B", "agent.algorithm.name: cannot import algorithm 'standin:B': "),
        ("agent.algorithm.name", "standin:Bare", "agent.algorithm.name: algorithm 'standin:Bare' has no settings"),
        ("agent.algorithm.gamma", 2, "agent.algorithm.gamma: got 2; must be a number >= 0 and <= 1"),
        ("agent.algorithm.gamma", False, "agent.algorithm.gamma: got false; must be a number >= 0 and <= 1"),
        ("agent.algorithm.gamma", math.nan, "agent.algorithm.gamma: got nan; must be a finite number"),
        ("agent.algorithm.gamma", "nan", "agent.algorithm.gamma: got 'nan'; must be a number >= 0 and <= 1"),
        ("agent.algorithm.gamma", 10**400, "agent.algorithm.gamma: got 1000"),
        ("agent.algorithm.alpha", "aut", "agent.algorithm.alpha: got 'aut'; must be a number, 'auto' or null; did you"),
        ("agent.algorithm.bounds", [1, 2, 3], "agent.algorithm.bounds: got [1, 2, 3]; must be a list of 2"),
        (
            "agent.algorithm.explore_var_spec.name",
            "linear",
            "agent.algorithm.explore_var_spec.name: got 'linear'; must be 'no_decay' or 'linear_decay'; did you mean",
        ),
        ("agent.net.hid_layers", [8, "x"], "agent.net.hid_layers[1]: got 'x'; must be an integer"),
        ("agent.net", [1, 2], "agent.net: got [1, 2]; must be a block with a 'type': MLPNet"),
        ("agent.nett", 1, "agent.nett: no such key; did you mean 'net'?"),
        ("env.max_fram", 1, "env.max_fram: no such key; did you mean 'max_frame'?"),
        ("env.max_frame", None, "env.max_frame: got null; must be an integer >= 1"),
        ("env", 3, "env: got 3; must be a block"),
        ("env", [{}, {}], "env: a list of 2; a spec has one env"),
        ("env.kwargs.render_fps", math.inf, "env.kwargs.render_fps: got inf; must be a finite number"),
        (
            "meta.distributed",
            "syncd",
            "meta.distributed: got 'syncd'; must be false, 'shared', 'synced' or 'actors'; did you mean",
        ),
        ("meta.distributed", 0, "meta.distributed: got 0; must be false, 'shared', 'synced' or 'actors'"),
        ("meta.compile", 1, "meta.compile: got 1; must be true, false or 'auto'"),
        ("meta.device", "gpu", "meta.device: got 'gpu'; must be one of 'auto', 'cpu', 'cuda'"),
        ("meta.seed", -1, "meta.seed: got -1; must be an integer >= 0 or null"),
        ("body", {"product": "outer", "num": 2}, "body.num: got 2; a spec has one agent in one env"),
        ("serch", {}, "serch: no such key; did you mean 'search'?"),
        ("name", "x", "name: no such key; the name of a spec is its key in the file"),
    ],
)
def test_a_mistake_is_told_with_its_place_what_was_given_and_what_is_allowed(flat, path, value, line):
    lines = mistakes(changed(flat, path, value))
    assert len(lines) == 1, lines
    assert lines[0].startswith(line)
    assert "Input should" not in lines[0]


def test_all_mistakes_are_told_together_with_file_and_spec(flat):
    del flat["env"]["max_frame"]
    changed(flat, "agent.memory.max_sise", 5)
    changed(flat, "agent.net.type", "MLPNett")
    changed(flat, "meta.eval_frequency", 0)
    with pytest.raises(SpecError) as caught:
        read_spec(flat, "demo", "spec/demo.json")
    assert str(caught.value).splitlines() == [
        "spec/demo.json: demo: 4 mistakes",
        "  agent.memory.max_sise: no such key; did you mean 'max_size'?",
        "  agent.net.type: no net named 'MLPNett'; did you mean 'MLPNet'?",
        "  env.max_frame: missing; must be an integer >= 1",
        "  meta.eval_frequency: got 0; must be an integer >= 1",
    ]


@pytest.mark.parametrize("tree", [None, 3, [], "x", {}, {"agent": 3}, {"agent": []}, {"agent": {"algorithm": []}}])
def test_what_is_no_spec_at_all_is_refused(tree):
    assert mistakes(tree)


def test_a_tree_that_holds_itself_is_refused(flat):
    flat["env"]["kwargs"] = flat["env"]
    assert "nested more than" in mistakes(flat)[0]


def test_a_tree_that_grows_without_end_is_refused(flat):
    bomb = [1] * 10
    for _ in range(9):
        bomb = [bomb] * 10
    flat["env"]["kwargs"] = {"x": bomb}
    assert "more than 100000 values" in mistakes(flat)[0]


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_spec_name_must_be_able_to_name_a_folder(flat, name):
    with pytest.raises(SpecError, match="cannot name a folder"):
        read_spec(flat, name)


@pytest.mark.parametrize("value", [1000, 1e3, "1000", "1e3", " 1e3 "])
def test_whole_numbers_are_read_however_they_are_spelled(value):
    frames = EnvSpec(name="CartPole-v1", max_frame=value).max_frame
    assert frames == 1000
    assert type(frames) is int


def test_a_number_is_not_read_where_text_belongs(flat):
    assert mistakes(changed(flat, "env.name", 3)) == ["env.name: got 3; must be a string"]


def test_every_field_of_env_and_meta_is_documented():
    for model in (EnvSpec, MetaSpec):
        assert all(field.description for field in model.model_fields.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    "agent",
    "env",
    "meta",
    "body",
    "agent.memory",
    "agent.memory.name",
    "agent.algorithm.gamma",
    "agent.net.type",
]


@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_json_value_at_any_place_is_read_or_refused_in_words(place, value):
    tree = {"agent": {"algorithm": {"name": "Random"}}, "env": {"name": "CartPole-v1", "max_frame": 10}, "meta": {}}
    try:
        spec = read_spec(pydash.set_(tree, place, value), "demo")
    except SpecError:
        return
    assert read_spec(spec.to_tree(), "demo") == spec


@pytest.mark.parametrize("algorithm", registry.names("algorithm"))
@pytest.mark.parametrize("memory", registry.names("memory"))
@pytest.mark.parametrize("net", registry.names("net"))
def test_every_name_reads_with_defaults_alone_and_round_trips(algorithm, memory, net):
    agent = {"algorithm": {"name": algorithm}, "memory": {"name": memory}, "net": {"type": net}}
    spec = read_spec({"agent": agent, "env": {"name": "CartPole-v1", "max_frame": 10}}, "demo")
    assert read_spec(json.loads(json.dumps(spec.to_tree())), "demo") == spec
