"""The errors that mean something to several parts; a part's own (UnknownName, EnvFault) derive from them beside it.

A user sees the message alone; the traceback is for `-v`.
"""

from __future__ import annotations

from dataclasses import dataclass


class LabError(Exception):
    """The root: something that the user can understand and mend."""


class RunError(LabError):
    """A run cannot start or go on: its folder, its checkpoint, its env or its packages are not as needed."""


class InputError(RunError):
    """What a command was pointed at cannot be used, and nothing was changed: a run, its checkpoint, a data folder."""


@dataclass(frozen=True)
class Mistake:
    """One thing wrong in a spec."""

    path: str  # dotted place in the spec: agent.memory.max_sise
    problem: str  # "no such key; did you mean 'max_size'?"

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


class SpecError(LabError, ValueError):
    """A spec cannot be used; `mistakes` lists all that was found, `file` tells where it was read."""

    def __init__(self, mistakes: list[Mistake] | str, file: str | None = None, spec_name: str | None = None):
        self.mistakes = [Mistake("", mistakes)] if isinstance(mistakes, str) else list(mistakes)
        self.file = file
        self.spec_name = spec_name
        super().__init__(str(self))

    def __str__(self) -> str:
        place = ": ".join(str(part) for part in (self.file, self.spec_name) if part)
        lines = [str(mistake) for mistake in self.mistakes]
        if not place:
            return "\n".join(lines)
        if len(lines) == 1:
            return f"{place}: {lines[0]}"
        return "\n".join([f"{place}: {len(lines)} mistakes", *(f"  {line}" for line in lines)])


class EmptyMemory(LabError, ValueError):
    """A sample was asked of a memory that has too few rows."""


class InvalidRow(LabError, ValueError):
    """A row does not fit the memory's fields; nothing was written."""


class InvalidMemorySpec(SpecError):
    """A memory block that cannot be built, or a combination of its keys that makes no sense."""


class Stopped(KeyboardInterrupt):
    """A signal ended the run; `exit_code` is what shells expect after that signal."""

    def __init__(self, exit_code: int = 130):
        super().__init__(exit_code)
        self.exit_code = exit_code


class Interrupted(Stopped):
    """The run was asked to stop, and has saved its state."""


class StoppedAtOnce(Stopped):
    """The run was asked a second time, and has saved nothing more."""
