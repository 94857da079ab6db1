"""Spec files: where they are, and the trees in them. JSON with comments and trailing commas, or YAML.

Nothing heavy is imported here: listing and completing specs must be quick.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from slm_lab.errors import Mistake, SpecError
from slm_lab.spec.registry import nearest

SHIPPED = Path(__file__).resolve().parents[2] / "spec"
YAML_ENDINGS = (".yaml", ".yml")
ENDINGS = (".json", ".json5", ".jsonc", *YAML_ENDINGS)
LARGEST_FILE = 16 * 2**20  # bytes
STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
STRING_OR_TRAILING_COMMA = re.compile(r'"(?:\\.|[^"\\\n])*"|,(?=\s*[}\]])')


def find_file(path: str | Path) -> Path:
    """The file as given, else the one under spec/, here or where the lab lives; raises SpecError with the nearest."""
    try:
        for candidate in (Path(path), Path("spec", path), SHIPPED / path):
            if candidate.is_file():
                return candidate
        is_folder = Path(path).is_dir()
    except (OSError, ValueError):  # a name that no file can have
        is_folder = False
    if is_folder:
        raise SpecError("is a folder; name a spec file in it", str(path))
    files = spec_files()
    by_name = {file.name: file for file in reversed(files)}
    guess = nearest(str(path), [str(file) for file in files]) or nearest(Path(path).name, list(by_name))
    hint = f"; did you mean '{by_name.get(guess, guess)}'?" if guess else ""
    raise SpecError(f"no such file, here or under spec/{hint}", str(path))


def spec_files(folder: Path | None = None) -> list[Path]:
    """The spec files under ./spec, else those that ship with the lab; paths as a user would type them."""
    folder = folder or (Path("spec") if Path("spec").is_dir() else SHIPPED)
    return sorted(file for file in folder.rglob("*") if file.suffix in ENDINGS and file.is_file())


def read_file(path: str | Path) -> dict[str, Any]:
    """{spec_name: tree} as the file says it; raises SpecError with the place in the file where it is known."""
    path = Path(path)
    text = _read_text(path)
    try:
        tree = _parse_yaml(text, path) if path.suffix in YAML_ENDINGS else parse_json(text, path)
    except RecursionError:
        raise SpecError("nested too deeply to be a spec", str(path)) from None
    if not isinstance(tree, dict):
        kind = "list" if isinstance(tree, list) else type(tree).__name__
        raise SpecError(f"holds a {kind}; a spec file is a block {{spec_name: {{agent, env, meta}}}}", str(path))
    tree.pop("$schema", None)  # for editors
    for name in tree:
        if not isinstance(name, str):
            raise SpecError(f"the spec name {name!r} must be a string; put it in quotes", str(path))
    return tree


def with_env_file(tree: Any, file: str | Path) -> Any:
    """The spec with "my_env.py:MyEnv" as a path that holds from here, where that file lies beside the spec's."""
    env = tree.get("env") if isinstance(tree, dict) else None
    block = env[0] if isinstance(env, list) and len(env) == 1 else env
    if not isinstance(block, dict) or not isinstance(block.get("name"), str):
        return tree
    path, colon, rest = block["name"].rpartition(":")
    if not path.endswith(".py") or not (beside := find_file(file).parent / path).is_file():
        return tree
    block = {**block, "name": f"{beside}{colon}{rest}"}
    return {**tree, "env": [block] if isinstance(env, list) else block}


def pick(tree: dict[str, Any], name: str, file: str) -> dict[str, Any]:
    """The spec of that name from what `read_file` returned."""
    if name in tree:
        return tree[name]
    if "agent" in tree and "env" in tree:
        raise SpecError("holds one spec without a name; write {spec_name: {agent, env, meta}}", file)
    guess = nearest(name, list(tree))
    hint = f"did you mean '{guess}'? " if guess else ""
    raise SpecError(f"no spec named '{name}'; {hint}it has: {', '.join(tree) or 'none'}", file)


