import math
import os

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slm_lab.errors import RunError
from slm_lab.experiment.checkpoint import Checkpoints, read, write
from slm_lab.experiment.folder import SessionFolder
from slm_lab.lib import tree_file
from slm_lab.lib.seeds import generator, generator_state, set_generator_state


class Killed(BaseException):
    """Stands for the process dying: nothing in the lab may catch it."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(SessionFolder(tmp_path, 0).make())


def same(a, b) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
arrays = hnp.arrays(
    st.sampled_from(["?", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
keys = st.text(max_size=3) | st.sampled_from(["$array", "$dict", "__metadata__", "a", "a.a", "a'"])
trees = st.recursive(
    plain | arrays, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)


@settings(max_examples=150, deadline=None)
@given(tree=trees)
def test_any_state_tree_comes_back_equal(tmp_path_factory, tree):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    write(path, tree)
    assert same(tree, read(path))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "float16", "bfloat16", "float32", "float64"],
)
def test_torch_tensors_come_back_with_their_dtype(path, dtype):
    tensors = [torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(torch, dtype)) for _ in range(2)]
    tree = {"whole": tensors[0], "turned": tensors[1].t(), "one": tensors[0][0, 1], "none": tensors[0][:0]}
    write(path, tree)
    assert same(tree, read(path))


def test_arrays_that_are_views_or_of_foreign_byte_order_keep_their_values(path):
    flat = torch.arange(6.0, requires_grad=True)
    write(path, {"a": flat[:4].view(2, 2), "b": flat[2:], "c": np.arange(8)[::2], "d": np.arange(3, dtype=">f4")})
    back = read(path)
    assert back["a"].tolist() == [[0, 1], [2, 3]]
    assert back["b"].tolist() == [2, 3, 4, 5]
    assert back["c"].tolist() == [0, 2, 4, 6]
    assert back["d"].tolist() == [0, 1, 2]
    back["d"] += 1  # what was read can be written to


def test_a_generator_goes_on_where_it_was(path):
    rng = generator(7, "memory")
    write(path, generator_state(rng))
    other = generator(0)
    set_generator_state(other, read(path))
    assert rng.random(5).tolist() == other.random(5).tolist()


def test_the_file_is_plain_safetensors_with_tensors_named_by_their_place(path):
    write(path, {"agent": {"net": {"weight": np.ones(2)}}, "rest": [1, torch.zeros(1)]})
    assert sorted(safetensors.numpy.load_file(path)) == ["agent.net.weight", "rest.1"]


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"a": {1: 2}}, "a has the key 1"),
        ({"a": [0, {"b": object()}]}, "a.1.b is of type object"),
        ({"a": np.float32(1)}, "a is of type float32"),
        ({"a": {1, 2}}, "a is of type set"),
        ({"a": b"bytes"}, "a is of type bytes"),
        ({"a": np.array([None])}, r"a is of type ndarray \(object\)"),
        ({"a": np.array(["x"])}, r"a is of type ndarray \(<U1\)"),
        ({"a": torch.ones(1, dtype=torch.complex64)}, r"a is of type Tensor \(torch.complex64\)"),
        (object(), "the root is of type object"),
    ],
)
def test_what_cannot_be_saved_is_named_by_its_place(path, tree, place):
    with pytest.raises(TypeError, match=place):
        write(path, tree)
    assert not path.exists()


TREE = {"weights": np.arange(40, dtype=np.float32), "frame": 12, "rng": {"state": 2**127 + 1}, "t": torch.ones(3)}


def test_a_flipped_bit_anywhere_is_noticed(path):
    write(path, TREE)
    good = path.read_bytes()
    for offset in range(len(good)):
        damaged = bytearray(good)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        if good[offset] == ord(" "):  # pads the header, carries nothing: most flips make it invalid, some do not matter
            continue
        with pytest.raises(RunError, match=r"state\.safetensors"):
            read(path)


def test_a_truncated_file_is_noticed_wherever_it_ends(path):
    write(path, TREE)
    good = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 50, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(RunError, match=r"state\.safetensors"):
            read(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 64, b"frame,loss\n1,2\n" * 20])
def test_a_file_that_is_no_checkpoint_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(RunError, match="damaged or not a checkpoint"):
        read(path)


def test_safetensors_of_another_kind_a_folder_and_nothing_are_refused(path, tmp_path):
    with pytest.raises(RunError, match="no such checkpoint"):
        read(path)
    safetensors.numpy.save_file({"a": np.ones(1)}, path)
    with pytest.raises(RunError, match=r"state\.safetensors: damaged"):
        read(path)
    with pytest.raises(RunError):
        read(tmp_path)


@pytest.mark.parametrize(
    "skeleton",
    [
        '{"$array":["a","_dynamo"]}',
        '{"$array":["a","load"]}',
        '{"$array":["a","float64"]}',
        '{"$array":["missing",null]}',
        '{"$array":[["a"],null]}',
        '{"$array":7}',
        '{"$dict":[]}',
        "[" * 100_000,
        "",
    ],
)
def test_a_forged_file_with_a_valid_checksum_is_refused(path, skeleton):
    arrays, metadata = {"a": np.zeros(3, np.uint8)}, {"format": "1", "tree": skeleton}
    safetensors.numpy.save_file(arrays, path, metadata | {"checksum": tree_file._checksum(metadata, arrays)})
    with pytest.raises(RunError, match="damaged or not a checkpoint"):
        read(path)


def test_a_newer_format_is_told_apart_from_damage(path, monkeypatch):
    monkeypatch.setattr(tree_file, "FORMAT", 2)
    write(path, TREE)
    monkeypatch.setattr(tree_file, "FORMAT", 1)
    with pytest.raises(RunError, match="format 2 is newer"):
        read(path)


def die_at(monkeypatch, function: str, call: int, error: type[BaseException] = Killed) -> None:
    """From its `call`-th call on, os.`function` raises before it does anything."""
    real, calls = getattr(os, function), []

    def dying(*args):
        calls.append(args)
        if len(calls) >= call:
            raise error(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, function, dying)


@pytest.mark.parametrize(("function", "call"), [("fsync", 1), ("fsync", 2), ("replace", 1), ("replace", 2)])
def test_killed_at_any_point_of_a_save_there_is_a_good_checkpoint(checkpoints, monkeypatch, function, call):
    checkpoints.save({"frame": 1})
    checkpoints.save({"frame": 2})
    with monkeypatch.context() as patch:
        die_at(patch, function, call)
        with pytest.raises(Killed):
            checkpoints.save({"frame": 3})
    after = Checkpoints(checkpoints.folder)
    tree, _ = after.load()
    assert tree["frame"] in (2, 3)
    after.save({"frame": 4})
    assert after.load() == ({"frame": 4}, None)


@pytest.mark.parametrize(("function", "call"), [("fsync", 1), ("fsync", 2), ("replace", 1), ("replace", 2)])
def test_a_full_disk_is_a_readable_error_and_the_next_save_works(checkpoints, monkeypatch, function, call):
    checkpoints.save({"frame": 1})
    with monkeypatch.context() as patch:
        die_at(patch, function, call, OSError)
        with pytest.raises(RunError, match=r"cannot be written: .*No space left"):
            checkpoints.save({"frame": 2})
    assert checkpoints.load()[0]["frame"] in (1, 2)
    checkpoints.save({"frame": 3})
    assert checkpoints.load() == ({"frame": 3}, None)


def test_the_latest_becomes_the_previous_and_the_best_stands_apart(checkpoints):
    checkpoints.save_best({"frame": 0})
    checkpoints.save({"frame": 1})
    checkpoints.save({"frame": 2})
    assert read(checkpoints.folder.previous) == {"frame": 1}
    assert checkpoints.load() == ({"frame": 2}, None)
    assert checkpoints.load_best() == {"frame": 0}


def test_a_damaged_latest_gives_way_to_the_one_before_it(checkpoints):
    checkpoints.save({"frame": 1})
    checkpoints.save({"frame": 2})
    checkpoints.folder.latest.write_bytes(b"torn")
    tree, note = Checkpoints(checkpoints.folder).load()
    assert tree == {"frame": 1}
    assert "latest.safetensors: damaged" in note
    assert "the one before it" in note


@pytest.mark.parametrize("loaded_first", [True, False])
def test_a_damaged_latest_never_pushes_out_the_good_previous(checkpoints, monkeypatch, loaded_first):
    checkpoints.save({"frame": 1})
    checkpoints.save({"frame": 2})
    checkpoints.folder.latest.write_bytes(b"torn")
    again = Checkpoints(checkpoints.folder)
    if loaded_first:
        again.load()
    with monkeypatch.context() as patch:
        die_at(patch, "replace", 1)
        with pytest.raises(Killed):
            again.save({"frame": 3})
    assert again.load()[0] == {"frame": 1}
    again.save({"frame": 3})
    assert read(again.folder.previous) == {"frame": 1}
    assert read(again.folder.latest) == {"frame": 3}


def test_both_damaged_is_an_error_that_names_both(checkpoints):
    with pytest.raises(RunError, match=r"(?s)no checkpoint to go on from.*latest.*previous"):
        checkpoints.load()
