"""Which names of a spec lead to code of others, and where that is."""

from pathlib import Path

import pytest

from slm_lab.spec.files import read_file, spec_files
from slm_lab.spec.foreign import files_of, foreign_names


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        ({"agent": {"memory": {"name": "my.memories:Mine"}}}, [("agent.memory.name", "my.memories:Mine")]),
        ({"agent": [{"net": {"type": "nets:Mine"}}]}, [("agent.0.net.type", "nets:Mine")]),
        ({"env": {"name": "a folder/my_env.py:Env"}}, [("env.name", "a folder/my_env.py:Env")]),
        ({"env": {"name": "mine:Env-v0"}}, [("env.name", "mine:Env-v0")]),
        ({"env": {"wrappers": [{"name": "my.Wrapper"}]}}, [("env.wrappers.0.name", "my.Wrapper")]),
        ({"env": {"wrappers": [{"name": "gymnasium.wrappers.ClipAction"}, {"name": "ClipAction"}]}}, []),
        ({"agent": {"memory": {"reward_fn": "goals:mine"}}}, [("agent.memory.reward_fn", "goals:mine")]),
        ({"env": {"name": "ALE/Pong-v5"}, "meta": {"device": "cuda:0"}, "provenance": {"x": "a:b"}}, []),
        ("no spec", []),
    ],
)
def test_names_of_others_are_found_with_their_place(tree, found):
    assert foreign_names(tree) == found


def test_specs_that_ship_name_no_code_of_others():
    specs = [(file, tree) for file in spec_files() for tree in read_file(file).values()]
    assert [(file, foreign_names(tree)) for file, tree in specs if foreign_names(tree)] == []


def test_where_a_name_leads_is_known_without_an_import(tmp_path, monkeypatch):
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "module_of_mine.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "package_of_mine"
    (package / "inner").mkdir()
    (package / "inner" / "deep.py").write_text("raise RuntimeError('imported')")
    assert files_of("package_of_mine:Env") == [package / "__init__.py"]
    assert files_of("package_of_mine.inner.deep:E") == [
        package / "__init__.py",
        package / "inner",
        package / "inner" / "deep.py",
    ]
    assert files_of("module_of_mine:Env-v0") == [tmp_path / "module_of_mine.py"]
    assert files_of("some/my_env.py:Env") == [Path("some/my_env.py")]
    assert files_of("no_such_module:Env") == []
