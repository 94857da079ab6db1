"""NStepReplay: N-step transitions from a memory that may be larger than RAM, gathered ahead by other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from slm_lab.agent.memory.episodes import Episodes
from slm_lab.agent.memory.fields import Layout
from slm_lab.agent.memory.presets import Replay, ReplaySettings
from slm_lab.agent.memory.readers import SLOTS, Readers
from slm_lab.agent.memory.sampler import Uniform
from slm_lab.errors import InvalidMemorySpec, Mistake
from slm_lab.types import Batch


class NStepReplaySettings(ReplaySettings):
    name: Literal["NStepReplay"] = "NStepReplay"
    n_step: int = Field(3, ge=1, description="steps that a transition spans at most; shorter at an episode's end")
    storage: Literal["ram", "disk"] = Field(
        "disk", description="where the rows are: in RAM, or in a memory-mapped file that may be larger than it"
    )
    workers: int = Field(0, ge=0, le=64, description="processes that gather batches ahead of time; 0: none")
    fetch_every: int = Field(
        1000, ge=1, description="a new row can be drawn at this sample after it was added, if not before; 1: the next"
    )
    save_snapshot: bool = Field(False, description="save the memory at the end of the run, in its folder")
    sample_by: Literal["transition", "episode"] = Field(
        "transition", description="what is drawn uniformly: a row, or an episode and then one of its rows"
    )

    @model_validator(mode="after")
    def _readers_have_a_file(self) -> Self:
        if self.workers and self.storage == "ram":
            raise ValueError("workers: other processes cannot read rows in RAM: use storage 'disk', or 0 workers")
        return self


class NStepReplay(Replay):
    """Rows drawn uniformly, each as a transition over n steps. With `workers`, a batch is drawn up to two batches a
    worker before it is handed over, never `fetch_every` or more."""

    Settings = NStepReplaySettings
    settings: NStepReplaySettings
    readers: Readers | None = None

    def __init__(self, settings: Any, *spaces: Any, path: Path | None = None, **keywords: Any):
        if settings.save_snapshot and path is None:
            problem = "the snapshot is saved in the memory's folder: give it a `path`, or save it by `save(path)`"
            raise InvalidMemorySpec([Mistake("save_snapshot", problem)])
        super().__init__(settings, *spaces, path=path, **keywords)

    def make_sampler(self) -> Uniform:
        sampler = Episodes if self.settings.sample_by == "episode" else Uniform
        return sampler(self.ring, self.settings.use_cer)

    def sample(self, *args: Any, **kwargs: Any) -> Batch:
        """As any memory's; calls with sizes of their own are not gathered ahead."""
        usual = all(value is None for value in (*args, *kwargs.values()))
        if self.readers is None or not usual or not self.size:
            return super().sample(*args, **kwargs)
        return self.readers.next()

    def reset(self) -> None:
        self._stop_readers()
        super().reset()

    def _taken_back(self, ids: np.ndarray) -> None:
        super()._taken_back(ids)
        if not self.size:
            self._stop_readers()
        elif self.readers is not None:
            self.readers.written()

    def resize(self, max_size: int) -> None:
        self._stop_readers()
        super().resize(max_size)

    def close(self) -> None:
        self._stop_readers()
        if self.settings.save_snapshot and self.size:
            self.save(Path(self.path) / "snapshot")
        super().close()

    def state_dict(self) -> dict:
        readers = {} if self.readers is None else {"readers": self.readers.state_dict()}
        return super().state_dict() | readers

    def _take_on(self, tree: dict) -> None:
        super()._take_on(tree)
        if self.readers is not None and "readers" in tree:
            self.readers.load_state_dict(tree["readers"])

    def _use_layout(self, layout: Layout) -> None:
        self._stop_readers()
        super()._use_layout(layout)
        if self.settings.workers:
            self.readers = Readers(
                self.ring,
                self.view,
                lambda: self.sampler.draw(self.rng, self.settings.batch_size),
                n_step=self.settings.n_step,
                count=self.settings.workers,
                ahead=min(SLOTS * self.settings.workers, self.settings.fetch_every - 1),
            )

    def _write(self, *args: Any, **kwargs: Any) -> None:
        super()._write(*args, **kwargs)
        if self.readers is not None:
            self.readers.written()

    def _stop_readers(self) -> None:
        if self.readers is not None:
            self.readers.stop()
