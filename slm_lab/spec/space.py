"""The search space of a spec, SLM Lab's grammar: which keys are searched, over what, and the specs drawn from it.

    "search": {
        "agent.memory.alpha__uniform": [0.4, 0.8],                     a number between
        "agent.net": {"optim_spec": {"lr__loguniform": [1e-4, 1e-2]}}, nested or dotted, as one likes
        "agent.memory__choice": [                                      a whole block, with keys that are
            {"name": "Replay"},                                        searched only where it is drawn
            {"name": "PrioritizedReplay", "alpha__uniform": [0.4, 0.8]}
        ]
    }

What is drawn of a key is the number itself, or the index of a choice. A draw is {key's name: what was drawn}; names of
keys inside of a block tell which block: "agent.memory[1].alpha". The same draw always gives the same spec.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import pydash

from slm_lab.errors import Mistake, SpecError
from slm_lab.lib import seeds
from slm_lab.spec import shape
from slm_lab.spec.settings import as_declared
from slm_lab.spec.words import show, suggest

MARK = "__"
PARAM = re.compile(r"\$\{(\w+)\}")
CHOICES = ("choice", "grid_search")
BOUNDED = {  # kind -> what its list holds
    "uniform": ("low", "high"),
    "loguniform": ("low", "high"),
    "quniform": ("low", "high", "step"),
    "randint": ("low", "high, not included"),
    "qrandint": ("low", "high", "step"),
    "lograndint": ("low", "high, not included"),
    "normal": ("mean", "deviation"),
}
KINDS = (*CHOICES, *BOUNDED)
OF_THE_SEARCH = ("meta", "meta.seed", "meta.max_trial", "meta.max_concurrent", "meta.max_failures")
WHOLE = ("randint", "qrandint", "lograndint")
LOGARITHMIC = ("loguniform", "lograndint")
MOST_COMBINATIONS = 10**5
LARGEST = 1e300  # of a limit
PROBES = (0.0, 0.381966, 0.999)  # where a range is tried before anything starts: its ends, and between
Draw = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """One of the values of a choice: what is set, and what is searched inside of it."""

    value: Any
    keys: tuple[Key, ...] = ()

    @property
    def label(self) -> Any:
        """The value as a table shows it: a block by its name, another list or block as JSON."""
        if isinstance(self.value, dict):
            name = self.value.get("name", self.value.get("type"))
            return name if isinstance(name, str) else show(self.value)
        return show(self.value) if isinstance(self.value, list) else self.value


@dataclass(frozen=True)
class Key:
    """One searched key of the spec."""

    name: str  # unique in the space
    path: str  # in the spec
    kind: str
    limits: tuple[float, ...] = ()  # of the kinds that are BOUNDED
    options: tuple[Option, ...] = ()  # of the CHOICES

    def at(self, quantile: float) -> Any:
        """What is drawn at that quantile of its distribution, in [0, 1)."""
        if self.options:
            return min(int(quantile * len(self.options)), len(self.options) - 1)
        if self.kind == "normal":
            mean, deviation = self.limits
            return NormalDist(mean, deviation).inv_cdf(min(max(quantile, 1e-12), 1 - 1e-12))
        low, high = self.limits[:2]
        if self.kind in LOGARITHMIC:
            value = math.exp(math.log(low) + quantile * (math.log(high) - math.log(low)))
        elif self.kind in ("quniform", "qrandint"):
            return self.step_of(low + (int(quantile * self.steps)) * self.limits[2])
        else:
            value = low + quantile * (high - low)
        if self.kind in WHOLE:
            return min(max(math.floor(value), int(low)), int(high) - 1)
        return min(max(value, low), high)

    @property
    def steps(self) -> int:
        """How many values a kind with a step has."""
        low, high, step = self.limits
        return math.floor((high - low) / step + 1e-9) + 1

    def step_of(self, value: float) -> Any:
        return int(value) if self.kind == "qrandint" else float(f"{value:.12g}")  # 0.30000000000000004 is 0.3

    def near(self, value: Any) -> Any:
        """The nearest that can be drawn: a value that was changed on the way may be out of range."""
        if self.options or self.kind == "normal":
            return value
        low, high = self.limits[:2]
        if self.kind in ("quniform", "qrandint"):
            place = round((value - low) / self.limits[2])
            return self.step_of(low + min(max(place, 0), self.steps - 1) * self.limits[2])
        if self.kind in WHOLE:
            return min(max(round(value), int(low)), int(high) - 1)
        return min(max(value, low), high)


@dataclass(frozen=True)
class Space:
    keys: tuple[Key, ...]
    params: tuple[Key, ...] = ()  # the `spec_params`, each a grid of its own

    def all_keys(self) -> list[Key]:
        """Those inside of blocks too."""
        return list(_walk((*self.params, *self.keys)))

    def grid(self, kinds: Sequence[str] = ("grid_search",)) -> list[Draw]:
        """Every combination of the spec_params and of the keys of these kinds, the last the fastest."""
        return _combinations((*self.params, *self.keys), kinds)

    def draw(self, pick: Callable[[Key], Any], given: Draw | None = None) -> Draw:
        """What `pick` says of each key that is not given; of a block's keys only where it is drawn."""
        drawn: Draw = {}
        for key in (*self.params, *self.keys):
            _draw(key, pick, given or {}, drawn)
        return drawn

    def random(self, seed: int, index: int, given: Draw | None = None) -> Draw:
        """The draw of that index; each key has its own stream, so that another key beside it changes nothing."""
        return self.draw(lambda key: key.at(seeds.generator(seed, "search", key.name, index).random()), given)

    def probes(self) -> Iterator[tuple[Key, Draw]]:
        """Draws that together try each option and each range's ends, with the key that each is for."""
        for key, around in _with_surroundings((*self.params, *self.keys), {}):
            tried = range(len(key.options)) if key.options else [key.at(quantile) for quantile in PROBES]
            for value in tried:
                yield (
                    key,
                    self.draw(lambda other: other.at(0.5) if not other.options else 0, {**around, key.name: value}),
                )

    def values(self, draw: Draw) -> dict[str, Any]:
        """{path: value} as a table shows it."""
        return {
            key.path: key.options[draw[key.name]].label if key.options else draw[key.name]
            for key in _drawn((*self.params, *self.keys), draw)
        }

    def apply(self, tree: Mapping[str, Any], draw: Draw) -> dict[str, Any]:
        """The spec's tree, in the flat shape, with what was drawn in it and without its search."""
        flat, _ = shape.flatten(dict(tree))
        flat = {key: copy.deepcopy(value) for key, value in flat.items() if key not in ("search", "spec_params")}
        given = {}
        for key in _drawn((*self.params, *self.keys), draw):
            value = copy.deepcopy(key.options[draw[key.name]].value) if key.options else draw[key.name]
            if key in self.params:
                given[key.path] = value
            else:
                _set(flat, key.path, value)
        return substitute(flat, given) if given else flat


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    try:
        pydash.set_(tree, path, value)
    except (AttributeError, IndexError, TypeError, ValueError):  # it leads through what is no block
        raise SpecError([Mistake(f"search.{path}", "leads to no place in the spec")]) from None


