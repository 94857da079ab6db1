"""Imports point downward only; siblings are blind to each other; some libraries have one home."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [  # bottom to top
    {"types", "errors", "lib"},
    {"spec"},
    {"env", "agent.net", "agent.memory"},
    {"agent.common", "agent.group"},
    {"agent.compiled"},
    {"agent.stack"},
    {"agent.learner"},
    {"agent.algorithm"},
    {"agent.agent", "analysis"},
    {"experiment"},
    {"cli"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "slm_lab").rglob("*.py"))


def imports(file: Path) -> set[str]:
    """Dotted names: `from a import b` counts as a.b."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part_of(module: str) -> str | None:
    """The part that a module belongs to: agent.net for slm_lab.agent.net.mlp; None for the package itself."""
    words = module.split(".")[1:]
    if words[:1] == ["agent"]:
        part = ".".join(words[:2])
        return part if part in RANK else "agent.agent" if len(words) == 1 else None
    return words[0] if words and words[0] in RANK else None


def test_every_module_has_its_layer():
    package = {"slm_lab", "slm_lab.agent"}  # their __init__
    modules = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in FILES}
    assert [module for module in sorted(modules - package) if part_of(module) is None] == []


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_point_down(file):
    own = part_of(".".join(file.with_suffix("").parts))
    for module in imports(file):
        other = part_of(module) if module.split(".")[0] == "slm_lab" else None
        if own and other and own != other and {own, other} - LAYERS[0]:
            assert RANK[other] < RANK[own], f"{file} imports {module}: {own} may not know {other}"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_libraries_stay_where_they_belong(file):
    place = file.as_posix().removeprefix("slm_lab/")
    for module in imports(file):
        library = module.split(".")[0]
        if library == "gymnasium":
            assert place.startswith("env/") or module.startswith("gymnasium.spaces"), f"{file}: {module}"
        if library == "ray":
            assert place.startswith(("experiment/search/", "experiment/remote/")), f"{file}: {module}"
        if library == "torch":
            assert not place.startswith(("spec/", "env/", "cli.py")), f"{file}: {module}"
        if library == "pydash":
            assert place.startswith("spec/"), f"{file}: {module}"
