"""Where a spec's names lead: name -> class, imported only when asked for.

A name is one of the tables below, or "package.module:Class" for a class of the user's own. What is found has a
`Settings` attribute: the pydantic model that validates its block of the spec.
"""

from __future__ import annotations

import difflib
import importlib
import re
from typing import Any

from slm_lab.errors import LabError

NAME = re.compile(r"\w+(\.\w+)*:\w+")
TABLES: dict[str, dict[str, str]] = {
    "algorithm": {
        "Random": "slm_lab.agent.algorithm.random:Random",
        "VanillaDQN": "slm_lab.agent.algorithm.dqn:VanillaDQN",
        "DQN": "slm_lab.agent.algorithm.dqn:DQN",
        "DoubleDQN": "slm_lab.agent.algorithm.dqn:DoubleDQN",
        "QRDQN": "slm_lab.agent.algorithm.distributional:QRDQN",
        "C51": "slm_lab.agent.algorithm.distributional:C51",
        "SARSA": "slm_lab.agent.algorithm.sarsa:SARSA",
        "Reinforce": "slm_lab.agent.algorithm.reinforce:Reinforce",
        "ActorCritic": "slm_lab.agent.algorithm.actor_critic:ActorCritic",
        "PPO": "slm_lab.agent.algorithm.ppo:PPO",
        "SoftActorCritic": "slm_lab.agent.algorithm.sac:SoftActorCritic",
        "SAC": "slm_lab.agent.algorithm.sac:SoftActorCritic",
        "TD3": "slm_lab.agent.algorithm.td3:TD3",
        "DDPG": "slm_lab.agent.algorithm.td3:DDPG",
        "CrossQ": "slm_lab.agent.algorithm.crossq:CrossQ",
        "SIL": "slm_lab.agent.algorithm.sil:SIL",
        "PPOSIL": "slm_lab.agent.algorithm.sil:PPOSIL",
        "MPC": "slm_lab.agent.algorithm.mpc:MPC",
        "MBPO": "slm_lab.agent.algorithm.mbpo:MBPO",
    },
    "memory": {
        "Replay": "slm_lab.agent.memory.presets:Replay",
        "PrioritizedReplay": "slm_lab.agent.memory.presets:PrioritizedReplay",
        "SequenceReplay": "slm_lab.agent.memory.sequence:SequenceReplay",
        "NStepReplay": "slm_lab.agent.memory.nstep:NStepReplay",
        "OnPolicyReplay": "slm_lab.agent.memory.presets:OnPolicyReplay",
        "OnPolicyBatchReplay": "slm_lab.agent.memory.presets:OnPolicyBatchReplay",
        "OnPolicyCrossEntropy": "slm_lab.agent.memory.cross_entropy:OnPolicyCrossEntropy",
        "HindsightReplay": "slm_lab.agent.memory.hindsight:HindsightReplay",
        "ModelBasedReplay": "slm_lab.agent.memory.model_based:ModelBasedReplay",
    },
    "net": {
        "MLPNet": "slm_lab.agent.net.mlp:MLPNet",
        "DuelingMLPNet": "slm_lab.agent.net.dueling:DuelingMLPNet",
        "ConvNet": "slm_lab.agent.net.conv:ConvNet",
        "DuelingConvNet": "slm_lab.agent.net.dueling:DuelingConvNet",
        "HydraMLPNet": "slm_lab.agent.net.hydra:HydraMLPNet",
        "EnsembleMLP": "slm_lab.agent.net.ensemble:EnsembleMLP",
        "RecurrentNet": "slm_lab.agent.net.recurrent:RecurrentNet",
    },
}


ELSEWHERE = {  # what others call it -> its name here
    "algorithm": {
        "A2C": "ActorCritic",
        "A3C": "ActorCritic",
        "DDQN": "DoubleDQN",
        "PETS": "MPC",
    },
    "memory": {"PER": "PrioritizedReplay", "HER": "HindsightReplay", "ReplayBuffer": "Replay"},
    "net": {
        "CNN": "ConvNet",
        "NatureCNN": "ConvNet",
        "RNN": "RecurrentNet",
        "GRU": "RecurrentNet",
        "LSTM": "RecurrentNet",
    },
}


class UnknownName(LabError, KeyError):
    """No class of this kind goes by this name; the message lists the nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


def names(kind: str) -> list[str]:
    """The names that a spec may use for this kind of part."""
    return list(TABLES[kind])


def nearest(name: str, allowed: list[str]) -> str | None:
    """The allowed name that a user most likely meant, or None."""
    by_lower = {candidate.lower(): candidate for candidate in allowed}
    found = difflib.get_close_matches(str(name).lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def find(kind: str, name: str) -> Any:
    """The class that `name` stands for; raises UnknownName."""
    target = TABLES[kind].get(name) if isinstance(name, str) else None
    if target is None and isinstance(name, str) and ":" in name:
        target = name
    if target is None:
        guess = ELSEWHERE[kind].get(name) or nearest(name, names(kind))
        hint = f"did you mean '{guess}'?" if guess else f"known: {', '.join(names(kind))}"
        raise UnknownName(f"no {kind} named '{name}'; {hint}")
    try:
        return load(kind, target)
    except UnknownName as problem:
        if target is not name and problem.__cause__ is not None:
            raise problem.__cause__ from None  # a module of the lab itself
        raise


def load(kind: str, target: str) -> Any:
    """What "package.module:attribute" names, imported now; raises UnknownName. Importing runs code of that module."""
    if not NAME.fullmatch(target):  # before anything is imported
        raise UnknownName(f"no {kind} named '{target}'; one of your own is 'package.module:Class'")
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the user's own may fail in any way while it is imported
        raise UnknownName(f"cannot import {kind} '{target}': {type(error).__name__}: {error}") from error


def settings_of(kind: str, name: str) -> Any:
    """The settings model of the class that `name` stands for; raises UnknownName."""
    model = getattr(find(kind, name), "Settings", None)
    if not hasattr(model, "model_validate"):
        raise UnknownName(f"{kind} '{name}' has no settings: give the class an attribute 'Settings', a pydantic model")
    return model


def learns(algorithm: Any) -> bool:
    """Whether the algorithm of that name needs a memory; so does one that is unknown."""
    return _says(algorithm, "needs_learning", True)


def needs(algorithm: Any, kind: str) -> bool:
    """Whether the algorithm of that name needs such a block beside its own; one that is unknown: a memory, a net."""
    if kind == "imagined_memory":
        return _says(algorithm, "imagines", False)
    return learns(algorithm) and (kind != "net" or _says(algorithm, "needs_net", True))


def _says(algorithm: Any, attribute: str, otherwise: bool) -> bool:
    try:
        return getattr(find("algorithm", algorithm), attribute, otherwise)
    except UnknownName:
        return otherwise