def params_in(tree: Any) -> dict[str, str]:
    """{name: place} of each "${name}" in a spec's tree; none where it is no tree of a spec's."""
    if not isinstance(tree, dict) or shape.mistakes_of_values(tree):
        return {}
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [
        (key, value) for key, value in tree.items() if key not in ("search", "provenance")
    ]
    while waiting:
        place, value = waiting.pop(0)
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [(f"{place}.{key}", item) for key, item in items]
        elif isinstance(value, str):
            for name in PARAM.findall(value):
                found.setdefault(name, place)
    return found


def substitute(tree: Any, params: Mapping[str, Any]) -> Any:
    """The tree with each "${name}" replaced: by the value itself where that is all of the text, else as text."""
    if isinstance(tree, dict):
        return {substitute_text(key, params): substitute(value, params) for key, value in tree.items()}
    if isinstance(tree, list):
        return [substitute(item, params) for item in tree]
    return substitute_text(tree, params) if isinstance(tree, str) else tree


def substitute_text(text: str, params: Mapping[str, Any]) -> Any:
    for name, value in params.items():
        if text == f"${{{name}}}":
            return value
        text = text.replace(f"${{{name}}}", str(value))
    return text


def read_space(search: Any, spec_params: Any = None) -> Space:
    """The space of a spec's `search` block and `spec_params`; raises SpecError with all that is wrong in them."""
    found: list[Mistake] = []
    params = _read_params(spec_params, found)
    keys = _read_keys(_flat(search, found), "", "", found) if search else ()
    found += _overlaps(keys)
    if found:
        raise SpecError([Mistake(_placed(mistake.path), mistake.problem) for mistake in found])
    return Space(keys, params)


