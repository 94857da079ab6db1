"""When to learn. `ready`: there is enough to learn from; `due`: the rounds of learning owed since last asked."""

from __future__ import annotations

from slm_lab.agent.memory.ring import Ring


class EveryFrames:
    """A round for every `frequency` frames: 16 envs and frequency 4 owe 4 rounds a vector step; fractions carry over.

    Learning starts when `needed` rows are held and `start` frames have passed, whichever is later; frames before that
    owe nothing.
    """

    def __init__(self, ring: Ring, frequency: int, start: int, needed: int):
        self.ring = ring
        self.frequency = frequency
        self.start = start
        self.needed = needed
        self.counted = 0  # frames that have been turned into rounds or passed over
        self.carry = 0  # frames that wait for a round to be full

    def ready(self, frame: int) -> bool:
        return frame >= self.start and self.ring.size >= min(self.needed, self.ring.max_size)

    def due(self, frame: int) -> int:
        since = max(self.counted, self.start)
        self.counted = frame
        if not self.ready(frame):
            return 0
        rounds, self.carry = divmod(self.carry + frame - since, self.frequency)
        return rounds

    def state_dict(self) -> dict:
        return {"counted": self.counted, "carry": self.carry}

    def load_state_dict(self, tree: dict) -> None:
        self.counted = int(tree["counted"])
        self.carry = int(tree["carry"]) % self.frequency  # which may be another one now


class _WhenHeld:
    """One round whenever enough is held; taking it out (`drain`) is what starts the next count."""

    def __init__(self, ring: Ring, frequency: int):
        self.ring = ring
        self.frequency = frequency

    def ready(self, frame: int) -> bool:
        raise NotImplementedError

    def due(self, frame: int) -> int:
        return int(self.ready(frame))

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, tree: dict) -> None:
        pass


class EverySteps(_WhenHeld):
    """Every `frequency` vector steps: as many rows of each env."""

    def ready(self, frame: int) -> bool:
        return self.ring.size >= self.frequency * self.ring.num_envs


class EveryEpisodes(_WhenHeld):
    """Every `frequency` complete episodes, all envs together."""

    def ready(self, frame: int) -> bool:
        return self.ring.episodes >= self.frequency
