import os

import pytest

from slm_lab.lib import files


def test_a_tree_comes_back_as_it_was_written(tmp_path):
    tree = {"name": "Übung", "state": {"state": 2**127 + 1}, "values": [1.5, None, True]}
    files.write_json(tmp_path / "tree.json", tree)
    assert files.read_json(tmp_path / "tree.json") == tree


def test_a_write_takes_the_place_of_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "score"
    files.write_bytes(path, b"old and longer")
    files.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["score"]


def test_an_interrupted_write_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "score"
    files.write_bytes(path, b"old")

    def fail(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"


def test_what_json_cannot_say_is_refused_before_the_old_file_is_touched(tmp_path):
    path = tmp_path / "tree.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["tree.json"]
