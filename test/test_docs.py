"""The documents' Python examples run as they stand, one after another in one namespace, and name every key there is."""

import re
from pathlib import Path

import pytest

from slm_lab.spec import reference, registry

DOCS = Path(__file__).parent.parent / "docs"
MEMORY = (DOCS / "memory.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", sorted(DOCS.glob("*.md")), ids=lambda file: file.name)
def test_the_examples_run(file):
    names: dict = {}
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL)):
        exec(compile(code, f"{file.name}, example {number + 1}", "exec"), names)


@pytest.mark.parametrize("name", registry.names("memory"))
def test_every_memory_is_named_with_all_its_keys(name):
    assert f"`{name}`" in MEMORY
    fields = registry.settings_of("memory", name).model_fields
    assert not {key for key in fields if key != "name" and f"`{key}`" not in MEMORY}


def test_the_key_tables_are_those_of_the_models():
    document = (DOCS / "algorithms.md").read_text(encoding="utf-8")
    assert document == reference.renewed(document), "make docs"


def test_every_algorithm_and_net_is_told_of_before_its_keys():
    introduction = (DOCS / "algorithms.md").read_text(encoding="utf-8").partition(reference.BEGIN)[0]
    names = registry.names("algorithm") + registry.names("net")
    assert [name for name in names if f"`{name}`" not in introduction] == []