def _read_text(path: Path) -> str:
    try:
        if path.is_dir():
            raise SpecError("is a folder, not a spec file", str(path))
        if path.stat().st_size > LARGEST_FILE:
            raise SpecError(f"is larger than {LARGEST_FILE >> 20} MiB; that is no spec file", str(path))
        content = path.read_bytes()
    except (OSError, ValueError) as problem:
        if isinstance(problem, SpecError):
            raise
        reason = getattr(problem, "strerror", None) or str(problem)
        raise SpecError(f"cannot be read: {reason}", str(path)) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before, newline = content[: problem.start], b"\n"
        line, column = before.count(newline) + 1, problem.start - before.rfind(newline)
        raise SpecError("is not UTF-8 text", f"{path}:{line}:{column}") from None
    if not text.strip():
        raise SpecError("the file is empty", str(path))
    return text


def parse_json(text: str, path: Path | str) -> Any:
    """The value of a JSON text with comments and trailing commas; whatever else JSON5 allows is read too, slower."""
    plain = STRING_OR_COMMENT.sub(_blank, text) if "/" in text else text
    plain = STRING_OR_TRAILING_COMMA.sub(_blank, plain)
    try:
        return json.loads(plain, object_pairs_hook=_unique)
    except _DuplicateKey as problem:
        _refuse_duplicate(problem.key, text, path)
    except json.JSONDecodeError as problem:
        place, reason = (problem.lineno, problem.colno), problem.msg
    except ValueError as problem:  # an integer of more digits than Python reads
        raise SpecError(f"not JSON: {str(problem).partition(';')[0]}", str(path)) from None
    import json5

    try:
        return json5.loads(text, object_pairs_hook=_unique)
    except _DuplicateKey as problem:
        _refuse_duplicate(problem.key, text, path)
    except ValueError as problem:
        found = re.match(r"<string>:(\d+) (.*) at column (\d+)", str(problem), re.DOTALL)
        if found and (int(found[1]), int(found[3])) > place:
            place, reason = (int(found[1]), int(found[3])), found[2]
    end = text.rstrip().count("\n") + 1
    last_column = len(text.rstrip()) - text.rstrip().rfind("\n")
    if place >= (end, last_column):
        reason = "the file ends in the middle of a block or text"
    raise SpecError(f"not JSON: {reason}", f"{path}:{place[0]}:{place[1]}")


def _blank(match: re.Match) -> str:
    """Spaces in place of a comment or comma, so that errors keep their line and column."""
    token = match.group()
    return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)


class _DuplicateKey(Exception):
    def __init__(self, key: str):
        self.key = key


def _unique(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(found)
    tree = dict(pairs)
    if len(tree) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKey(key)
            seen.add(key)
    return tree


def _refuse_duplicate(key: str, text: str, path: Path | str) -> NoReturn:
    written = re.compile(rf"""(?:["']{re.escape(key)}["']|\b{re.escape(key)}\b)\s*:""")
    lines = [text.count("\n", 0, match.start()) + 1 for match in written.finditer(text)]
    place = f" (lines {lines[0]} and {lines[1]})" if len(lines) == len(set(lines)) == 2 else ""
    raise SpecError([Mistake("", f"the key '{key}' is given twice in one block{place}; keep one")], str(path))


def _parse_yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_loader())
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise SpecError(f"not YAML: {problem.problem or problem.context}", f"{path}{place}") from None
    except yaml.YAMLError as problem:
        raise SpecError(f"not YAML: {str(problem).splitlines()[0]}", str(path)) from None
    except ValueError as problem:  # a date or number that there is not
        raise SpecError(f"not YAML: {problem}", str(path)) from None


def _yaml_loader() -> type:
    """PyYAML's safe loader, except that keys are unique and 1e6 is a number, as YAML 1.2 has it."""
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: str):
            super().__init__(stream)
            self.checked: set[int] = set()  # ids of nodes; a block that others merge comes here several times

        def flatten_mapping(self, node: Any) -> None:
            """Check before "<<" brings in the keys of others, which the block's own may override."""
            if id(node) not in self.checked:
                self.checked.add(id(node))
                seen: set[str] = set()
                for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
                    if key.value in seen:
                        problem = f"the key '{key.value}' is given twice in one block; keep one"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
            super().flatten_mapping(node)

    number = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader
