import math
from typing import Literal

import pytest
from pydantic import ValidationError

from slm_lab.spec.settings import Settings


class Inner(Settings):
    lr: float = 1.0


class Block(Settings):
    count: int = 1
    rate: float = 1.0
    flag: bool = False
    text: str = ""
    pair: tuple[int, float] = (1, 1.0)
    sizes: list[int] | None = None
    table: dict[str, int] | None = None
    choice: Literal[False, "on"] = False
    either: int | Literal["auto"] = 1
    word_or_number: str | float = ""
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("key", "given", "read"),
    [
        ("count", 64.0, 64),
        ("count", "1e6", 1_000_000),
        ("count", "9007199254740993", 9007199254740993),
        ("rate", 1, 1.0),
        ("rate", "2.5e-4", 2.5e-4),
        ("pair", ["3", "0.5"], (3, 0.5)),
        ("sizes", ("8", 4.0), [8, 4]),
        ("table", {"a": "1e1"}, {"a": 10}),
        ("either", "auto", "auto"),
        ("either", "12", 12),
        ("word_or_number", "12", "12"),
        ("inner", {"lr": "1e-3"}, Inner(lr=0.001)),
        ("inners", [{"lr": "1e-3"}], (Inner(lr=0.001),)),
    ],
)
def test_what_is_meant_without_doubt_is_read(key, given, read):
    value = getattr(Block(**{key: given}), key)
    assert value == read
    assert type(value) is type(read)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("count", True),
        ("count", 1.5),
        ("count", "1.5"),
        ("count", "1_000"),
        ("count", ""),
        ("count", "1e999"),
        ("rate", False),
        ("rate", math.nan),
        ("rate", math.inf),
        ("rate", "nan"),
        ("rate", "1e999"),
        ("rate", 10**400),
        ("flag", 1),
        ("flag", "true"),
        ("text", 3),
        ("pair", [1]),
        ("sizes", [True]),
        ("choice", 0),
        ("either", "twelve"),
        ("unknown", 1),
    ],
)
def test_what_is_in_doubt_is_refused(key, given):
    with pytest.raises(ValidationError):
        Block(**{key: given})


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError):
        Block().count = 2
