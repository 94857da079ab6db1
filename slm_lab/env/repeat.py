"""Whether episodes of an env repeat themselves: from the same seed, with the same actions, to the same observations."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import flatten

from slm_lab.env.make import FOREIGN, OWN_ENVS
from slm_lab.spec.schema import EnvSpec

# Envs whose episodes depend on the ones before them, and the reason
KNOWN = {"BipedalWalker": "Box2D keeps contacts from one episode to the next"}
TRUSTED = ("gymnasium.envs.", "ale_py", "minigrid.", "gymnasium_robotics.")  # packages whose other envs were tried
STEPS = 32  # of an episode that is tried


def why_not_repeated(env: gymnasium.Env, spec: EnvSpec) -> str:
    """Why an episode cannot be repeated exactly; nothing where it can, as far as one can tell without a run.

    An env that is not known is tried: it is reset twice with the same seed and given the same few actions.
    """
    for name, reason in KNOWN.items():
        if spec.name.startswith(name):
            return reason
    known = gymnasium.registry.get(spec.name)
    familiar = spec.name in OWN_ENVS or (known is not None and str(known.entry_point).startswith(TRUSTED))
    if familiar and not spec.wrappers:  # which may hold what outlives an episode
        return ""
    try:
        first, second = _episode(env), _episode(env)
    except FOREIGN:  # what is wrong with it is told, with its place, as it is trained on
        return ""
    for step, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return f"from the same seed and actions it came to something else at step {step}"
    return "" if len(first) == len(second) else "from the same seed and actions an episode ended elsewhere"


def _episode(env: gymnasium.Env) -> list[tuple[Any, ...]]:
    """What the env tells at each step, as values that compare."""
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    space = env.observation_space
    told: list[tuple[Any, ...]] = [(flatten(space, obs).tobytes(),)]
    for _ in range(STEPS):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        told.append((flatten(space, obs).tobytes(), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            break
    return told
