"""What is wrong with a block, in words: pydantic's findings become a path, what was given, and what is allowed."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from slm_lab.errors import Mistake, SpecError
from slm_lab.spec.registry import nearest

SHOWN = 60  # characters of a value
NOTHING = object()  # no value was given
TYPES = {"integer": "an integer", "number": "a number", "string": "a string", "null": "null"}
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
LENGTHS = {"minItems": "at least", "maxItems": "at most", "minLength": "at least", "maxLength": "at most"}


def show(value: Any) -> str:
    """The value as a spec file would spell it, shortened."""
    if isinstance(value, str):
        text = f"'{value}'"
    else:
        try:
            text = json.dumps(value, default=str)
        except (ValueError, RecursionError):
            text = type(value).__name__
    return text if len(text) <= SHOWN else text[: SHOWN - 2] + " …"


def suggest(name: str, allowed: list[str]) -> str:
    """'; did you mean ...?' where one name is near, else a list of what there is."""
    guess = nearest(name, allowed)
    if guess:
        return f"did you mean '{guess}'?"
    return f"known: {', '.join(allowed)}" if allowed else "none is known"


def must_be(value: Any, allowed: str) -> str:
    return f"missing; must be {allowed}" if value is NOTHING else f"got {show(value)}; must be {allowed}"


def explain(problem: ValidationError, model: type[BaseModel], given: Any, path: str) -> list[Mistake]:
    """The mistakes that `model` found in the block `given`, which stands at `path` of the spec."""
    schema = schema_of(model)
    found: dict[str, list[Mistake]] = {}
    for error in problem.errors(include_url=False):
        place, node, value, parent = _follow(schema, given, error["loc"], path)
        for mistake in _mistakes(error, place, node, value, parent, path):
            found.setdefault(place, []).append(mistake)
    inner = tuple(found)
    # a union reports every branch that did not fit: the one that got furthest into the value is the one that was meant
    told = [place for place in found if not any(other.startswith((f"{place}.", f"{place}[")) for other in inner)]
    return [mistake for place in told for mistake in dict.fromkeys(found[place])]


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    try:
        return model.model_json_schema()
    except PydanticInvalidForJsonSchema:  # a component of the user's own may declare what JSON has no word for
        return {}


def _mistakes(error: Any, place: str, node: dict, value: Any, parent: dict, path: str) -> list[Mistake]:
    kind = error["type"]
    if kind == "extra_forbidden":
        allowed = list(parent.get("properties", {}))
        return [Mistake(place, f"no such key; {suggest(place.rpartition('.')[2], allowed)}")]
    if kind == "missing":
        return [Mistake(place, must_be(NOTHING, describe(node)))]
    if kind in ("value_error", "assertion_error"):
        raised = error.get("ctx", {}).get("error")
        if isinstance(raised, SpecError):
            return [Mistake(_under(path, mistake.path), mistake.problem) for mistake in raised.mistakes]
        return [Mistake(place, _with_value(str(raised or error["msg"]), value))]
    if kind == "union_tag_invalid":  # a block may be of several types, and is of none of them
        types = error["ctx"]["expected_tags"].replace(", ", " or ")
        return [Mistake(f"{place}.type", f"got '{error['ctx']['tag']}'; must be {types}")]
    wanted = describe(node) if node else ""
    if not wanted:
        return [Mistake(place, _with_value(error["msg"].replace("Input should be", "must be"), value))]
    choices = [choice for choice in _choices(node) if isinstance(choice, str)]
    guess = nearest(value, choices) if isinstance(value, str) else None
    return [Mistake(place, must_be(value, wanted) + (f"; did you mean '{guess}'?" if guess else ""))]


def _under(path: str, inner: str) -> str:
    if not inner or inner == path or inner.startswith(f"{path}."):
        return inner or path
    return inner if inner.partition(".")[0] in ("agent", "env", "meta") else f"{path}.{inner}"


def _with_value(text: str, value: Any) -> str:
    plain = value is NOTHING or isinstance(value, dict) or show(value) in text
    return text if plain else f"got {show(value)}; {text}"


def _follow(schema: dict, value: Any, loc: tuple, path: str) -> tuple[str, dict, Any, dict]:
    """The dotted place that `loc` means, its schema, the value given there, and the schema of the block around it."""
    node, parent = schema, schema
    for key in loc:
        blocks = [_resolve(schema, branch) for branch in _branches(_resolve(schema, node))]
        if isinstance(value, list | tuple) and isinstance(key, int):
            parent, node = node, _item(blocks, key)
            value, path = (value[key] if key < len(value) else NOTHING), f"{path}[{key}]"
        elif _opens(blocks, value, key):
            parent = _block_with(blocks, key)
            node = parent.get("properties", {}).get(key) or _values_of(parent)
            value, path = (value.get(key, NOTHING) if isinstance(value, dict) else NOTHING), f"{path}.{key}".lstrip(".")
        else:  # the tag of a union's branch: no step in the user's file
            tagged = [branch for branch in _branches(node) if str(branch.get("$ref", "")).endswith(f"/{key}")]
            node = tagged[0] if tagged else node
    return path, _inlined(schema, node), value, parent


def _opens(blocks: list[dict], value: Any, key: Any) -> bool:
    return isinstance(value, dict) and (key in value or any(key in block.get("properties", {}) for block in blocks))


def _block_with(blocks: list[dict], key: Any) -> dict:
    objects = [block for block in blocks if block.get("type") == "object"] or [{}]
    return next((block for block in objects if key in block.get("properties", {})), objects[0])


def _values_of(block: dict) -> dict:
    values = block.get("additionalProperties")
    return values if isinstance(values, dict) else {}


def _item(blocks: list[dict], index: int) -> dict:
    for block in blocks:
        fixed = block.get("prefixItems", [])
        if index < len(fixed):
            return fixed[index]
        if isinstance(block.get("items"), dict):
            return block["items"]
    return {}


def _resolve(schema: dict, node: dict) -> dict:
    while "$ref" in node:
        node = schema.get("$defs", {}).get(node["$ref"].rpartition("/")[2], {})
    return node


def _branches(node: dict) -> list[dict]:
    return node.get("anyOf") or node.get("oneOf") or [node]


def _inlined(schema: dict, node: dict) -> dict:
    """The node with the references that `describe` needs to see looked up."""
    node = _resolve(schema, node)
    if "anyOf" in node or "oneOf" in node:
        return {"anyOf": [_resolve(schema, branch) for branch in _branches(node)]}
    if isinstance(node.get("items"), dict):
        return {**node, "items": _inlined(schema, node["items"])}
    return node


def describe(node: dict) -> str:
    """What a value may be: 'an integer >= 1 or null'; empty where the schema does not say."""
    choices = _choices(node)
    rest = [branch for branch in _branches(node) if "const" not in branch and "enum" not in branch]
    words = [word for word in map(_describe_one, rest) if word]
    nothing = [word for word in words if word == "null"]
    words = [word for word in words if word != "null"] + [show(choice) for choice in choices] + nothing
    words = list(dict.fromkeys(words))
    return ", ".join(words[:-1]) + " or " + words[-1] if len(words) > 1 else "".join(words)


def _choices(node: dict) -> list[Any]:
    found: list[Any] = []
    for branch in _branches(node):
        also = [True, False] if branch.get("type") == "boolean" else []
        found += [branch["const"]] if "const" in branch else branch.get("enum", also)
    return found


def _describe_one(node: dict) -> str:
    kind = node.get("type")
    if kind == "array":
        return _describe_list(node)
    if kind == "object":
        return "a block {…}"
    limits = " and ".join(f"{sign} {_number(node[bound])}" for bound, sign in BOUNDS.items() if bound in node)
    lengths = " and ".join(f"{text} {node[length]}" for length, text in LENGTHS.items() if length in node)
    words = TYPES.get(str(kind), "")
    words += f" {limits}" if limits else ""
    words += f" of {lengths} characters" if lengths else ""
    return words + (f" that matches {node['pattern']}" if "pattern" in node else "")


def _describe_list(node: dict) -> str:
    if "prefixItems" in node:
        return f"a list of {len(node['prefixItems'])}: " + ", ".join(describe(item) for item in node["prefixItems"])
    each = describe(node["items"]) if isinstance(node.get("items"), dict) else ""
    lengths = " and ".join(f"{text} {node[length]}" for length, text in LENGTHS.items() if length in node)
    return "a list" + (f" of {lengths} items" if lengths else "") + (f", each {each}" if each else "")


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else str(value)
