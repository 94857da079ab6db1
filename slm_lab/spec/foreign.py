"""Names in a spec that lead to code of others: of a user's modules and files, not of the lab or of gymnasium."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = re.compile(r"[^:\n]+:[\w.-]+")  # "my_lab.memories:Mine", "my_envs:Mine-v0", "folder/my_env.py:MyEnv"
FAMILIAR = ("gymnasium.", "slm_lab.")


def foreign_names(tree: Any) -> list[tuple[str, str]]:
    """(place, name) of each in a spec's tree, in either shape; nothing is imported."""
    blocks = tree if isinstance(tree, dict) else {}
    return [found for block in ("agent", "env") for found in _names_in(blocks.get(block), block)]


def _names_in(tree: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _names_in(value, f"{path}.{key}")
    elif isinstance(tree, str) and not tree.startswith(FAMILIAR):
        is_wrapper = ".wrappers." in f".{path}" and path.endswith(".name") and "." in tree
        if is_wrapper or NAME.fullmatch(tree):
            yield path, tree


def file_of(name: str) -> Path | None:
    """The file, or the package's folder, that would be imported for it; None where it is not to be found."""
    module, _, _ = name.partition(":")
    if module.endswith(".py"):
        return Path(module).expanduser()
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    place = found.origin if found.has_location else next(iter(found.submodule_search_locations or ()), None)
    return None if place is None else Path(place)
