"""Reading the tables that sessions write, as columns of numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slm_lab.errors import RunError


def read_table(path: str | Path) -> dict[str, np.ndarray]:
    """Each column as float64, NaN where a cell is empty; a torn last line is left out."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    columns, cells = split_table(content, path)
    try:
        values = np.array([[float(cell or "nan") for cell in row] for row in cells], np.float64)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from error
    values = values.reshape(len(cells), len(columns))
    return {column: np.ascontiguousarray(values[:, place]) for place, column in enumerate(columns)}


def split_table(content: str, path: str | Path) -> tuple[list[str], list[list[str]]]:
    """The columns' names and the cells of each row, as text; a torn last line is left out."""
    header, *lines = content[: content.rfind("\n") + 1].splitlines() or [""]
    columns = header.split(",") if header else []
    cells = [line.split(",") for line in lines]
    for number, row in enumerate(cells, start=2):
        if len(row) != len(columns):
            raise RunError(f"{path}: line {number} has {len(row)} cells where there are {len(columns)} columns")
    return columns, cells
