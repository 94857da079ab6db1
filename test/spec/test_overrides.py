import copy

import pytest

from slm_lab.errors import SpecError
from slm_lab.spec.overrides import apply
from slm_lab.spec.schema import read_spec


@pytest.mark.parametrize("shape", ["flat", "nested"])
@pytest.mark.parametrize("path", ["agent.memory.batch_size", "agent.0.memory.batch_size"])
def test_a_change_applies_in_both_shapes_and_leaves_the_tree_as_it_was(shape, path, request):
    tree = request.getfixturevalue(shape)
    before = copy.deepcopy(tree)
    assert apply(tree, [f"{path}=64"])["agent"]["memory"]["batch_size"] == 64
    assert tree == before


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e3", 1000.0), ("[8, 4]", [8, 4]), ("null", None), ("true", True), ("abc", "abc"), ("", ""), ("a=b", "a=b")],
)
def test_values_are_json_or_else_text(flat, text, value):
    assert apply(flat, [f"meta.x={text}"])["meta"]["x"] == value


def test_an_item_of_a_list_can_be_changed(flat):
    assert apply(flat, ["agent.net.hid_layers[1]=99"])["agent"]["net"]["hid_layers"] == [32, 99]


def test_a_missing_block_on_the_way_is_made(flat):
    del flat["meta"]
    assert apply(flat, ["meta.seed=3"])["meta"] == {"seed": 3}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent.memory.name.x=1", "agent.memory.name: is 'standin:M', not a block; it has no key 'x' to set"),
        ("agent.net.hid_layers[7]=1", "agent.net.hid_layers: a list of 2 has no item '7'"),
        ("agent.memory.batch_size", "'agent.memory.batch_size' is no change; write agent.memory.batch_size=64"),
        ("=3", "'=3' is no change; write agent.memory.batch_size=64"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(flat, override, message):
    with pytest.raises(SpecError) as caught:
        apply(flat, [override])
    assert str(caught.value) == message


def test_an_unknown_key_falls_out_of_validation(flat):
    with pytest.raises(SpecError, match=r"meta\.sed: no such key; did you mean 'seed'"):
        read_spec(apply(flat, ["meta.sed=3"]), "demo")
