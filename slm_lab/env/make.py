"""One gymnasium env from the spec's `env` block, or a sentence that says why not."""

from __future__ import annotations

import os
import sys

import gymnasium
from gymnasium import error, spaces

from slm_lab.errors import Mistake, RunError, SpecError
from slm_lab.spec.registry import nearest
from slm_lab.spec.schema import EnvSpec

EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale_py": "atari", "ale": "atari", "atari": "atari"}


def make_env(spec: EnvSpec, render_mode: str | None = None) -> gymnasium.Env:
    """The env that the spec names, with episodes cut at `max_t` steps; raises SpecError where it cannot be had."""
    if spec.name.upper().startswith("ALE/"):
        _register_atari()
    try:
        env = gymnasium.make(
            spec.name,
            max_episode_steps=spec.max_t,
            render_mode=render_mode,
            disable_env_checker=True,
            **spec.kwargs,
        )
    except (error.DependencyNotInstalled, ModuleNotFoundError) as problem:
        raise SpecError([Mistake("env.name", _missing_package(spec.name, str(problem)))]) from problem
    except (error.UnregisteredEnv, error.DeprecatedEnv) as problem:
        raise SpecError([Mistake("env.name", _unknown_id(spec.name, problem))]) from problem
    except TypeError as problem:
        raise SpecError([Mistake("env.kwargs", f"{spec.name} refuses {spec.kwargs}: {problem}")]) from problem
    except error.Error as problem:
        raise SpecError([Mistake("env.name", f"'{spec.name}' cannot be made: {problem}")]) from problem
    _check_spaces(spec.name, env)
    return env


def display_available() -> bool:
    """Whether a window can be opened here."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _register_atari() -> None:
    try:
        import ale_py
    except ModuleNotFoundError:
        return  # gymnasium then says that the namespace is unknown, and _unknown_id names the extra
    gymnasium.register_envs(ale_py)


def _missing_package(name: str, problem: str) -> str:
    lowered = problem.lower()
    extra = next((extra for word, extra in EXTRAS.items() if word in lowered), None)
    remedy = f"; install it with: pip install -e '.[{extra}]'" if extra else ""
    return f"'{name}' needs a package that is not installed ({problem.splitlines()[0]}){remedy}"


def _unknown_id(name: str, problem: Exception) -> str:
    if name.upper().startswith("ALE/"):
        return f"'{name}' needs a package that is not installed (ale-py); install it with: pip install -e '.[atari]'"
    known = [str(env_id) for env_id in gymnasium.registry]
    base, _, version = name.rpartition("-v")
    newer = [env_id for env_id in known if base and env_id.rpartition("-v")[0] == base]
    guess = newer[-1] if newer else nearest(name, known)
    if isinstance(problem, error.DeprecatedEnv) or newer:
        return f"gymnasium no longer has '{name}'; the living version is '{guess}'"
    return f"gymnasium has no env '{name}'" + (f"; did you mean '{guess}'?" if guess else "")


def _check_spaces(name: str, env: gymnasium.Env) -> None:
    for label, space in (("observation", env.observation_space), ("action", env.action_space)):
        parts = list(_leaves(space))
        unusable = [part for part in parts if not isinstance(part, USABLE)]
        if unusable:
            kind = type(unusable[0]).__name__
            raise SpecError([Mistake("env.name", f"'{name}' has {label}s of type {kind}, which have no fixed shape")])


USABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def _leaves(space: spaces.Space):
    if isinstance(space, spaces.Dict):
        for part in space.spaces.values():
            yield from _leaves(part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            yield from _leaves(part)
    else:
        yield space


class EnvFault(RunError):
    """An env misbehaved in the middle of a run; the message tells where."""
