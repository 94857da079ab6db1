"""What a search is made of, for those who choose its trials and those who run them: no word of Ray in here."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slm_lab.env import make_env
from slm_lab.errors import Mistake, RunError, SpecError
from slm_lab.experiment import lab
from slm_lab.experiment.folder import RunFolder, TrialFolder
from slm_lab.lib import seeds
from slm_lab.lib.files import read_json, write_json
from slm_lab.spec.schema import MetaSpec, Spec, read_spec
from slm_lab.spec.space import Draw, Key, Space

RUNNING, FINISHED, STOPPED_EARLY, FAILED = "running", "finished", "stopped early", "failed"
ENDED = (FINISHED, STOPPED_EARLY, FAILED)
MOST_TOLD = 20  # mistakes
OF_A_SEARCH = ("max_trial", "max_concurrent", "max_failures")  # and what begins with "search"


@dataclass(frozen=True)
class Plan:
    """The spec's tree, its space, and how trials come out of them."""

    name: str
    tree: dict[str, Any]  # flat shape, with its search
    space: Space
    meta: MetaSpec  # its seed is known
    run: RunFolder
    started_in: Path = field(default_factory=Path.cwd)  # where relative paths of the spec begin

    def combinations(self) -> list[Draw]:
        """What a search goes through in order; keys that are missing are drawn."""
        return self.space.grid(("grid_search", "choice") if self.meta.search == "grid" else ("grid_search",))

    def num_trials(self) -> int:
        """Nothing is drawn twice where nothing is left to chance: sessions are what a spec is repeated by."""
        drawn = self.meta.search != "grid" and any(key.kind != "grid_search" for key in self.space.all_keys())
        return len(self.combinations()) * (self.meta.max_trial if drawn else 1)

    def folder(self, index: int) -> TrialFolder:
        return self.run.trial(index)

    def spec_tree(self, index: int, draw: Draw, seed: int | None = None) -> dict[str, Any]:
        """The spec of that trial, to be run by itself too: its seed is in it, the trial's own if none is given."""
        tree = self.space.apply(self.tree, draw)
        meta = {key: value for key, value in (tree.get("meta") or {}).items() if not _is_of_a_search(key)}
        return {**tree, "meta": {**meta, "seed": self.seed_of(index) if seed is None else seed}}

    def seed_of(self, index: int) -> int:
        return seeds.derive(self.meta.seed or 0, "trial", index)

    def read(self, index: int, draw: Draw, seed: int | None = None) -> Spec:
        """Raises SpecError where what was drawn is no spec."""
        return lab.read(self.spec_tree(index, draw, seed), self.name)

    def check(self) -> None:
        """Raises SpecError where a searched key, or a value that may be drawn of it, does not fit the spec."""
        found: dict[Mistake, None] = {}
        with ExitStack() as opened:
            envs: dict[str, Any] = {}  # by their blocks
            for key, draw in self.space.probes():
                try:
                    spec = read_spec(self.spec_tree(0, draw), self.name)
                    block = spec.env.model_dump_json()
                    if block not in envs:
                        envs[block] = make_env(spec.env)
                        opened.callback(envs[block].close)
                    lab.fitted(spec, envs[block])
                except SpecError as problem:
                    found.update(dict.fromkeys(_of_the_space(mistake, key) for mistake in problem.mistakes))
                if len(found) > MOST_TOLD:
                    break
        if found:
            told = {mistake.path: mistake for mistake in reversed(found)}  # one a place is enough
            raise SpecError(list(told.values())[::-1], None, self.name)


def _of_the_space(mistake: Mistake, key: Key) -> Mistake:
    """The mistake where the user can mend it: in the search, if it is of what was drawn."""
    inside = mistake.path == key.path or mistake.path.startswith((f"{key.path}.", f"{key.path}["))
    hint = "; for an integer, search __randint" if "an integer" in mistake.problem and key.limits else ""
    return Mistake(f"search.{mistake.path}" if inside else mistake.path, mistake.problem + hint)


@dataclass(frozen=True)
class Record:
    """What became of a trial, as its file keeps it."""

    draw: Draw
    status: str = RUNNING
    error: str = ""
    seed: int | None = None  # of another trial, whose state it took over

    def write(self, folder: TrialFolder) -> None:
        folder.root.mkdir(exist_ok=True)
        write_json(folder.record_file, asdict(self))

    @classmethod
    def read(cls, folder: TrialFolder, space: Space) -> Record | None:
        """None where there is none, or none that this space could have drawn: the trial is drawn anew."""
        if not folder.record_file.exists():
            return None
        try:
            tree = read_json(folder.record_file)
            record = cls(dict(tree["draw"]), tree["status"], str(tree["error"]), tree["seed"])
            space.values(record.draw)
        except (RunError, TypeError, KeyError, IndexError, ValueError):
            return None
        return record if record.status in (RUNNING, *ENDED) else None


def _is_of_a_search(key: str) -> bool:
    return key.startswith("search") or key in OF_A_SEARCH