def _placed(path: str) -> str:
    return path if path.startswith("spec_params") else f"search.{path}".rstrip(".")


def _flat(search: Any, found: list[Mistake]) -> dict[str, Any]:
    if not isinstance(search, dict):
        found.append(Mistake("", f"got {show(search)}; must be a block of searched keys"))
        return {}
    flat, mistakes = shape.flatten(search)
    found += mistakes
    return flat


def _read_params(spec_params: Any, found: list[Mistake]) -> tuple[Key, ...]:
    keys: list[Key] = []
    if not isinstance(spec_params or {}, dict):
        found.append(Mistake("spec_params", f"got {show(spec_params)}; must be a block {{name: [values]}}"))
        return ()
    for name, values in (spec_params or {}).items():
        if not isinstance(values, list) or not values:
            found.append(Mistake(f"spec_params.{name}", f"got {show(values)}; must be a list of values"))
        else:
            keys.append(Key(f"${{{name}}}", name, "grid_search", options=tuple(map(Option, values))))
    return tuple(keys)


def _read_keys(
    block: Mapping[str, Any], path: str, name: str, found: list[Mistake], of_option: bool = False
) -> tuple[Key, ...]:
    """The searched keys under that path, outside of lists. Plain values have a place in an option's block only."""
    keys: list[Key] = []
    for key, value in block.items():
        place, mark, kind = str(key).rpartition(MARK)
        if not mark:
            if isinstance(value, dict):
                keys += _read_keys(value, f"{path}{key}.", f"{name}{key}.", found, of_option)
            elif not of_option:
                problem = f"nothing is searched here; write {key}__choice or {key}__uniform, with a list"
                found.append(Mistake(f"{path}{key}", problem))
            continue
        if of_option and kind == "grid_search":
            found.append(Mistake(f"{path}{key}", "inside of a block write __choice: only whole blocks are crossed"))
            continue
        read = _read_key(f"{path}{place}", f"{name}{place}", kind, value, found)
        keys += [read] if read is not None else []
    return tuple(keys)


def _read_key(path: str, name: str, kind: str, value: Any, found: list[Mistake]) -> Key | None:
    where = f"{path}{MARK}{kind}"
    if kind not in KINDS:
        found.append(Mistake(where, f"no such distribution; {suggest(kind, list(KINDS))}"))
    elif not path or path.startswith(".") or path.endswith(".") or ".." in path:
        found.append(Mistake(where, "names no key of the spec"))
    elif path.partition(".")[0] not in ("agent", "env", "meta"):
        found.append(Mistake(where, "what is searched lies in agent, env or meta"))
    elif path in OF_THE_SEARCH or path.startswith("meta.search"):
        found.append(Mistake(where, "belongs to the search itself, and cannot be searched"))
    elif not isinstance(value, list) or not value:
        found.append(Mistake(where, f"got {show(value)}; must be a list"))
    elif kind in CHOICES:
        options = [_read_option(path, f"{name}[{index}]", item, found) for index, item in enumerate(value)]
        return Key(name, path, kind, options=tuple(options))
    else:
        return _read_bounded(path, name, kind, value, found)
    return None


