"""What time it is in a session: frames, and seconds of wall time over all its processes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    def __init__(self) -> None:
        self.frame = 0  # env steps, all envs together
        self._previous_frame = 0
        self._earlier = 0.0  # seconds, of the processes before this one
        self._paused = 0.0  # seconds of all that are not training
        self._started = time.perf_counter()

    def tick(self, frames: int) -> None:
        self._previous_frame = self.frame
        self.frame += frames

    def passed(self, every: int) -> bool:
        """Whether the last tick reached a multiple of so many frames."""
        return self.frame // every != self._previous_frame // every

    @property
    def wall_time(self) -> float:
        return self._earlier + time.perf_counter() - self._started

    @property
    def training_time(self) -> float:
        """Wall time without evaluation and saving."""
        return self.wall_time - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is not training time."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - start

    def state_dict(self) -> dict:
        return {"frame": self.frame, "wall_time": self.wall_time, "paused": self._paused}

    def load_state_dict(self, tree: dict) -> None:
        frame, times = int(tree["frame"]), (float(tree["wall_time"]), float(tree["paused"]))
        if not 0 <= frame < 2**53 or not all(math.isfinite(seconds) for seconds in times):
            raise ValueError(f"frame {frame} and times {times} are none that a clock can show")
        self.frame = self._previous_frame = frame
        self._earlier, self._paused = times
        self._started = time.perf_counter()
