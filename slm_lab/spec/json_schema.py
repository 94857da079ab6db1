"""The JSON Schema (2020-12) of a spec file: for editors, and the source of the spec reference."""

from __future__ import annotations

import json
from typing import Any

from slm_lab.spec import registry
from slm_lab.spec.schema import BLOCKS, Spec
from slm_lab.spec.settings import NUMBER


def build() -> dict[str, Any]:
    """The schema of {spec_name: spec}, with one branch for each algorithm, memory and net that has a name."""
    spec = Spec.model_json_schema()
    definitions = spec.pop("$defs")
    definitions.pop("Settings", None)
    agent = definitions["AgentSpec"]
    for kind, key in BLOCKS.items():
        branches = [_branch(kind, key, name, definitions) for name in registry.names(kind)]
        description = agent["properties"][kind].get("description", "")
        agent["properties"][kind] = {"description": description, "oneOf": [*branches, _own_class(key)]}
        if kind != "algorithm":
            agent["properties"][kind]["oneOf"].append({"type": "null"})
    agent["allOf"] = [
        {
            "if": {"properties": {"algorithm": {"properties": {"name": {"enum": _that_need(kind)}}}}},
            "then": {"required": [kind]},
        }
        for kind in ("memory", "net")
    ]
    imagined = agent["properties"]["imagined_memory"]
    agent["properties"]["imagined_memory"] = {**agent["properties"]["memory"], "description": imagined["description"]}
    for shape in ("agent", "env"):
        flat = spec["properties"][shape]
        as_list = {"type": "array", "items": flat, "minItems": 1, "maxItems": 1, "description": "SLM Lab v4's shape"}
        spec["properties"][shape] = {"description": flat["description"], "anyOf": [flat, as_list]}
    spec["properties"]["body"] = {"type": "object", "description": "SLM Lab v4's block; read and passed over"}
    definitions["Spec"] = spec
    _allow_numeric_strings(definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "SLM Lab spec file: {spec_name: spec}",
        "type": "object",
        "properties": {"$schema": {"type": "string"}},
        "additionalProperties": {"$ref": "#/$defs/Spec"},
        "$defs": definitions,
    }


def _that_need(kind: str) -> list[str]:
    return [name for name in registry.names("algorithm") if registry.needs(name, kind)]


def _allow_numeric_strings(node: Any) -> None:
    """Where a number belongs, the loader takes its text too: "1e6"."""
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _allow_numeric_strings(part)
    if isinstance(node, dict) and node.get("type") in ("integer", "number"):
        node |= {"type": [node["type"], "string"], "pattern": f"^{NUMBER.pattern}$"}


def _branch(kind: str, key: str, name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A reference to the block's schema, which is added to `definitions` under a name of its own."""
    block = registry.settings_of(kind, name).model_json_schema()
    inner = block.pop("$defs", {})
    for label, definition in inner.items():
        if definitions.setdefault(label, definition) != definition:
            definitions[f"{name}.{label}"] = definition
            block = _renamed(block, label, f"{name}.{label}")
    place = f"{kind}.{name}"
    description = block["properties"].get(key, {}).get("description", f"chooses this {kind}")
    block["properties"] = {key: {"const": name, "description": description}, **_without(block["properties"], key)}
    block["required"] = [key, *_without(dict.fromkeys(block.get("required", [])), key)]
    definitions[place] = {**block, "title": name}
    return {"$ref": f"#/$defs/{place}"}


def _without(tree: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in tree.items() if name != key}


def _renamed(schema: dict[str, Any], label: str, new: str) -> dict[str, Any]:
    return json.loads(json.dumps(schema).replace(f'"#/$defs/{label}"', f'"#/$defs/{new}"'))


def _own_class(key: str) -> dict[str, Any]:
    named = {"type": "string", "pattern": ":", "description": "a class of your own, as package.module:Class"}
    return {"type": "object", "properties": {key: named}, "required": [key]}
