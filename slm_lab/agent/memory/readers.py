"""Batches gathered ahead of time by other processes, for memories on disk: page faults and copying happen there.

This process draws the ids, so chance stays with one generator and a batch does not depend on timing; a reader turns
ids into a batch, which it reads from the memory's file and leaves in a second mapped file. Both come to it open: the
first may have lost its name to another memory, the second has none, so that it is gone when the processes are. A
request is drawn at most `ahead` samples before it is handed over. If rows of a waiting request are overwritten, it is
drawn anew; so what is handed over is always held, and what waits can be saved as ids.

A reader (`serve`) takes requests on its standard input, and ends when that does:
also when this process is killed.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm_lab.agent.memory.disk import SEQUENCE, FileMap
from slm_lab.agent.memory.fields import Layout
from slm_lab.agent.memory.ring import Ring
from slm_lab.agent.memory.view import Transitions
from slm_lab.errors import RunError
from slm_lab.types import Batch

SLOTS = 2  # batches that a reader has ready or at work
SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from slm_lab.agent.memory.readers import serve; serve()"
)
SECONDS_TO_END = 5.0
HERE = ("ids", "weight")  # of a batch, what is known here and need not come back


@dataclass(eq=False)
class Request:
    """One batch to come: which rows, and the ring's bounds when they were drawn, which fix where horizons end."""

    ids: np.ndarray  # (B,)
    weight: np.ndarray  # (B,)
    head: np.ndarray  # (N,)
    tail: np.ndarray  # (N,)
    lowest: np.ndarray  # (N,) t of each env's oldest row among the ids
    beyond: np.ndarray  # (N,) t after each env's newest row among them
    slot: int = 0
    ready: bool = False
    dropped: bool = False