def _read_option(path: str, name: str, value: Any, found: list[Mistake]) -> Option:
    if not isinstance(value, dict):
        return Option(value)
    return Option(_without_searched(value), _read_keys(value, f"{path}.", f"{name}.", found, True))


def _without_searched(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    return {key: _without_searched(value) for key, value in block.items() if MARK not in key}


def _read_bounded(path: str, name: str, kind: str, value: list, found: list[Mistake]) -> Key | None:
    where, holds = f"{path}{MARK}{kind}", ", ".join(BOUNDED[kind])
    limits = [as_declared(int if kind in WHOLE else float, item) for item in value]
    numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in limits)
    if len(limits) != len(BOUNDED[kind]) or not numbers or not all(abs(item) < LARGEST for item in limits):
        found.append(Mistake(where, f"got {show(value)}; must be [{holds}]"))
        return None
    if kind in WHOLE and not all(isinstance(item, int) for item in limits):
        found.append(Mistake(where, f"got {show(value)}; must be integers: [{holds}]"))
        return None
    problem = ""
    if kind == "normal":
        problem = "" if limits[1] > 0 else "the deviation must be > 0"
    elif limits[0] >= limits[1]:
        problem = "low must be less than high"
    elif kind in LOGARITHMIC and limits[0] <= 0:
        problem = "low must be > 0: its logarithm is drawn"
    elif len(limits) == 3 and not 0 < limits[2] <= limits[1] - limits[0]:
        problem = "the step must be > 0 and fit between low and high"
    if problem:
        found.append(Mistake(where, f"got {show(value)}; {problem}"))
        return None
    return Key(name, path, kind, limits=tuple(limits))


def _overlaps(keys: Sequence[Key]) -> list[Mistake]:
    """Where two keys would set the same place."""
    found = []
    for first, second in itertools.combinations(keys, 2):
        outer, inner = sorted((first, second), key=lambda key: len(key.path))
        if inner.path == outer.path:
            found.append(Mistake(inner.path, "is searched twice; keep one"))
        elif inner.path.startswith(f"{outer.path}."):
            problem = f"{outer.path} is searched as a whole; move this key into the blocks that need it"
            found.append(Mistake(inner.path, problem))
    for key in keys:
        for option in key.options:
            found += _overlaps(option.keys)
    return found


def _walk(keys: Sequence[Key]) -> Iterator[Key]:
    for key in keys:
        yield key
        for option in key.options:
            yield from _walk(option.keys)


def _with_surroundings(keys: Sequence[Key], around: Draw) -> Iterator[tuple[Key, Draw]]:
    """Each key, with what must be drawn of others for it to be drawn at all."""
    for key in keys:
        yield key, around
        for index, option in enumerate(key.options):
            yield from _with_surroundings(option.keys, {**around, key.name: index})


def _combinations(keys: Sequence[Key], kinds: Sequence[str]) -> list[Draw]:
    found: list[Draw] = [{}]
    for key in keys:
        if key.kind not in kinds:
            continue
        here = [
            {key.name: index, **inner}
            for index, option in enumerate(key.options)
            for inner in _combinations(option.keys, kinds)
        ]
        if len(found) * len(here) > MOST_COMBINATIONS:
            raise SpecError([Mistake("search", f"more than {MOST_COMBINATIONS:,} combinations; search fewer values")])
        found = [{**before, **one} for before in found for one in here]
    return found


def _draw(key: Key, pick: Callable[[Key], Any], given: Draw, drawn: Draw) -> None:
    drawn[key.name] = given[key.name] if key.name in given else pick(key)
    if key.options:
        for inner in key.options[drawn[key.name]].keys:
            _draw(inner, pick, given, drawn)


def _drawn(keys: Sequence[Key], draw: Draw) -> Iterator[Key]:
    """The keys that the draw has a value for, a block before what is inside of it."""
    for key in keys:
        yield key
        if key.options:
            yield from _drawn(key.options[draw[key.name]].keys, draw)
