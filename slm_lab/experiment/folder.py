"""Where a run keeps its things: every path of a run is computed here and nowhere else.

    data/{spec_name}_{YYYY_mm_dd_HHMMSS}/     one run
        spec.json                             the spec as run, defaults filled in
        lock                                  who trains it, while somebody does (or after a kill: it counts no more)
        experiment.csv  best_spec.json        of a search: one row a trial; the best trial's spec, ready to run
        search.json  stop  ray/               of a search: its own books, a word to its trials, what Ray writes
        t{trial}/
            metrics.json  learning_curve.png
            spec.json  trial.json  lock       of a search: the spec that was drawn, and what became of it
            s{session}/
                train.csv  eval.csv  metrics.json  log  learning_curve.png
                checkpoint/{latest,previous,best}.safetensors
                checkpoint/rows/                      what replay memories held, of the latest two
                memory/                               files of a memory on disk, while the session runs

The command line imports this for its completion, so nothing heavy is imported here.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path

from slm_lab.errors import InputError
from slm_lab.lib.files import can_name_a_folder

ENDINGS = (".json", ".csv", ".png", ".safetensors", ".bin", ".tmp")  # of a run's files
_RUN_NAME = re.compile(r"(?P<spec>.+)_(?P<time>\d{4}_\d\d_\d\d_\d{6})(?:_(?P<suffix>\d+))?")
_TARGET = re.compile(r"(?P<run>.*?)(?:(?:^|/)t(?P<trial>\d+)(?:/s(?P<session>\d+))?)?/*", re.DOTALL)


@dataclass(frozen=True)
class SessionFolder:
    root: Path
    index: int

    @property
    def train_table(self) -> Path:
        return self.root / "train.csv"

    @property
    def eval_table(self) -> Path:
        return self.root / "eval.csv"

    @property
    def metrics_file(self) -> Path:
        return self.root / "metrics.json"

    @property
    def curve_file(self) -> Path:
        return self.root / "learning_curve.png"

    @property
    def log_file(self) -> Path:
        return self.root / "log"

    @property
    def checkpoint_folder(self) -> Path:
        return self.root / "checkpoint"

    @property
    def latest(self) -> Path:
        return self.checkpoint_folder / "latest.safetensors"

    @property
    def previous(self) -> Path:
        return self.checkpoint_folder / "previous.safetensors"

    @property
    def best(self) -> Path:
        return self.checkpoint_folder / "best.safetensors"

    def has_lost_its_checkpoints(self) -> bool:
        """Whether there are results, and no state to go on from: beginning afresh would erase them."""
        if self.latest.exists() or self.previous.exists():
            return False
        tables = self.train_table.exists() or self.eval_table.exists()
        return self.metrics_file.exists() or (tables and not self.checkpoint_folder.is_dir())

    @property
    def saved_rows(self) -> Path:
        return self.checkpoint_folder / "rows"

    @property
    def memory_folder(self) -> Path:
        return self.root / "memory"

    def absolute(self) -> SessionFolder:
        return SessionFolder(self.root.absolute(), self.index)

    def make(self) -> SessionFolder:
        try:
            self.checkpoint_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.root}: cannot be made: {error.strerror}") from error
        return self


@dataclass(frozen=True)
class TrialFolder:
    root: Path
    index: int

    @property
    def metrics_file(self) -> Path:
        return self.root / "metrics.json"

    @property
    def curve_file(self) -> Path:
        return self.root / "learning_curve.png"

    @property
    def spec_file(self) -> Path:
        return self.root / "spec.json"

    @property
    def record_file(self) -> Path:
        return self.root / "trial.json"

    @property
    def lock_file(self) -> Path:
        return self.root / "lock"

    def session(self, index: int) -> SessionFolder:
        return SessionFolder(self.root / f"s{index}", index)

    def sessions(self) -> list[SessionFolder]:
        """Those that exist, in order."""
        return [self.session(index) for index in _numbered(self.root, "s")]


@dataclass(frozen=True)
class RunFolder:
    root: Path

    @classmethod
    def create(cls, data_dir: str | Path, spec_name: str) -> RunFolder:
        """A new folder, named after the spec and the time; never one that exists."""
        if not can_name_a_folder(spec_name):
            raise InputError(f"spec name {spec_name!r} cannot name a folder; use letters, digits, '_' and '-'")
        data_dir = Path(data_dir)
        name = f"{spec_name}_{datetime.now():%Y_%m_%d_%H%M%S}"
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                root = data_dir / (name if number == 1 else f"{name}_{number}")
                try:
                    root.mkdir()
                    return cls(root)
                except FileExistsError:
                    continue  # another run of this spec started in the same second
        except OSError as error:
            raise InputError(
                f"data folder {data_dir}: cannot write there ({error.strerror}); choose another with --data-dir"
            ) from error
        raise AssertionError("unreachable")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run."""
        run = cls(Path(path))
        if run.spec_file.is_file():
            return run
        if run.root.is_dir():
            raise InputError(f"{run.root}: not a run folder: it has no {run.spec_file.name}")
        parent = run.root.absolute().parent
        near = difflib.get_close_matches(run.name, [other.name for other in _runs(parent)], n=1)
        hint = f"; did you mean {run.root.with_name(near[0])}?" if near else ""
        found = "not a folder" if run.root.exists() else "no such run folder"
        raise InputError(f"{run.root}: {found}{hint}")

    def refuse_links(self) -> None:
        """InputError where something in the run leads out of it, or is no file where one belongs: it would be written
        to."""
        for place, folders, files in os.walk(self.root):
            for path in [Path(place, name) for name in (*folders, *files)]:
                kind = path.lstat().st_mode
                if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
                    raise InputError(f"{path}: a run holds files of its own; this is a link, or no file at all")
                if stat.S_ISDIR(kind) and (path.suffix in ENDINGS or path.name in ("lock", "log")):
                    raise InputError(f"{path}: is a folder where a file belongs")

    @property
    def name(self) -> str:
        return self.root.absolute().name

    @property
    def spec_file(self) -> Path:
        return self.root / "spec.json"

    @property
    def lock_file(self) -> Path:
        return self.root / "lock"

    @property
    def experiment_table(self) -> Path:
        return self.root / "experiment.csv"

    @property
    def best_spec_file(self) -> Path:
        return self.root / "best_spec.json"

    @property
    def search_file(self) -> Path:
        return self.root / "search.json"

    @property
    def stop_file(self) -> Path:
        return self.root / "stop"

    @property
    def ray_folder(self) -> Path:
        return self.root / "ray"

    @property
    def is_search(self) -> bool:
        return self.search_file.is_file()

    def trial(self, index: int) -> TrialFolder:
        return TrialFolder(self.root / f"t{index}", index)

    def trials(self) -> list[TrialFolder]:
        """Those that exist, in order."""
        return [self.trial(index) for index in _numbered(self.root, "t")]


