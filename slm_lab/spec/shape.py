"""The two shapes of a spec, and what a tree must be before its keys are looked at: JSON values, finite, not endless."""

from __future__ import annotations

import math
from typing import Any

from slm_lab.errors import Mistake

LISTED = ("agent", "env")  # lists of one in SLM Lab v4
OF_SIL_MEMORY = ("batch_size", "max_size", "use_cer")
LARGEST = 100_000  # values in one spec
DEEPEST = 64


def flatten(tree: dict[str, Any]) -> tuple[dict[str, Any], list[Mistake]]:
    """The flat shape of a tree in either shape, {agent: {…}, env: {…}, meta: {…}}, and what stands in the way."""
    flat = {key: value for key, value in tree.items() if key != "body"}
    found = _mistakes_of_body(tree.get("body"))
    for key in LISTED:
        block = flat.get(key)
        if isinstance(block, list) and len(block) == 1:
            flat[key] = block[0]
        elif isinstance(block, list):
            found.append(
                Mistake(key, f"a list of {len(block)}; a spec has one {key}: give its block, or a list of one")
            )
            del flat[key]
    if isinstance(flat.get("agent"), dict):
        flat["agent"] = _with_memory_to_imitate(flat["agent"])
    return flat, found


def _with_memory_to_imitate(agent: dict[str, Any]) -> dict[str, Any]:
    """SLM Lab tells in the memory block of a SIL agent also of its second memory, the algorithm's own `sil_memory`."""
    algorithm, memory = agent.get("algorithm"), agent.get("memory")
    if not isinstance(algorithm, dict) or not isinstance(memory, dict) or "sil_replay_name" not in memory:
        return agent
    own = {"name": memory["sil_replay_name"], **{key: memory[key] for key in OF_SIL_MEMORY if key in memory}}
    rest = {key: value for key, value in memory.items() if key not in ("sil_replay_name", *OF_SIL_MEMORY)}
    return {**agent, "algorithm": {"sil_memory": own, **algorithm}, "memory": rest}


def _mistakes_of_body(body: Any) -> list[Mistake]:
    """SLM Lab v4 says with `body` how agents and envs are paired; one of each is all that there is."""
    if body is None:
        return []
    if not isinstance(body, dict):
        return [Mistake("body", "must be a block such as {product: 'outer', num: 1}, or be left out")]
    found = [Mistake(f"body.{key}", "no such key; leave 'body' out") for key in body if key not in ("product", "num")]
    num = body.get("num", 1)
    if isinstance(num, bool) or num != 1:
        found.append(Mistake("body.num", f"got {num!r}; a spec has one agent in one env: give 1, or leave 'body' out"))
    if body.get("product", "outer") not in ("outer", "inner"):
        found.append(Mistake("body.product", f"got {body['product']!r}; must be 'outer' or 'inner', or be left out"))
    return found


def mistakes_of_values(tree: Any) -> list[Mistake]:
    """Where a tree holds what JSON cannot, without recursion: a file may nest as it likes, or hold itself."""
    found: list[Mistake] = []
    waiting: list[tuple[Any, str, int]] = [(tree, "", 0)]
    seen = 0
    while waiting:
        value, path, depth = waiting.pop()
        seen += 1
        if depth > DEEPEST or seen > LARGEST:
            reason = (
                f"nested more than {DEEPEST} deep" if depth > DEEPEST else f"more than {LARGEST} values in one spec"
            )
            return [Mistake(path[:80], f"{reason}; is it a block that holds itself?")]
        if isinstance(value, dict):
            found += [Mistake(path, f"the key {key!r} must be a string") for key in value if not isinstance(key, str)]
            waiting += [(item, f"{path}.{key}".lstrip("."), depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(Mistake(path, f"got {value}; must be a finite number"))
        elif not isinstance(value, str | int | float | bool | None):
            found.append(Mistake(path, f"got {str(value)[:60]!r}, a {type(value).__name__}; quote it if text is meant"))
    return found[::-1]
