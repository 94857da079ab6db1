"""The memories of this lab and of other libraries, filled with the same random rows."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from slm_lab.agent.memory import make_memory

OBS, ACTION, GOAL = 17, 6, 3  # widths
EPISODE = 1000  # steps
GAMMA = 0.99
PACKAGES = {"SB3": "stable_baselines3", "cpprb": "cpprb", "torchrl": "torchrl", "tianshou": "tianshou"}
HAVE = {name for name, module in PACKAGES.items() if importlib.util.find_spec(module)}


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


@dataclass
class Rows:
    """Random rows in episodes of `EPISODE` steps, every other one terminated, the rest truncated."""

    count: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.obs = rng.standard_normal((self.count + 1, OBS), np.float32)
        self.action = rng.standard_normal((self.count, ACTION), np.float32)
        self.reward = rng.standard_normal(self.count, np.float32)
        ends = np.arange(self.count) % EPISODE == EPISODE - 1
        odd = np.arange(self.count) // EPISODE % 2 == 1
        self.terminated, self.truncated = ends & odd, ends & ~odd
        self.priority = rng.random(self.count)

    def as_ours(self) -> dict[str, np.ndarray]:
        return {
            "obs": self.obs[:-1],
            "next_obs": self.obs[1:],
            "action": self.action,
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
        }


def ours(rows: Rows, name: str = "Replay", **keys: Any):
    block = {"name": name, "max_size": rows.count, "batch_size": 32, **keys}
    memory = make_memory(block, box(OBS), box(ACTION), gamma=GAMMA)
    memory.add_rows(rows.as_ours())
    return memory


def sb3(rows: Rows, n_step: int = 1):
    from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

    kind, keys = (NStepReplayBuffer, {"n_steps": n_step, "gamma": GAMMA}) if n_step > 1 else (ReplayBuffer, {})
    buffer = kind(rows.count, box(OBS), box(ACTION), device="cpu", **keys)
    buffer.observations[:, 0], buffer.next_observations[:, 0] = rows.obs[:-1], rows.obs[1:]
    buffer.actions[:, 0], buffer.rewards[:, 0] = rows.action, rows.reward
    buffer.dones[:, 0], buffer.timeouts[:, 0] = rows.terminated | rows.truncated, rows.truncated
    buffer.full = True
    return buffer


def tianshou(rows: Rows, prioritized: bool = False):
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

    buffer = PrioritizedReplayBuffer(rows.count, 0.6, 0.4) if prioritized else ReplayBuffer(rows.count)
    ends = rows.terminated | rows.truncated
    parts = {"obs": rows.obs[:-1], "act": rows.action, "rew": rows.reward, "obs_next": rows.obs[1:], "done": ends}
    buffer.set_batch(Batch(**parts, terminated=rows.terminated, truncated=rows.truncated))
    buffer._size = rows.count  # as its own `from_data` does
    if prioritized:
        buffer.weight[np.arange(rows.count)] = rows.priority
    return buffer


def as_tensors(batch: Any) -> list[torch.Tensor]:
    """What a loss needs of a batch of tianshou's."""
    return [torch.from_numpy(batch[key]) for key in ("obs", "act", "rew", "obs_next", "terminated")]


CPPRB_FIELDS = {"obs": {"shape": OBS}, "act": {"shape": ACTION}, "rew": {}, "next_obs": {"shape": OBS}, "done": {}}


def cpprb(rows: Rows, prioritized: bool = False, n_step: int = 1):
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    keys = {"Nstep": {"size": n_step, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}} if n_step > 1 else {}
    buffer = (PrioritizedReplayBuffer if prioritized else ReplayBuffer)(rows.count, CPPRB_FIELDS, **keys)
    parts = {"obs": rows.obs[:-1], "act": rows.action, "rew": rows.reward, "next_obs": rows.obs[1:]}
    more = {"priorities": rows.priority} if prioritized else {}
    for start in range(0, rows.count, EPISODE):
        span = slice(start, start + EPISODE)
        part = {key: value[span] for key, value in (parts | {"done": rows.terminated} | more).items()}
        buffer.add(**part)
        if n_step > 1:
            buffer.on_episode_end()
    return buffer


def torchrl(rows: Rows, prioritized: bool = False, slices: int = 0):
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

    storage = LazyTensorStorage(rows.count)
    if prioritized:
        buffer = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage, priority_key="error")
    elif slices:
        sampler = SliceSampler(num_slices=slices, traj_key="episode", cache_values=True)
        buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler)
    else:
        buffer = TensorDictReplayBuffer(storage=storage)
    parts = {key: torch.from_numpy(value) for key, value in rows.as_ours().items()}
    buffer.extend(TensorDict({**parts, "episode": torch.arange(rows.count) // EPISODE}, [rows.count]))
    return buffer


def torchrl_prioritized(rows: Rows):
    """None where torchrl has no compiled sum tree for the torch that is installed."""
    if "torchrl" not in HAVE:
        return None
    try:
        buffer = torchrl(rows, prioritized=True)
    except RuntimeError as reason:
        print(f"(torchrl's prioritized buffer is left out: {str(reason).splitlines()[0]})")
        return None
    buffer.update_priority(torch.arange(rows.count), torch.from_numpy(rows.priority).float())
    return buffer


def tensors(sample: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(value) for key, value in sample.items()}


class Distances:
    """Goals of a reaching task: reward 0 within a distance of the goal, else -1; stands in for SB3's vector env."""

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)

    def env_method(self, name: str, *values: Any, indices: Any = None) -> list:
        return [getattr(self, name)(*values)]


GOAL_SPACE = spaces.Dict(observation=box(OBS), achieved_goal=box(GOAL), desired_goal=box(GOAL))


def goal_obs(rows: Rows, of: slice) -> dict[str, np.ndarray]:
    obs = rows.obs[of]
    return {"observation": obs, "achieved_goal": obs[:, :GOAL], "desired_goal": obs[:, GOAL : 2 * GOAL]}


BEGIN, AFTER = slice(None, -1), slice(1, None)


def ours_hindsight(rows: Rows):
    block = {"name": "HindsightReplay", "max_size": rows.count, "goals_per_step": 4, "batch_size": 256}
    memory = make_memory(block, GOAL_SPACE, box(ACTION), compute_reward=Distances().compute_reward)
    memory.add_rows(rows.as_ours() | {"obs": goal_obs(rows, BEGIN), "next_obs": goal_obs(rows, AFTER)})
    return memory


def sb3_hindsight(rows: Rows):
    from stable_baselines3 import HerReplayBuffer

    buffer = HerReplayBuffer(rows.count, GOAL_SPACE, box(ACTION), Distances(), device="cpu")
    for name, part in goal_obs(rows, BEGIN).items():
        buffer.observations[name][:, 0] = part
    for name, part in goal_obs(rows, AFTER).items():
        buffer.next_observations[name][:, 0] = part
    buffer.actions[:, 0], buffer.rewards[:, 0] = rows.action, rows.reward
    buffer.ep_start[:, 0] = np.arange(rows.count) // EPISODE * EPISODE
    buffer.ep_length[:] = EPISODE
    buffer.full = True
    return buffer
