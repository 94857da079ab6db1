"""Small stand-ins for the agent's parts, found as "standin:A" and "standin:M"."""

import copy
import sys
import types
from typing import Literal

import pytest
from pydantic import Field, model_validator

from slm_lab.spec.settings import Settings


class Schedule(Settings):
    name: Literal["no_decay", "linear_decay"] = "no_decay"
    start_val: float = Field(1.0, ge=0, le=1)


class AlgorithmSettings(Settings):
    name: str
    gamma: float = Field(0.99, ge=0, le=1)
    explore_var_spec: Schedule | None = Schedule()
    bounds: tuple[float, float] = (0.0, 1.0)
    alpha: float | Literal["auto"] | None = None


class MemorySettings(Settings):
    name: str
    max_size: int = Field(1000, ge=1)
    batch_size: int = Field(32, ge=1)
    use_cer: bool = False

    @model_validator(mode="after")
    def _fits(self):
        if self.batch_size > self.max_size:
            raise ValueError(f"batch_size {self.batch_size} is more than max_size {self.max_size}")
        return self


class NetSettings(Settings):
    type: str
    hid_layers: list[int] = Field([64])


class Algorithm:
    Settings = AlgorithmSettings


class Memory:
    Settings = MemorySettings


class Net:
    Settings = NetSettings


class Actor:
    Settings = AlgorithmSettings
    needs_learning = False


FLAT = {
    "agent": {
        "name": "agent",
        "algorithm": {"name": "standin:A", "gamma": 0.9},
        "memory": {"name": "standin:M", "max_size": 100, "batch_size": 10},
        "net": {"type": "standin:N", "hid_layers": [32, 16]},
    },
    "env": {"name": "CartPole-v1", "max_frame": 1000},
    "meta": {"max_session": 2},
}


@pytest.fixture(autouse=True)
def standin(monkeypatch):
    module = types.ModuleType("standin")
    module.A, module.M, module.N, module.Actor, module.Bare = Algorithm, Memory, Net, Actor, object
    monkeypatch.setitem(sys.modules, "standin", module)


@pytest.fixture
def flat():
    """A spec in the flat shape that a test may change."""
    return copy.deepcopy(FLAT)


@pytest.fixture
def nested(flat):
    """The same spec in SLM Lab v4's shape."""
    return {
        **flat,
        "agent": [flat["agent"]],
        "env": [flat["env"]],
        "body": {"product": "outer", "num": 1},
    }
