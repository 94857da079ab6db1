"""What to do with a spec: the words after its name on the command line, and job files that hold many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slm_lab.errors import Mistake, SpecError
from slm_lab.spec.files import find_file, pick, read_file
from slm_lab.spec.registry import nearest

MODES = ("train", "dev", "search", "train@latest", "search@latest", "enjoy@latest")
GOES_ON = ("train", "search", "enjoy")  # modes that take "@latest" or "@data/RUN"


@dataclass(frozen=True)
class Job:
    """One spec and what to do with it."""

    file: str
    spec_name: str
    mode: str  # train, dev, search, enjoy
    target: str | None = None  # "latest", or a run's folder; None: a new run

    def tree(self) -> dict[str, Any]:
        """The spec as its file says it."""
        return pick(read_file(find_file(self.file)), self.spec_name, self.file)


def parse_job(file: str, spec_name: str, mode: str) -> Job:
    """The job that "train", "train@latest" or "enjoy@data/RUN/t0/s0" means for that spec."""
    verb, at, target = mode.partition("@")
    if (at and verb in GOES_ON and target) or (not at and verb in ("train", "dev", "search")):
        return Job(file, spec_name, verb, target or None)
    if verb in GOES_ON:
        raise SpecError(f"'{mode}' of which run? {verb}@latest, or {verb}@data/RUN")
    if verb == "dev":
        raise SpecError("mode 'dev' starts a new run; it takes no '@'")
    guess = nearest(verb, [*MODES, "enjoy"]) or nearest(mode, list(MODES))
    hint = f"did you mean '{guess}'? " if guess else ""
    raise SpecError(f"no mode '{mode}'; {hint}modes: {', '.join(MODES)}")


def read_jobs(file: str) -> list[Job]:
    """The jobs of a file {spec_file: {spec_name: mode}}, in its order; raises SpecError with all that is wrong."""
    tree = read_file(find_file(file))
    if any(isinstance(block, dict) and "agent" in block for block in tree.values()):
        raise SpecError(f"holds specs; add the name of one and a mode: {', '.join(tree)}", file)
    jobs, found = [], []
    for spec_file, wanted in tree.items():
        if not isinstance(wanted, dict):
            found.append(Mistake(spec_file, "must be a block {spec_name: mode}; a job file is {spec_file: {…}}"))
            continue
        for spec_name, mode in wanted.items():
            try:
                if not isinstance(mode, str):
                    raise SpecError(f"got {mode!r}; must be a mode: {', '.join(MODES)}")
                jobs.append(parse_job(spec_file, str(spec_name), mode))
            except SpecError as problem:
                found += [Mistake(f"{spec_file}: {spec_name}", str(problem))]
    if found or not jobs:
        raise SpecError(found or "names no job; write {spec_file: {spec_name: mode}}", file)
    return jobs
