"""What an algorithm sees of its experience: add rows, ask whether to learn, draw batches.

A memory is four parts: a ring (the rows), a sampler (which rows), a view (what a row becomes), a trigger (when to
learn). A preset in presets.py chooses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from slm_lab.agent.memory.fields import Layout, fields_of, fields_of_extras
from slm_lab.agent.memory.ring import Ring
from slm_lab.agent.memory.sampler import Uniform
from slm_lab.agent.memory.stage import Stage, as_array
from slm_lab.agent.memory.view import Transitions, take
from slm_lab.errors import EmptyMemory, InvalidMemorySpec, InvalidRow, RunError
from slm_lab.lib import seeds
from slm_lab.spec.settings import Settings
from slm_lab.types import Arrays, Batch

STANDARD = ("obs", "action", "reward", "terminated", "truncated", "next_obs")  # what every row has


class Memory:
    """The base of the presets, which answer `make_ring`, `make_sampler` and `make_trigger`."""

    Settings: ClassVar[type[Settings]]
    on_policy: ClassVar[bool]

    def __init__(
        self,
        settings: Any,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        num_envs: int = 1,
        gamma: float = 0.99,
        seed: int = 0,
        training_frequency: int = 1,
        training_start_step: int = 0,
        path: Path | None = None,
    ):
        self.settings = settings
        self.num_envs = num_envs
        self.gamma = gamma
        self.training_frequency = training_frequency
        self.training_start_step = training_start_step
        self.path = path  # folder for storages that need one; rows in RAM need none
        self.rng = seeds.generator(seed, "memory")
        self.ring = self.make_ring(Layout(fields_of(observation_space, "obs"), fields_of(action_space, "action")))
        self.sampler = self.make_sampler()
        self.trigger = self.make_trigger()
        self._use_layout(self.ring.layout)

    def make_ring(self, layout: Layout) -> Ring:
        raise NotImplementedError

    def make_sampler(self) -> Any:
        return Uniform(self.ring)

    def make_trigger(self) -> Any:
        raise NotImplementedError

    def _use_layout(self, layout: Layout) -> None:
        """Start empty, with rows of this layout."""
        self.ring.use_layout(layout)
        self.sampler.reset()
        self.view = Transitions(self.ring, self.gamma)
        self._stage = Stage(layout, self.num_envs)

    # what is held

    @property
    def size(self) -> int:
        """Rows held."""
        return self.ring.size

    @property
    def max_size(self) -> int:
        """Rows that fit: the setting rounded down to a multiple of the envs, at least one row for each."""
        return self.ring.max_size

    @property
    def seen(self) -> int:
        """Rows ever added."""
        return self.ring.seen

    # write

    def add(
        self,
        obs: Arrays,
        action: Arrays,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Arrays,
        **extras: Any,
    ) -> None:
        """Write one row of each env: arrays with a leading axis N. `next_obs` is the final observation where an episode
        ends. Extras become fields with the first row and are needed in every later one."""
        stage = self._stage if self.ring.seen else self._stage_for(extras, self.num_envs)
        stage.fill(obs, action, reward, terminated, truncated, next_obs, extras)
        self._write(stage)

    def add_rows(self, rows: Mapping[str, Any], env: int = 0) -> None:
        """Write T rows of one env in time order: {"obs": (T, ...), "action": (T, ...), ...}, the names of `add`."""
        if not 0 <= env < self.num_envs:
            raise InvalidRow(f"env: {env} was given, this memory holds rows of envs 0 to {self.num_envs - 1}")
        self._write(self._staged(rows), env)

    def validate(self, rows: Mapping[str, Any]) -> None:
        """Raise InvalidRow if `add_rows` would; writes nothing."""
        self._staged(rows)

    def _staged(self, rows: Mapping[str, Any]) -> Stage:
        for name in STANDARD:
            if rows.get(name) is None:
                raise InvalidRow(f"{name}: missing; a row has {', '.join(STANDARD)}")
        extras = {name: value for name, value in rows.items() if name not in STANDARD}
        stage = self._stage_for(extras, as_array(rows["reward"]).size)
        stage.fill(**{name: rows[name] for name in STANDARD}, extras=extras)
        return stage

    def _stage_for(self, extras: Mapping[str, Any], count: int) -> Stage:
        """A stage for `count` rows; before the first row was written these extras are the ones that rows will have."""
        layout = self.ring.layout
        if extras and not self.ring.seen:
            layout = layout.with_extras(fields_of_extras({name: as_array(value) for name, value in extras.items()}))
        return Stage(layout, count)

    def _write(self, stage: Stage, env: int | None = None) -> None:
        if not self.ring.seen and stage.layout is not self.ring.layout:
            self._use_layout(stage.layout)
        self.ring.write(stage, env)

    # learn

    def ready(self, frame: int) -> bool:
        """Whether enough is held to learn from, `frame` env steps into the run."""
        return self.trigger.ready(frame)

    def due(self, frame: int) -> int:
        """Rounds of learning owed since this was last asked."""
        return self.trigger.due(frame)

    def sample(self, batch_size: int | None = None, n_step: int | None = None) -> Batch:
        """B rows drawn with replacement, as transitions over up to n steps; fewer rows than B are drawn repeatedly."""
        count = batch_size or getattr(self.settings, "batch_size", None)
        steps = getattr(self.settings, "n_step", 1) if n_step is None else n_step
        if count is None or steps < 1:
            raise InvalidMemorySpec(
                f"sample: batch_size {count} and n_step {steps} were asked for; both are at least 1"
            )
        if self.ring.size == 0:
            raise EmptyMemory(f"sample: the memory holds 0 rows; {count} were asked for and at least 1 is needed")
        ids, weight = self.sampler.draw(self.rng, count)
        return self.view.read(ids, steps, weight)

    def update_priorities(self, ids: Any, errors: Any) -> None:
        """Tell the (B,) absolute errors of rows with these ids; rows overwritten since are passed over."""
        ids, errors = as_array(ids), as_array(errors).astype(np.float64)
        if ids.shape != errors.shape or ids.ndim != 1:
            raise InvalidRow(f"errors: shape {errors.shape} was given for ids of shape {ids.shape}; both are (B,)")
        self.sampler.update(ids, errors)

    def all(self) -> Batch:
        """Every row to learn from, env by env, in time order, with `end` where the next row does not continue it."""
        ids = self.ring.ids(self._until())
        if not ids.size:
            raise EmptyMemory(f"all: the memory holds {self.size} rows, none of them to learn from yet")
        batch = self.view.read(ids)
        batch.end = torch.from_numpy(self._ends(ids))
        return batch

    def drain(self) -> Batch:
        """`all`, and forget those rows."""
        batch = self.all()
        self.ring.drop(self._until())
        return batch

    def batches(self, batch_size: int, epochs: int = 1, of: Batch | None = None) -> Iterator[Batch]:
        """Minibatches of `all()`, or of a batch that an algorithm has prepared: in each epoch every row exactly once,
        in a fresh order; the last one of an epoch may be smaller."""
        of = self.all() if of is None else of
        count = len(of.reward)
        for _ in range(epochs):
            order = torch.from_numpy(self.rng.permutation(count))
            for start in range(0, count, batch_size):
                yield take(of, order[start : start + batch_size])

    def reset(self) -> None:
        """Forget all rows; fields, counts and the generator stay."""
        self.ring.drop(self.ring.head.copy())
        self.sampler.reset()

    def close(self) -> None:
        """Give back what outlives the process: files and processes of its own. The memory is not used after that."""
        if self.ring.disk is not None:
            self.ring.disk.close()

    def _until(self) -> np.ndarray:
        """(N,) per env, rows before this t are to be learned from."""
        return self.ring.head

    def _ends(self, ids: np.ndarray) -> np.ndarray:
        ends = self.ring.ends(ids)
        ends[np.flatnonzero(np.diff(ids % self.num_envs))] = True
        ends[-1] = True
        return ends

    # look, save

    def describe(self) -> dict:
        """What is held, as JSON values."""
        layout = self.ring.layout
        return {
            "name": self.settings.name,
            "size": self.size,
            "max_size": self.max_size,
            "seen": self.seen,
            "episodes": self.ring.episodes,
            "bytes_per_row": layout.row.itemsize,
            "fields": {field.name: f"{field.dtype.name} {list(field.shape)}" for field in layout.fields},
            **self.sampler.describe(),
        }

    def state_dict(self) -> dict:
        """Rows held, priorities, counters and generator, as arrays and JSON values."""
        return {
            "fields": self.ring.layout.describe(),
            "ring": self.ring.state_dict(),
            "sampler": self.sampler.state_dict(),
            "trigger": self.trigger.state_dict(),
            "generator": seeds.generator_state(self.rng),
        }

    def load_state_dict(self, tree: dict) -> None:
        """Become that memory: the next samples are the same."""
        saved = Layout.from_description(tree["fields"])
        here = self.ring.layout
        if (saved.obs, saved.action) != (here.obs, here.action):
            raise RunError(f"the saved memory holds {saved.describe()}, this one {here.describe()}")
        self._use_layout(saved)
        self.ring.load_state_dict(tree["ring"])
        self.sampler.load_state_dict(tree["sampler"])
        self.trigger.load_state_dict(tree["trigger"])
        seeds.set_generator_state(self.rng, tree["generator"])
