import errno
import os

import pytest

from slm_lab.errors import RunError
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
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match="score: cannot be written: No space left on device"):
        files.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["score"]


def test_what_json_cannot_say_is_refused_before_the_old_file_is_touched(tmp_path):
    path = tmp_path / "tree.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["tree.json"]


@pytest.mark.parametrize(("content", "reason"), [(None, "cannot be read"), (b"{", "damaged"), (b"\xff", "damaged")])
def test_what_cannot_be_read_is_told_with_its_file(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "tree.json").write_bytes(content)
    with pytest.raises(RunError, match=f"tree.json: {reason}"):
        files.read_json(tmp_path / "tree.json")
