import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm_lab.errors import SpecError
from slm_lab.spec.space import KINDS, read_space, substitute

TREE = {"agent": {"net": {"lr": 1}, "memory": {"name": "Replay"}}, "env": {"name": "CartPole-v1"}}


def key(**search):
    """The one key of a space."""
    [found] = read_space({f"agent.x__{kind}": values for kind, values in search.items()}).keys
    return found


@pytest.mark.parametrize(
    ("kind", "limits", "drawn"),
    [
        ("uniform", [2, 4], {0: 2, 0.25: 2.5, 0.5: 3}),
        ("loguniform", [1, 10000], {0: 1, 0.25: 10, 0.5: 100, 0.75: 1000}),
        ("quniform", [0, 1, 0.25], {0: 0, 0.19: 0, 0.21: 0.25, 0.5: 0.5, 0.99: 1}),
        ("quniform", [0.1, 0.5, 0.2], {0: 0.1, 0.34: 0.3, 0.99: 0.5}),
        ("randint", [3, 6], {0: 3, 0.34: 4, 0.99: 5}),
        ("qrandint", [8, 32, 8], {0: 8, 0.26: 16, 0.99: 32}),
        ("lograndint", [1, 1000], {0: 1, 0.5: 31, 0.9999: 999}),
        ("normal", [5, 2], {0.5: 5, 0.841344746: 7}),
        ("choice", ["a", "b", "c"], {0: 0, 0.34: 1, 0.99: 2}),
        ("grid_search", [1, 2], {0: 0, 0.5: 1}),
    ],
)
def test_a_distribution_has_these_quantiles(kind, limits, drawn):
    for quantile, value in drawn.items():
        assert key(**{kind: limits}).at(quantile) == pytest.approx(value)