def find_latest(data_dir: str | Path, spec_name: str, search: bool | None = None) -> Path:
    """The newest run of exactly that spec, by the time in its name; `search`: of those that are, or are not, one."""
    runs = [
        (match["time"], int(match["suffix"] or 1), run.root)
        for run, match in _parsed(Path(data_dir), spec_name)
        if search in (None, run.is_search)
    ]
    if runs:
        return max(runs)[2]
    if _parsed(Path(data_dir), spec_name):
        has, other = ("runs that were trained", "train") if search else ("searches", "search")
        raise InputError(f"of spec '{spec_name}' {data_dir} has {has} only; go on with {other}@latest")
    names = sorted({match["spec"] for _, match in _parsed(Path(data_dir))})
    have = f"there are runs of: {', '.join(names)}" if names else "there are no runs at all"
    raise InputError(f"no run of spec '{spec_name}' in {data_dir}; {have}")


def find_runs(data_dir: str | Path, spec_name: str | None = None) -> list[Path]:
    """The runs of that spec, or of any."""
    return [run.root for run, _ in _parsed(Path(data_dir), spec_name)]


def parse_target(text: str) -> tuple[RunFolder, int | None, int | None]:
    """The run that RUN, RUN/t0 or RUN/t0/s0 names, with the trial's and the session's index where given."""
    match = _TARGET.fullmatch(text)
    assert match is not None  # the pattern takes any text
    root = match["run"] or ("/" if text.startswith("/") else ".")
    if not text.strip():
        raise InputError("no run named; give a run's folder, for example data/RUN or data/RUN/t0/s0")
    run = RunFolder.open(Path(root).expanduser())
    if match["trial"] is None:
        return run, None, None
    trial = run.trial(int(match["trial"]))
    _require(trial, run.trials())
    if match["session"] is None:
        return run, trial.index, None
    session = trial.session(int(match["session"]))
    _require(session, trial.sessions())
    return run, trial.index, session.index


def _require(part: TrialFolder | SessionFolder, existing: list) -> None:
    if part not in existing:
        have = ", ".join(other.root.name for other in existing) or "nothing"
        raise InputError(f"{part.root}: no such folder; {part.root.parent} has {have}")


def _runs(data_dir: Path) -> list[RunFolder]:
    if not data_dir.is_dir():
        return []
    try:
        return [run for run in map(RunFolder, sorted(data_dir.iterdir())) if run.spec_file.is_file()]
    except OSError as error:
        raise InputError(f"{data_dir}: cannot be read: {error.strerror}") from error


def _parsed(data_dir: Path, spec_name: str | None = None) -> list[tuple[RunFolder, re.Match]]:
    """Runs whose names hold a time, with the name's parts."""
    parsed = [(run, _RUN_NAME.fullmatch(run.name)) for run in _runs(data_dir)]
    return [(run, match) for run, match in parsed if match and spec_name in (None, match["spec"])]


def _numbered(root: Path, letter: str) -> list[int]:
    if not root.is_dir():
        return []
    pattern = re.compile(rf"{letter}(0|[1-9]\d*)")
    return sorted(int(match[1]) for path in root.iterdir() if path.is_dir() and (match := pattern.fullmatch(path.name)))
