"""What a search came to: a row a trial, which is best, and the table of them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def trial_row(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """One number for each of a trial's metrics, as `trial_metrics` gives them: the mean over its sessions."""
    return {name: value["mean"] if isinstance(value, dict) else value for name, value in metrics.items()}


def ranked(rows: Iterable[Row], metric: str, mode: str = "max") -> list[Row]:
    """The rows that have the metric, the best first; of equals, the first."""
    known = [row for row in rows if _is_number(row.get(metric))]
    return sorted(known, key=lambda row: -row[metric] if mode == "max" else row[metric])


def experiment_table(rows: Sequence[Row], first: Sequence[str] = ()) -> str:
    """The rows as CSV: the columns of `first`, then others as they come; empty where a row has none, blocks as JSON."""
    columns = list(dict.fromkeys([*first, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return f"{value:.10g}" if isinstance(value, float) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
