"""The keys of every algorithm and net as Markdown tables, made of the models that check them.

python -m slm_lab.spec.reference docs/algorithms.md    writes them anew between its two marks
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from slm_lab.spec import registry

BEGIN, END = "<!-- made by `make docs` from here -->", "<!-- to here -->"
BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


def tables() -> str:
    """Each algorithm's and each net's keys, and those of the blocks inside them."""
    blocks: dict[str, dict[str, Any]] = {}
    text = ""
    for kind, title, key in (("algorithm", "Keys of the algorithms", "name"), ("net", "Keys of the nets", "type")):
        text += f"## {title}\n\n"
        alike: dict[str, list[str]] = {}
        for name in registry.names(kind):
            schema = registry.settings_of(kind, name).model_json_schema()
            blocks |= schema.get("$defs", {})
            alike.setdefault(_table(schema, leave_out=key), []).append(name)
        text += "".join(f"### {', '.join(names)}\n\n{table}" for table, names in alike.items())
    text += "## Blocks inside these\n\n"
    for name, schema in sorted(blocks.items()):
        if "properties" in schema:
            about = _one_line(schema.get("description", ""))
            text += f"### {name}\n\n" + (f"{about}\n\n" if about else "") + _table({**schema, "$defs": blocks})
    return text


def renewed(document: str) -> str:
    """The document with the tables in their place between the marks; ValueError where these are missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables()}{END}{after}"


def _table(schema: dict[str, Any], leave_out: str | None = None) -> str:
    rows = [
        f"| `{key}` | {_type(field)} | {_default(key, field, schema)} | {_one_line(field.get('description', ''))} |"
        for key, field in schema["properties"].items()
        if key != leave_out
    ]
    if not rows:
        return "No keys.\n\n"
    return "\n".join(["| key | takes | default | meaning |", "|---|---|---|---|", *rows]) + "\n\n"


def _type(field: dict[str, Any]) -> str:
    """What may be given, in words: `integer ≥ 1 or null`."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(part) for part in field["anyOf"]))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in field or "const" in field:
        return ", ".join(_code(value) for value in field.get("enum", [field.get("const")]))
    kind = field.get("type", "any")
    if kind == "array" and "items" in field:
        kind = f"list of {_type(field['items'])}"
    elif kind == "array" and "prefixItems" in field:
        kind = "[" + ", ".join(_type(part) for part in field["prefixItems"]) + "]"
    elif kind == "object" and isinstance(field.get("additionalProperties"), dict):
        kind = f"name: {_type(field['additionalProperties'])}"
    return " ".join([kind, *(f"{sign} {field[bound]}" for bound, sign in BOUNDS if bound in field)])


def _default(key: str, field: dict[str, Any], schema: dict[str, Any]) -> str:
    if "default" not in field:
        return "needed" if key in schema.get("required", []) else ""
    value = field["default"]
    if isinstance(value, dict) and "$ref" in field:  # no more of a block than is not its own default
        own = schema["$defs"][field["$ref"].rpartition("/")[2]]["properties"]
        value = {
            name: part
            for name, part in value.items()
            if name == "name" or part != own.get(name, {}).get("default", None)
        }
    return _code(value)


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`".replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")
