"""The key tables say what the models say."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field

from slm_lab.spec import reference, registry
from slm_lab.spec.settings import Settings


class Inner(Settings):
    """Of a part."""

    name: Literal["a", "b"] = "a"
    size: int = Field(3, ge=1, description="rows")


class Outer(Settings):
    name: Literal["Outer"] = "Outer"
    rate: float = Field(gt=0, lt=1, description="of | each\n step")
    limit: int | None = Field(None, ge=2, description="at most")
    inner: Inner = Field(Inner(size=4), description="a block")
    sizes: list[int] = Field([1, 2], description="each")


def test_a_table_tells_type_bounds_default_and_meaning():
    rows = reference._table(Outer.model_json_schema(), leave_out="name").splitlines()[2:]
    assert rows[:-1] == [
        "| `rate` | number > 0 < 1 | needed | of \\| each step |",
        "| `limit` | integer ≥ 2 or null | `null` | at most |",
        '| `inner` | [Inner](#inner) | `{"name": "a", "size": 4}` | a block |',
        "| `sizes` | list of integer | `[1, 2]` | each |",
    ]


def test_every_key_of_every_algorithm_and_net_is_in_the_tables():
    text = reference.tables()
    for kind in ("algorithm", "net"):
        for name in registry.names(kind):
            keys = set(registry.settings_of(kind, name).model_fields) - {"name", "type"}
            section = next(part for part in text.split("### ") if name in part.partition("\n")[0].split(", "))
            assert keys == {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}


def test_what_is_around_the_tables_stays():
    document = f"before\n{reference.BEGIN}\nold\n{reference.END}\nafter\n"
    renewed = reference.renewed(document)
    assert renewed.startswith("before\n")
    assert renewed.endswith("\nafter\n")
    assert "\nold\n" not in renewed
    with pytest.raises(ValueError, match="needs the lines"):
        reference.renewed("no marks")