class Readers:
    """`next()` is the batch that was asked for `ahead` calls ago; with 0 it is asked for then, and waited for."""

    def __init__(
        self,
        ring: Ring,
        view: Transitions,
        draw: Callable[[], tuple[np.ndarray, np.ndarray]],
        *,
        n_step: int,
        count: int,
        ahead: int,
    ):
        self.ring = ring
        self.view = view
        self.draw = draw
        self.n_step = n_step
        self.ahead = ahead
        self.count = count
        self.waiting: deque[tuple[int, Request]] = deque()  # (reader, request), in the order of handing over
        self.asked = 0
        self._readers: list[_Reader] = []

    def next(self) -> Batch:
        self._ask_ahead(max(1, self.ahead))
        place, request = self.waiting.popleft()
        reader = self._readers[place]
        while not request.ready:
            reader.receive()
        batch = self._parts.batch(reader.slots[request.slot], request)
        reader.free.append(request.slot)
        self._ask_ahead(self.ahead)
        return batch

    def written(self) -> None:
        """Rows were written or taken back: draw anew the waiting requests that have lost some."""
        for index, (place, request) in enumerate(self.waiting):
            if (self.ring.tail > request.lowest).any() or (self.ring.head < request.beyond).any():
                self._readers[place].drop(request)
                self.waiting[index] = (place, self._send(place, self._drawn()))

    def stop(self) -> None:
        """End the readers and forget what waits."""
        self.waiting.clear()
        for reader in self._readers:
            reader.stop()
        self._readers = []

    def state_dict(self) -> dict:
        return {
            "asked": self.asked,
            "waiting": [
                {key: getattr(request, key).copy() for key in ("ids", "weight", "head", "tail")}
                for _, request in self.waiting
            ],
        }

    def load_state_dict(self, tree: dict) -> None:
        """Ask again for what waited; the rows are those of the saved memory."""
        self.stop()
        requests = [
            self._request(*(np.array(saved[key]) for key in ("ids", "weight", "head", "tail")))
            for saved in tree["waiting"]
        ]
        self.asked = int(tree["asked"]) - len(requests)
        if requests:
            self._start(requests[0].ids.size)
        for request in requests:
            self._ask(request)

    def _ask_ahead(self, count: int) -> None:
        while len(self.waiting) < count:
            self._ask(self._drawn())

    def _ask(self, request: Request) -> None:
        if not self._readers:
            self._start(request.ids.size)
        place = self.asked % self.count
        self.waiting.append((place, self._send(place, request)))
        self.asked += 1

    def _drawn(self) -> Request:
        return self._request(*self.draw(), self.ring.head.copy(), self.ring.tail.copy())

    def _request(self, ids: np.ndarray, weight: np.ndarray, head: np.ndarray, tail: np.ndarray) -> Request:
        envs = self.ring.num_envs
        lowest = np.full(envs, np.iinfo(np.int64).max)
        np.minimum.at(lowest, ids % envs, ids // envs)
        beyond = np.zeros(envs, np.int64)
        np.maximum.at(beyond, ids % envs, ids // envs + self.n_step)
        return Request(ids, weight, head, tail, lowest, np.minimum(beyond, head))

    def _send(self, place: int, request: Request) -> Request:
        self._readers[place].send(request, self.n_step)
        return request

    def _start(self, batch_size: int) -> None:
        ring = self.ring
        assert ring.disk is not None  # the settings see to that
        self._parts = Parts(self.view.read(ring.ids()[:1], self.n_step), batch_size)
        task = {
            "rows": ring.disk.descriptor,
            "layout": ring.layout.describe(),
            "slots": ring.slots,
            "num_envs": ring.num_envs,
            "gamma": self.view.gamma,
            "batch_size": batch_size,
        }
        for _ in range(self.count):
            self._readers.append(_Reader(task, ring.disk.folder, self._parts.nbytes))


class _Reader:
    """One process, its requests under way in order, and the slots where its batches appear."""

    def __init__(self, task: dict, folder: Path, nbytes: int):
        self.free = list(range(SLOTS))
        self.under_way: deque[Request] = deque()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(SLOTS * nbytes)
            self.slots = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8).reshape(SLOTS, nbytes)
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,  # Ctrl-C is for the lab, which may want one more batch
                pass_fds=(task["rows"], file.fileno()),
            )
            self._write((json.dumps(task | {"answers": file.fileno()}) + "\n").encode())

    def send(self, request: Request, n_step: int) -> None:
        while not self.free:
            self.receive()
        request.slot = self.free.pop()
        self.under_way.append(request)
        numbers = np.array([request.slot, n_step], np.int64)
        self._write(np.concatenate([numbers, request.head, request.tail, request.ids]).tobytes())

    def receive(self) -> None:
        """Wait for the oldest request under way."""
        assert self.process.stdout is not None
        if not self.process.stdout.read(1):
            self._fail()
        request = self.under_way.popleft()
        request.ready = True
        if request.dropped:
            self.free.append(request.slot)

    def drop(self, request: Request) -> None:
        request.dropped = True
        if request.ready:
            self.free.append(request.slot)

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _write(self, content: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(content)
        try:
            while view:
                view = view[self.process.stdin.write(view) :]
        except OSError:
            self._fail()

    def _fail(self) -> None:
        raise RunError(
            f"a reader process of the memory has ended (exit code {self.process.wait()}); see its message above"
        )


class Parts:
    """The tensors of a batch of B rows, one after another in a block of bytes; `sample` is such a batch of any size."""

    def __init__(self, sample: Batch, batch_size: int):
        self.places: list[tuple[tuple[str, ...], np.dtype, tuple[int, ...], int]] = []
        self.nbytes = 0
        for path, tensor in tensors_of(sample):
            array = tensor.numpy()
            shape = (batch_size, *array.shape[1:])
            self.places.append((path, array.dtype, shape, self.nbytes))
            self.nbytes += -(-array.nbytes // len(array) * batch_size // 64) * 64

    def put(self, batch: Batch, block: np.ndarray) -> None:
        tensors = dict(tensors_of(batch))
        for path, dtype, shape, place in self.places:
            np.ndarray(shape, dtype, block, place)[...] = tensors[path].numpy()

    def batch(self, block: np.ndarray, request: Request) -> Batch:
        """A batch that belongs to the caller."""
        block = block.copy()
        groups: dict[str, Any] = {"extras": {}}
        for (group, *key), dtype, shape, place in self.places:
            tensor = torch.from_numpy(np.ndarray(shape, dtype, block, place))
            if key:
                groups.setdefault(group, {})[key[0]] = tensor
            else:
                groups[group] = tensor
        return Batch(**groups, ids=torch.from_numpy(request.ids), weight=torch.from_numpy(request.weight))


def tensors_of(batch: Batch) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    for part in fields(batch):
        value = getattr(batch, part.name)
        if isinstance(value, dict):
            yield from (((part.name, key), tensor) for key, tensor in value.items())
        elif value is not None and part.name not in HERE:
            yield (part.name,), value


class MappedRing(Ring):
    """A ring that another process writes to, read by bounds that come with each request."""

    def __init__(self, layout: Layout, slots: int, num_envs: int, content: FileMap):
        self.content = content
        super().__init__(layout, slots, num_envs)

    def _allocate(self, slots: int) -> None:
        self.slots = slots
        self.ring_slots = len(self.content.rows) // self.num_envs
        self.raw = self.content.rows
        self.floats = self.raw.view(np.float32)
        self.links = self.raw.view(np.int32)
        self.finals = self.content.finals


def serve() -> None:
    """A reader's whole life."""
    requests, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.dup(1)
    os.dup2(2, 1)  # what a library may print is no answer
    torch.set_num_threads(1)
    parent = os.getppid()
    task = json.loads(_line(requests))
    content = FileMap(task["rows"])
    envs, batch_size = task["num_envs"], task["batch_size"]
    ring = MappedRing(Layout.from_description(task["layout"]), task["slots"], envs, content)
    view = Transitions(ring, task["gamma"])
    slots: np.ndarray | None = None
    while message := _exactly(requests, 8 * (2 + 2 * envs + batch_size)):
        numbers = np.frombuffer(message, np.int64)
        slot, n_step = numbers[:2].tolist()
        ring.head[:], ring.tail[:] = numbers[2 : 2 + envs], numbers[2 + envs : 2 + 2 * envs]
        batch = read_whole(view, content, numbers[2 + 2 * envs :].copy(), n_step, parent)
        if slots is None:
            parts = Parts(batch, batch_size)
            with open(task["answers"], "rb+") as file:
                slots = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8).reshape(SLOTS, -1)
        parts.put(batch, slots[slot])
        os.write(answers, b".")


def read_whole(view: Any, content: FileMap, ids: np.ndarray, n_step: int, parent: int) -> Batch:
    """The batch, read again until no row in it can have been in the making.

    Only the newest row at the time of the draw can be: its follower may be under way, whose obs is its next obs until
    the row is found to be cut off.
    """
    head, envs = view.ring.head, view.ring.num_envs
    while True:
        sequence = int(content.words[SEQUENCE])
        followed = content.heads > head
        batch = view.read(ids, n_step)
        env = ids % envs
        loose = (ids // envs + batch.steps.numpy() >= head[env]) & ~followed[env]
        if not loose.any() or (sequence % 2 == 0 and sequence == content.words[SEQUENCE]):
            return batch
        if os.getppid() != parent:  # killed while it wrote
            sys.exit(1)
        time.sleep(1e-5)


def _line(stream: Any) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := stream.read(1)):
            sys.exit(0)
        line += byte
    return line


def _exactly(stream: Any, count: int) -> bytes:
    """`count` bytes, or none at the end."""
    content = b""
    while len(content) < count:
        if not (more := stream.read(count - len(content))):
            return b""
        content += more
    return content
