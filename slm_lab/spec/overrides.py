"""Changes to a spec from the command line: agent.memory.batch_size=64."""

from __future__ import annotations

import copy
import json
from typing import Any

import pydash

from slm_lab.errors import Mistake, SpecError
from slm_lab.spec import shape, space
from slm_lab.spec.words import show


def apply(tree: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """A copy of `tree`, in the flat shape, with each "path=value" set; values are JSON, or else text.

    "name=value" where the spec has a "${name}" fills in that.
    """
    if not overrides or not isinstance(tree, dict):
        return tree
    flat, found = shape.flatten(tree)
    if found:
        raise SpecError(found)
    flat = copy.deepcopy(flat)
    for override in overrides:
        try:
            keys, value = parse(override)
            if len(keys) == 1 and keys[0] in space.params_in(flat):
                flat = space.substitute(flat, {keys[0]: value})
            else:
                _set(flat, keys, value)
        except SpecError as problem:
            found += problem.mistakes
    if found:
        raise SpecError(found)
    return flat


def parse(override: str) -> tuple[list[Any], Any]:
    """("agent", "memory", "batch_size"), 64."""
    path, equals, text = override.partition("=")
    keys = pydash.to_path(path.strip())
    if not equals or not all(key != "" for key in keys):
        raise SpecError([Mistake("", f"'{override}' is no change; write agent.memory.batch_size=64")])
    if len(keys) > 2 and keys[0] in shape.LISTED and str(keys[1]) == "0":
        del keys[1]  # agent.0.memory, as the v4 shape spells it
    return keys, _value(text)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _set(tree: dict[str, Any], keys: list[Any], value: Any) -> None:
    place: Any = tree
    for depth, key in enumerate(keys):
        where = ".".join(map(str, keys[:depth]))
        if isinstance(place, list):
            if not str(key).isdigit() or int(key) >= len(place):
                raise SpecError([Mistake(where, f"a list of {len(place)} has no item '{key}'")])
        elif not isinstance(place, dict):
            raise SpecError([Mistake(where, f"is {show(place)}, not a block; it has no key '{key}' to set")])
        place = pydash.get(place, [key])
        if place is None:
            break  # what is missing on the way is made
    pydash.set_(tree, keys, value)
