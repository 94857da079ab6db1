"""Names in a spec that lead to code of others: of a user's modules and files, not of the lab or of gymnasium."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WRAPPER = re.compile(r"(gymnasium\.wrappers\.)?\w+")  # of gymnasium


def foreign_names(tree: Any) -> list[tuple[str, str]]:
    """(place, name) of each in a spec's tree, in either shape; nothing is imported. No other text has a colon in it."""
    blocks = tree if isinstance(tree, dict) else {}
    return [found for block in ("agent", "env") for found in _names_in(blocks.get(block), block)]


def _names_in(tree: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _names_in(value, f"{path}.{key}")
    elif isinstance(tree, str):
        is_wrapper = re.search(r"\.wrappers\.\d+\.name$", path)
        if ":" in tree or (is_wrapper and not WRAPPER.fullmatch(tree)):
            yield path, tree


def files_of(name: str) -> list[Path]:
    """The files and packages' folders that importing it would run, as far as they exist; nothing is imported."""
    if ".py:" in name:
        return [Path(name.rpartition(":")[0]).expanduser()]
    top, *deeper = re.split(r"[.:]", name)
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if found is None:
        return []
    folders = [Path(place) for place in found.submodule_search_locations or ()]
    files = [Path(found.origin)] if found.has_location and found.origin else []
    for part in deeper:
        files += [folder / f"{part}.py" for folder in folders]
        folders = [folder / part for folder in folders]
        files += folders
    return [file for file in files if file.exists()]
