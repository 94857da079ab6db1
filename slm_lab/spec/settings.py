"""The base of every settings model: one frozen pydantic model a component, just above the class that it configures."""

from __future__ import annotations

import math
import re
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Settings(BaseModel):
    """Frozen, no unknown keys, no NaN or infinity; a number is never a boolean, nor a boolean a number.

    What JSON and YAML cannot say precisely is understood: 1e6 and "1e6" where an integer belongs, a list for a tuple.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _as_declared(cls, value: Any, info: ValidationInfo) -> Any:
        return as_declared(cls.model_fields[str(info.field_name)].annotation, value)


def as_declared(annotation: Any, value: Any) -> Any:
    """`value` in the type that was meant, where there is no doubt; otherwise unchanged, for the model to refuse."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return as_declared(arguments[0], value)
    if origin in (Union, types.UnionType):
        return _as_one_of(arguments, value)
    if origin is Literal:
        return _as_choice(arguments, value)
    if annotation in (int, float):
        return _as_number(annotation, value)
    if not isinstance(value, list | tuple | dict) or not arguments:
        return value
    if origin is dict and isinstance(value, dict):
        return {key: as_declared(arguments[1], item) for key, item in value.items()}
    if origin is list and not isinstance(value, dict):
        return [as_declared(arguments[0], item) for item in value]
    if origin is tuple and not isinstance(value, dict):
        return _as_tuple(arguments, value)
    return value


def _as_one_of(members: tuple[Any, ...], value: Any) -> Any:
    if type(value) in members:
        return value
    for member in members:
        meant = as_declared(member, value)
        if meant is not value and meant is not _NO_CHOICE:
            return meant
    return value


_NO_CHOICE = object()


def _as_choice(choices: tuple[Any, ...], value: Any) -> Any:
    """Python's 0 == False would let a number through where only a boolean is allowed."""
    equal = [choice for choice in choices if choice == value]
    return _NO_CHOICE if equal and type(value) not in map(type, equal) else value


def _as_number(kind: type, value: Any) -> Any:
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        text = value.strip()
        number = int(text) if text.lstrip("+-").isdecimal() and len(text) < 4000 else float(text)
        return _as_number(kind, number) if math.isfinite(number) else value
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _as_tuple(arguments: tuple[Any, ...], value: list | tuple) -> tuple:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(as_declared(arguments[0], item) for item in value)
    if len(arguments) != len(value):
        return tuple(value)
    return tuple(as_declared(kind, item) for kind, item in zip(arguments, value, strict=True))
