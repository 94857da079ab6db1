"""Values and spaces of several parts: dicts and tuples of them, to any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gymnasium import spaces


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """The function of the values, or part by part of dicts and tuples of them."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: mapped(function, *(tree[name] for tree in trees)) for name in first}
    if isinstance(first, tuple):
        return tuple(mapped(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def leaves(space: spaces.Space, key: str | None = None) -> Iterator[tuple[str | None, spaces.Space]]:
    """(dotted key, part) of each part that has none itself; the key is None where the space is one."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield key, space
        return
    for name, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
        yield from leaves(part, str(name) if key is None else f"{key}.{name}")
