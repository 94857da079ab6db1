"""What an algorithm sees of its experience: add rows, ask whether to learn, draw batches.

A memory is four parts: a ring (the rows), a sampler (which rows), a view (what a row becomes), a trigger (when to
learn). A preset in presets.py chooses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import index, itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from slm_lab.agent.memory import archive
from slm_lab.agent.memory.bounds import Bounds
from slm_lab.agent.memory.fields import SOURCE, Layout, fields_of, fields_of_extras, in_stacks
from slm_lab.agent.memory.priorities import quantiles
from slm_lab.agent.memory.ring import SEEN, Ring
from slm_lab.agent.memory.sampler import Uniform
from slm_lab.agent.memory.stage import Stage, as_array
from slm_lab.agent.memory.view import Transitions, take
from slm_lab.agent.memory.window import Windows
from slm_lab.errors import EmptyMemory, InvalidMemorySpec, InvalidRow, Mistake, RunError
from slm_lab.lib import seeds
from slm_lab.lib.machine import installed_memory
from slm_lab.lib.trees import mapped
from slm_lab.spec.settings import Settings
from slm_lab.types import Arrays, Batch, Step

STANDARD = ("obs", "action", "reward", "terminated", "truncated", "next_obs")  # what every row has


class Memory:
    """The base of the presets, which answer `make_ring`, `make_sampler` and `make_trigger`."""

    Settings: ClassVar[type[Settings]]
    on_policy: ClassVar[bool]
    gives: ClassVar[str] = "transitions"  # what its batches consist of; an algorithm says what it `learns_from`
    parts_of_state: ClassVar[tuple[str, ...]] = ("fields", "ring", "sampler", "trigger", "generator")

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
        compute_reward: Callable | None = None,
        compute_terminated: Callable | None = None,
    ):
        whole("num_envs", num_envs)
        if not 0 <= gamma <= 1:
            raise InvalidMemorySpec(f"gamma: {gamma} was given; a discount lies in [0, 1]")
        self.settings = settings
        self.compute_reward = compute_reward  # what the env says of another goal, for memories that relabel rows
        self.compute_terminated = compute_terminated
        self._usual = tuple(
            getattr(settings, name, other)
            for name, other in (("batch_size", None), ("n_step", 1), ("sequence_length", None))
        )
        self.num_envs = num_envs
        self.gamma = gamma
        self.training_frequency = training_frequency
        self.training_start_step = training_start_step
        self.saved: archive.Saved | None = None  # of the last `save` or `load`
        self.spaces = observation_space, action_space
        self.path = path  # folder for storages that need one; rows in RAM need none
        self.rng = seeds.generator(seed, "memory")
        self.bounds = Bounds(observation_space, action_space)
        obs = in_stacks(fields_of(observation_space, "obs"), getattr(settings, "frame_stack", 1))
        self.ring = self.make_ring(Layout(obs, fields_of(action_space, "action")))
        self.sampler = self.make_sampler()
        self.trigger = self.make_trigger()
        self._use_layout(self.ring.layout)

    @classmethod
    def check(
        cls,
        settings: Any,
        observation_space: spaces.Space,
        compute_reward: Callable | None = None,
        compute_terminated: Callable | None = None,
    ) -> list[Mistake]:
        """Which keys do not fit such an env; empty where all do. Nothing is built."""
        try:
            layout = Layout(in_stacks(fields_of(observation_space, "obs"), getattr(settings, "frame_stack", 1)), ())
            cls.check_layout(settings, layout, compute_reward, compute_terminated)
        except InvalidMemorySpec as problem:
            return problem.mistakes
        return _check_room(settings, layout.row.itemsize)

    @classmethod
    def check_layout(
        cls,
        settings: Any,
        layout: Layout,
        compute_reward: Callable | None,
        compute_terminated: Callable | None,
    ) -> None:
        """Raise InvalidMemorySpec where keys do not fit the observation's fields or what the env can tell of goals."""

    def make_ring(self, layout: Layout) -> Ring:
        raise NotImplementedError

    def make_sampler(self) -> Any:
        return Uniform(self.ring)

    def make_trigger(self) -> Any:
        raise NotImplementedError

    def make_view(self) -> Transitions:
        return Transitions(self.ring, self.gamma)

    def make_windows(self) -> Windows:
        return Windows(self.view)

    def needed_extras(self) -> tuple[str, ...]:
        """What rows must carry besides the standard fields."""
        return ()

    def _use_layout(self, layout: Layout) -> None:
        """Start empty, with rows of this layout."""
        if self.saved is not None:
            self.saved.store.write_anew()
        self.ring.use_layout(layout)
        self.sampler.reset()
        self.view = self.make_view()
        self.windows = self.make_windows()
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
        source: Any = None,
        **extras: Any,
    ) -> None:
        """Write one row of each env: arrays with a leading axis N. `next_obs` is the final observation where an episode
        ends. Extras become fields with the first row and are needed in every later one.

        `source`: an int, or one for each row, that tells whose rows these are (a worker's, a demonstration's).
        """
        if source is not None or self.ring.source_word >= 0:
            extras[SOURCE] = _per_row(source, self.num_envs)
        stage = self._stage if self.ring.counts[SEEN] else self._stage_for(extras, self.num_envs)
        stage.fill(obs, action, reward, terminated, truncated, next_obs, extras)
        self._write(stage)

    def add_step(self, obs: Arrays, action: Arrays, step: Step, source: Any = None, **extras: Any) -> None:
        """`add` of what a vector env returned. Where an episode was lost, no row of it is kept."""
        told = (step.reward, step.terminated, step.truncated, step.next_obs)
        if not step.lost:
            self.add(obs, action, *told, source, **extras)
            return
        lost = {entry.env for entry in step.lost}
        rows = dict(zip(STANDARD, (obs, action, *told), strict=True)) | extras
        if source is not None:
            rows[SOURCE] = _per_row(source, self.num_envs)
        self._staged(rows, None)  # refuses what does not fit before anything is changed
        for env in range(self.num_envs):
            if env in lost:
                self.drop_episode(env)
            else:
                self.add_rows(mapped(itemgetter(slice(env, env + 1)), rows), env)

    def drop_episode(self, env: int) -> int:
        """Forget the rows of the episode that goes on in this env, as if it had not been played; how many there were.
        Rows that come next may have their ids."""
        taken = self.ring.take_back(env)
        if taken.size:
            self._taken_back(taken)
        return taken.size

    def _taken_back(self, ids: np.ndarray) -> None:
        """The ring took back these rows, one env's newest: tell whoever keeps account of rows."""
        self.sampler.taken_back(ids)
        if self.saved is not None:  # the ring tells the store of a session's checkpoints, this is that of `save`
            self.saved.store.taken_back(self.ring.head)

    def add_rows(
        self, rows: Mapping[str, Any], env: int = 0, source: Any = None, ordered: bool = True, cut: Any = None
    ) -> None:
        """Write T rows of one env in time order: {"obs": (T, ...), "action": (T, ...), ...}, the names of `add`; none
        where T is 0.

        Rows that are not `ordered` in time are each kept with a next_obs of their own; no horizon leads out of them.
        Nor does one lead out of rows where `cut` (T,) is true.
        """
        if not 0 <= env < self.num_envs:
            raise InvalidRow(f"env: {env} was given, this memory holds rows of envs 0 to {self.num_envs - 1}")
        stage = self._staged(rows, source)
        if cut is not None:
            stage.cut(cut)
        self._write(stage, env, ordered)

    def validate(self, rows: Mapping[str, Any], source: Any = None, bounds: bool = True) -> None:
        """Raise InvalidRow if `add_rows` would, or where a value is not finite or lies outside its space (unless
        `bounds` is false); writes nothing."""
        self._staged(rows, source)
        if bounds:
            self.bounds.check(rows)

    def _staged(self, rows: Mapping[str, Any], source: Any) -> Stage:
        for name in STANDARD:
            if rows.get(name) is None:
                raise InvalidRow(f"{name}: missing; a row has {', '.join(STANDARD)}")
        extras = {name: value for name, value in rows.items() if name not in STANDARD}
        count = as_array(rows["reward"], "reward").size
        if source is not None or (self.ring.source_word >= 0 and SOURCE not in extras):
            extras[SOURCE] = _per_row(source, count)
        stage = self._stage_for(extras, count)
        stage.fill(**{name: rows[name] for name in STANDARD}, extras=extras)
        return stage

    def _stage_for(self, extras: Mapping[str, Any], count: int) -> Stage:
        """A stage for `count` rows; before the first row was written these extras are the ones that rows will have."""
        layout = self.ring.layout
        if self.ring.seen:
            return Stage(layout, count)
        missing = [name for name in self.needed_extras() if name not in extras]
        if missing:
            raise InvalidRow(f"extras: {missing} are missing; this memory's settings need them in every row")
        if extras:
            layout = layout.with_extras(
                fields_of_extras({name: as_array(value, name) for name, value in extras.items()})
            )
        return Stage(layout, count)

    def _write(self, stage: Stage, env: int | None = None, ordered: bool = True) -> None:
        if not stage.count:
            return
        if stage.layout is not self.ring.layout:  # the first row has extras
            self._use_layout(stage.layout)
        self.ring.write(stage, env, ordered)

    # learn

    def ready(self, frame: int) -> bool:
        """Whether enough is held to learn from, `frame` env steps into the run."""
        return self.trigger.ready(frame)

    def due(self, frame: int) -> int:
        """Rounds of learning owed since this was last asked."""
        return self.trigger.due(frame)

    def sample(
        self,
        batch_size: int | None = None,
        n_step: int | None = None,
        sequence_length: int | None = None,
        source: int | None = None,
    ) -> Batch:
        """B rows drawn with replacement, as transitions over up to n steps; fewer rows than B are drawn repeatedly.

        With `sequence_length` each is a window of rows, (B, T, ...). With `source` only rows of that source are drawn.
        What is not given is as in the settings.
        """
        count, steps, length = self._usual
        count = count if batch_size is None else whole("sample: batch_size", batch_size)
        steps = steps if n_step is None else whole("sample: n_step", n_step)
        length = length if sequence_length is None else whole("sample: sequence_length", sequence_length)
        if count is None:
            raise InvalidMemorySpec(f"sample: {self.settings.name} has no batch_size of its own; say how many rows")
        if self.ring.size == 0:
            raise EmptyMemory(f"sample: the memory holds 0 rows; {count} were asked for and at least 1 is needed")
        ids, weight = self.sampler.draw(self.rng, count, source)
        if not ids.size:
            raise EmptyMemory(f"sample: the memory holds {self.ring.size} rows, none of them from source {source}")
        if length is not None:
            return self.windows.read(ids, length, steps, weight)
        return self.view.read(ids, steps, weight)

    def update_priorities(self, ids: Any, errors: Any) -> None:
        """Tell the (B,) absolute errors of rows with these ids, or of the windows drawn by them; rows overwritten since
        are passed over."""
        if not self.sampler.follows_errors:
            return
        ids, errors = as_array(ids), as_array(errors).astype(np.float64)
        if ids.shape != errors.shape or ids.ndim != 1:
            raise InvalidRow(f"errors: shape {errors.shape} was given for ids of shape {ids.shape}; both are (B,)")
        self.sampler.update(*self.windows.alike(ids, errors))

    def all(self) -> Batch:
        """Every row to learn from, env by env, in time order, with `end` where the next row does not continue it."""
        ids = self._to_learn_from()
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

    def batches(
        self, batch_size: int, epochs: int = 1, part: str = "train", member: int | None = None, of: Batch | None = None
    ) -> Iterator[Batch]:
        """Minibatches of `all()`, or of a batch that an algorithm has prepared: in each epoch every row exactly once,
        in a fresh order; the last one of an epoch may be smaller. Parts and members are for ModelBasedReplay to give:
        here all rows are to train on."""
        if part != "train" or member is not None:
            raise InvalidMemorySpec(
                f"batches: part '{part}' and member {member} were asked for; {self.settings.name} has no "
                "validation rows and no members: use ModelBasedReplay"
            )
        batch_size = whole("batches: batch_size", batch_size)
        return self._minibatches_of(self.all() if of is None else of, batch_size, epochs)

    def _minibatches_of(self, of: Batch, batch_size: int, epochs: int) -> Iterator[Batch]:
        count = len(of.reward)
        for _ in range(epochs):
            order = torch.from_numpy(self.rng.permutation(count))
            for start in range(0, count, batch_size):
                yield take(of, order[start : start + batch_size])

    def reset(self) -> None:
        """Forget all rows; fields, counts and the generator stay."""
        self.ring.drop(self.ring.head.copy())
        self.sampler.reset()

    def resize(self, max_size: int) -> None:
        """Hold so many rows from now on, rounded as in the setting; the newest are kept, with their priorities."""
        slots = max(1, whole("resize: max_size", max_size) // self.num_envs)
        self.ring.drop(np.maximum(self.ring.tail, self.ring.head - slots))
        sampler = self.sampler.state_dict()
        self.ring.resize(slots)
        self.sampler.load_state_dict(sampler)

    def save(self, path: str | Path) -> None:
        """Leave everything in the folder `path`; saving there again costs what is new."""
        archive.save(self, Path(path))

    def load(self, path: str | Path) -> None:
        """Become the memory that was saved there. RunError where nothing there fits this one, which stays as it is; and
        where rows are damaged, which shows as they are read, so that this one is empty after."""
        archive.load(self, Path(path))

    def export(self, path: str | Path) -> None:
        """The rows as plain arrays for others: an .npz file, or a Minari dataset for "minari:NAME"."""
        archive.export(self, path)

    def import_(self, path: str | Path) -> None:
        """Add the rows of such a file or dataset."""
        archive.import_(self, path)

    def close(self) -> None:
        """Give back what outlives the process: files and processes of its own. The memory is not used after that."""
        if self.ring.disk is not None:
            self.ring.disk.close()

    def _to_learn_from(self) -> np.ndarray:
        """Ids of the rows that `all` returns, env by env, in time order."""
        return self.ring.ids(self._until())

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
        """What is held, as JSON values. Ages count the rows that their env has added since."""
        layout = self.ring.layout
        return {
            "name": self.settings.name,
            "size": self.size,
            "max_size": self.max_size,
            "fill": self.size / self.max_size,
            "seen": self.seen,
            "episodes": self.ring.episodes,
            "bytes_per_row": layout.row.itemsize,
            "fields": {field.name: f"{field.dtype.name} {list(field.shape)}" for field in layout.fields},
            "age": quantiles(np.concatenate([np.arange(held) for held in self.ring.head - self.ring.tail])),
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
        """Become that memory: the next samples are the same.

        What does not fit is refused with RunError before anything is changed. Where rows turn out to be damaged while
        they are read, this memory is empty after.
        """
        saved = self._fitting(tree)
        try:
            self._use_layout(saved)
            self._take_on(tree)
        except BaseException:
            self._use_layout(self.ring.layout.with_extras(()))
            raise

    def _fitting(self, tree: dict) -> Layout:
        """The layout of that memory's rows; raises where it is plain from the tree that they cannot be held here."""
        if missing := self._missing_in(tree):
            raise RunError(f"the save of another kind of memory: it lacks {missing}, which {self.settings.name} needs")
        saved = Layout.from_description(tree["fields"])
        here = self.ring.layout
        if (saved.obs, saved.action) != (here.obs, here.action):
            raise RunError(f"the saved memory holds {saved.describe()}, this one {here.describe()}")
        self.ring.check_state(tree["ring"], saved)
        return saved

    def _missing_in(self, tree: dict) -> str:
        """What a memory of this kind needs and the tree does not have."""
        missing = [name for name in self.parts_of_state if name not in tree]
        for name, part in (("sampler", self.sampler), ("trigger", self.trigger)):
            missing += [f"{name}.{key}" for key in part.state_dict() if key not in tree.get(name, {})]
        return ", ".join(missing)

    def _take_on(self, tree: dict) -> None:
        """Everything that a tree which fits tells; the layout is its already."""
        self.ring.load_state_dict(tree["ring"])
        self.sampler.load_state_dict(tree["sampler"])
        self.trigger.load_state_dict(tree["trigger"])
        seeds.set_generator_state(self.rng, tree["generator"])


def _check_room(settings: Any, row_bytes: int) -> list[Mistake]:
    """Rows in RAM are asked of the system in one piece, of which it gives no more than there is."""
    rows, there = getattr(settings, "max_size", None), installed_memory()
    if rows is None or there is None or getattr(settings, "storage", "ram") != "ram" or rows * row_bytes <= there:
        return []
    needed = f"{rows:,} rows of {row_bytes:,} bytes are {rows * row_bytes / 2**30:,.0f} GiB"
    or_else = ", or set storage to 'disk'" if hasattr(settings, "storage") else ""
    return [Mistake("max_size", f"{needed}, this machine has {there / 2**30:,.0f} GiB of memory: hold fewer{or_else}")]


def whole(name: str, number: Any) -> int:
    """The number, a whole one of at least 1; InvalidMemorySpec if it is none."""
    try:
        if (count := index(number)) >= 1:
            return count
    except TypeError:
        pass
    raise InvalidMemorySpec(f"{name} {number!r} was given; a whole number of at least 1 is needed")


def _per_row(source: Any, count: int) -> np.ndarray:
    """(count,) the sources of rows that come from one, or from one each; 0 where none was told."""
    sources = as_array(0 if source is None else source, SOURCE)
    try:
        return np.broadcast_to(sources, (count,))
    except ValueError:
        raise InvalidRow(f"source: shape {sources.shape} was given for {count} rows; one for all or each") from None
