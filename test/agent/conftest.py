"""Agents from a few keys of a spec, and a life for them that needs no env."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm.recurrent import Carried
from slm_lab.spec import registry
from slm_lab.spec.schema import Spec, read_spec
from slm_lab.types import Step

PLANE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
TWO = spaces.Discrete(2)
PUSH = spaces.Box(-1, 1, (1,), np.float32)
MEMORIES = {
    "Random": None,
    "SARSA": "OnPolicyBatchReplay",
    "Reinforce": "OnPolicyReplay",
    "ActorCritic": "OnPolicyBatchReplay",
    "PPO": "OnPolicyBatchReplay",
    "SIL": "OnPolicyReplay",
    "PPOSIL": "OnPolicyBatchReplay",
    "MPC": "ModelBasedReplay",
    "MBPO": "ModelBasedReplay",
}
MODEL = {"training_start_step": 0, "model": {"members": 2, "hid_layers": [4]}}
SMALL = {
    "MPC": {**MODEL, "training_frequency": 20, "horizon": 3, "candidates": 6, "elites": 2},
    "MBPO": {**MODEL, "training_iter": 1, "model_training_frequency": 20, "rollouts": 8},
}
LAYERS = {  # of nets whose layers are not simply `hid_layers`
    "ConvNet": {"conv_hid_layers": [[3, 3, 2]], "fc_hid_layers": [4]},
    "DuelingConvNet": {"conv_hid_layers": [[3, 3, 2]], "fc_hid_layers": [4]},
    "HydraMLPNet": {"hid_layers": [[], [4], []]},
    "RecurrentNet": {"rnn_hidden_size": 4, "seq_len": 3},
}


class Life:
    """Random observations and rewards, episodes of random length: all that an agent sees, from one generator."""

    def __init__(self, num_envs: int = 2, seed: int = 0):
        self.num_envs = num_envs
        self.rng = np.random.default_rng(seed)
        self.frame = 0
        self.obs = self.observe()
        self.carried: Carried | None = None

    def observe(self) -> np.ndarray:
        return self.rng.standard_normal((self.num_envs, 2)).astype(np.float32)

    def go_on(self, agent: Agent, steps: int) -> np.ndarray:
        """So many vector steps of acting, remembering and learning; the actions, (steps, N, ...)."""
        actions = []
        self.carried = self.carried or agent.first_carried(self.num_envs)
        for _ in range(steps):
            action = agent.act(self.obs, self.frame, carried=self.carried)
            next_obs = self.observe()
            ends = self.rng.random((2, self.num_envs)) < 0.1
            step = Step(next_obs, next_obs, self.rng.random(self.num_envs), ends[0], ends[1] & ~ends[0])
            agent.remember(self.obs, action, step, self.carried)
            self.frame += self.num_envs
            agent.learn(self.frame)
            self.obs = next_obs
            actions.append(action)
        return np.array(actions)


class Lab:
    """Makes specs and agents; what is not named is small or the default."""

    Life = Life

    @staticmethod
    def spec(algorithm: str, memory: str | None = None, num_envs: int = 2, max_frame: int = 1000, **blocks) -> Spec:
        """`algorithm_`, `memory_`, `net_` and `meta_` are further keys of those blocks."""
        memory = memory or MEMORIES.get(algorithm, "Replay")
        agent = {"algorithm": {"name": algorithm, **SMALL.get(algorithm, {}), **blocks.get("algorithm_", {})}}
        if memory:
            small = {"batch_size": 8, "max_size": 1000} if "OnPolicy" not in memory else {}
            if memory == "SequenceReplay":
                small |= {"sequence_length": 4, "burn_in": 2}
            if memory == "HindsightReplay":
                small |= {"achieved": [0, 1], "desired": [1, 2], "reward_fn": "sparse"}
            if memory == "ModelBasedReplay":
                small |= {"members": 2, "validation": 0.3, "split_by": "transition"}
            agent["memory"] = {"name": memory, **small, **blocks.get("memory_", {})}
        if registry.needs(algorithm, "net"):
            net = blocks.get("net_", {})
            agent["net"] = {"type": "MLPNet", **LAYERS.get(net.get("type"), {"hid_layers": [4]}), **net}
        env = {"name": "CartPole-v1", "num_envs": num_envs, "max_frame": max_frame}
        return read_spec({"agent": agent, "env": env, "meta": blocks.get("meta_", {})}, "test")

    @staticmethod
    def action_space(algorithm: str) -> spaces.Space:
        """The simplest that the algorithm takes."""
        return PUSH if algorithm in ("DDPG", "TD3") else TWO

    @classmethod
    def agent(cls, algorithm: str, *, obs_space=PLANE, action_space=None, seed: int = 0, **spec) -> Agent:
        action_space = action_space or cls.action_space(algorithm)
        return Agent(cls.spec(algorithm, **spec), obs_space, action_space, seed)


@pytest.fixture
def lab() -> type[Lab]:
    return Lab