numbers = st.floats(1e-6, 1e6).map(lambda value: float(f"{value:.4g}"))
ranges = st.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1]).map(list)
whole = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).filter(lambda pair: pair[0] < pair[1]).map(list)
plain = st.one_of(
    st.tuples(st.sampled_from(["uniform", "loguniform"]), ranges),
    st.tuples(st.sampled_from(["randint", "lograndint"]), whole),
    st.tuples(st.just("quniform"), ranges.map(lambda pair: [*pair, (pair[1] - pair[0]) / 7])),
    st.tuples(st.just("qrandint"), whole.map(lambda pair: [*pair, max(1, (pair[1] - pair[0]) // 3)])),
    st.tuples(st.sampled_from(["choice", "grid_search"]), st.lists(st.integers(-5, 5), min_size=1, max_size=4)),
)
inner = st.dictionaries(st.sampled_from(["a", "b", "deep.c"]), plain, max_size=3)


def searched(block, crossed="grid_search"):
    return {f"{name}__{crossed if kind == 'grid_search' else kind}": values for name, (kind, values) in block.items()}


spaces = st.fixed_dictionaries(
    {"plain": inner, "blocks": st.lists(inner, min_size=1, max_size=3)},
).map(
    lambda parts: {
        "agent.net": searched(parts["plain"]),
        "agent.memory__choice": [
            {"name": f"m{i}", **searched(block, "choice")} for i, block in enumerate(parts["blocks"])
        ],
    }
)


def in_range(value, kind, limits):
    if kind in ("choice", "grid_search"):
        return value in limits
    if kind in ("randint", "lograndint"):
        return isinstance(value, int) and limits[0] <= value < limits[1]
    if kind == "qrandint":
        return isinstance(value, int) and limits[0] <= value <= limits[1] and (value - limits[0]) % limits[2] == 0
    slack = 1e-9 * abs(limits[1])
    inside = limits[0] - slack <= value <= limits[1] + slack
    if kind == "quniform":
        steps = (value - limits[0]) / limits[2]
        return inside and math.isclose(steps, round(steps), abs_tol=1e-6)
    return inside


def value_at(tree, path):
    for part in path.split("."):
        tree = tree[part]
    return tree


@given(spaces, st.integers(0, 2**31), st.integers(0, 1000))
def test_what_is_drawn_lies_in_range_and_comes_again_with_the_seed(search, seed, index):
    space = read_space(search)
    draw = space.random(seed, index)
    assert draw == space.random(seed, index)
    tree = space.apply(TREE, draw)
    memory = tree["agent"]["memory"]
    blocks = {block["name"]: block for block in search["agent.memory__choice"]}
    assert memory["name"] in blocks
    for place, block in ((tree["agent"]["net"], search["agent.net"]), (memory, blocks[memory["name"]])):
        for name, limits in block.items():
            path, mark, kind = name.rpartition("__")
            if mark:
                assert in_range(value_at(place, path), kind, limits)
    assert not any("__" in part for part in str(tree).split("'"))
    assert TREE["agent"]["memory"] == {"name": "Replay"}


@given(spaces)
def test_probes_draw_every_option_and_the_grid_every_combination(search):
    space = read_space(search)
    keys = {found.name for found in space.all_keys()}
    assert {found.name for found, _ in space.probes()} == keys
    tried = [(found.name, draw[found.name]) for found, draw in space.probes() if found.options]
    assert set(tried) == {(found.name, i) for found in space.all_keys() for i in range(len(found.options))}
    for draw in space.grid(("choice", "grid_search")):
        space.values(space.random(0, 0, draw))


def test_a_grid_goes_through_all_combinations_the_last_key_the_fastest():
    space = read_space(
        {
            "agent.a__grid_search": [1, 2],
            "agent.b__choice": [{"name": "x", "c__choice": [5, 6]}, {"name": "y"}],
        }
    )
    grid = [space.values(draw) for draw in space.grid(("grid_search", "choice"))]
    assert grid == [
        {"agent.a": a, **rest}
        for a, rest in itertools.product(
            [1, 2],
            [{"agent.b": "x", "agent.b.c": 5}, {"agent.b": "x", "agent.b.c": 6}, {"agent.b": "y"}],
        )
    ]
    assert len(space.grid()) == 2


def test_a_block_keeps_what_is_not_searched_in_it_however_deep():
    block = {"type": "MLPNet", "optim_spec": {"name": "Adam", "lr__uniform": [1, 2]}}
    space = read_space({"agent.net__choice": [block]})
    net = space.apply(TREE, space.random(0, 0))["agent"]["net"]
    assert net["optim_spec"]["name"] == "Adam"
    assert 1 <= net["optim_spec"]["lr"] <= 2


def test_spec_params_fill_in_their_places_and_are_crossed_with_the_space():
    space = read_space({"agent.a__choice": [1]}, {"env": ["A-v0", "B-v0"], "n": [1, 4]})
    tree = {"env": {"name": "${env}", "num_envs": "${n}"}, "description": "${env} with ${n}", "agent": {}}
    made = [space.apply(tree, space.random(0, i, draw)) for i, draw in enumerate(space.grid())]
    assert [(m["env"]["name"], m["env"]["num_envs"]) for m in made] == [
        ("A-v0", 1),
        ("A-v0", 4),
        ("B-v0", 1),
        ("B-v0", 4),
    ]
    assert made[1]["description"] == "A-v0 with 4"


def test_text_around_a_parameter_stays_text():
    assert substitute({"a": ["${x}", "${x}-v1", "$x"]}, {"x": 3}) == {"a": [3, "3-v1", "$x"]}


@pytest.mark.parametrize(
    ("search", "told"),
    [
        ({"agent.a__unifrm": [1, 2]}, "search.agent.a__unifrm: no such distribution; did you mean 'uniform'?"),
        ({"agent.a__uniform": [2, 1]}, "low must be less than high"),
        ({"agent.a__uniform": [1]}, "must be [low, high]"),
        ({"agent.a__uniform": 1}, "must be a list"),
        ({"agent.a__uniform": [1, float("inf")]}, "must be [low, high]"),
        ({"agent.a__loguniform": [0, 1]}, "low must be > 0"),
        ({"agent.a__quniform": [0, 1, 0]}, "the step must be > 0"),
        ({"agent.a__randint": [1, 10**400]}, "must be [low, high"),
        ({"agent.a__randint": [0, 2.5]}, "must be integers"),
        ({"agent.a__normal": [0, 0]}, "the deviation must be > 0"),
        ({"agent.a__choice": []}, "must be a list"),
        ({"agent.a": 1}, "nothing is searched here"),
        ({"a__choice": [1]}, "what is searched lies in agent, env or meta"),
        ({"meta.seed__choice": [1]}, "belongs to the search itself"),
        ({"agent.a__choice": [1], "agent": {"a__uniform": [1, 2]}}, "is searched twice"),
        ({"agent.m__choice": [1], "agent.m.a__choice": [1]}, "agent.m is searched as a whole"),
        ({"agent.a__grid_search": list(range(400)), "agent.b__grid_search": list(range(400))}, "combinations"),
        ([1], "must be a block"),
    ],
)
def test_what_is_wrong_in_a_space_is_told(search, told):
    with pytest.raises(SpecError) as caught:
        read_space(search).grid()
    assert told in str(caught.value)


def test_every_kind_is_one_of_rays_names():
    tune = pytest.importorskip("ray.tune")
    assert [kind for kind in KINDS if kind != "normal" and not hasattr(tune, kind)] == []
    assert hasattr(tune, "randn")
