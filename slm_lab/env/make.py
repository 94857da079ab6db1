"""One gymnasium env from the spec's `env` block, or a sentence that says why not."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable

import gymnasium
from gymnasium import error, spaces

from slm_lab.errors import Mistake, RunError, SpecError
from slm_lab.spec.registry import nearest
from slm_lab.spec.schema import EnvSpec

EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale": "atari", "atari": "atari", "pygame": "all"}
OWN_ENVS = {  # imported when they are made
    "BitFlipping-v0": {"entry_point": "slm_lab.env.bit_flipping:BitFlipping"},
    "MaskedCartPole-v1": {
        "entry_point": "slm_lab.env.masked_cart_pole:MaskedCartPole",
        "max_episode_steps": 500,
        "reward_threshold": 475.0,
    },
}
OWN_KEYWORDS = {
    "max_episode_steps": "the longest episode is env.max_t",
    "render_mode": "rendering is asked for on the command line",
    "disable_env_checker": "the lab checks what envs return itself",
    "id": "the env's id is env.name",
}


def make_env(spec: EnvSpec, render_mode: str | None = None, *, warns: bool = False) -> gymnasium.Env:
    """The env that the spec names, with episodes cut at `max_t` steps; raises SpecError where it cannot be had.

    `warns`: what gymnasium warns of is passed on, where there is no error that says more.
    """
    misplaced = [key for key in spec.kwargs if key in OWN_KEYWORDS]
    if misplaced:
        raise SpecError([Mistake(f"env.kwargs.{key}", f"not for here: {OWN_KEYWORDS[key]}") for key in misplaced])
    if spec.name in OWN_ENVS and spec.name not in gymnasium.registry:
        gymnasium.register(spec.name, **OWN_ENVS[spec.name])
    if spec.name not in gymnasium.registry:
        _register_atari()
    if spec.name not in gymnasium.registry and _newest_version(spec.name):  # gymnasium would take it for that one
        raise SpecError([Mistake("env.name", _unknown_id(spec.name))])
    keywords = spec.kwargs if render_mode is None else {**spec.kwargs, "render_mode": render_mode}
    try:
        with warnings.catch_warnings(record=True) as caught:
            env = gymnasium.make(spec.name, max_episode_steps=spec.max_t, disable_env_checker=True, **keywords)
    except (error.UnregisteredEnv, error.DeprecatedEnv) as problem:
        raise SpecError([Mistake("env.name", _unknown_id(spec.name))]) from problem
    except (error.DependencyNotInstalled, ImportError) as problem:
        raise SpecError([Mistake("env.name", _missing_package(spec.name, str(problem)))]) from problem
    except error.Error as problem:
        raise SpecError([Mistake("env.name", f"'{spec.name}' cannot be made: {problem}")]) from problem
    except Exception as problem:  # an env's constructor is foreign code: it refuses its keywords in its own ways
        place = "env.kwargs" if spec.kwargs else "env.name"
        reason = str(problem).split(" was raised from the environment creator")[0]
        refused = f"'{spec.name}' cannot be made with {spec.kwargs}: {type(problem).__name__}: {reason}"
        raise SpecError([Mistake(place, refused)]) from problem
    _check_spaces(spec.name, env)
    for warning in caught if warns else ():
        warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    return env


def time_limit(env: gymnasium.Env) -> int | None:
    """Steps after which an episode of it is truncated, or None where no one says so."""
    assert env.spec is not None  # it was made by its id
    own = env.spec.kwargs.get("max_num_frames_per_episode")  # what Atari envs have instead
    return env.spec.max_episode_steps or own


def goal_functions(env: gymnasium.Env) -> tuple[Callable | None, Callable | None]:
    """What a goal env says of any pair of goals: its compute_reward and compute_terminated, where it has them."""
    inner = env.unwrapped
    return getattr(inner, "compute_reward", None), getattr(inner, "compute_terminated", None)


def display_available() -> bool:
    """Whether a window can be opened here."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _register_atari() -> None:
    try:
        import ale_py
    except ModuleNotFoundError:
        return  # gymnasium then does not know the id, and _unknown_id names the extra
    gymnasium.register_envs(ale_py)


def _missing_package(name: str, problem: str) -> str:
    problem = problem.splitlines()[0]
    if "moved" in problem:
        return f"'{name}' cannot be made: {problem}{_newest_version(name)}"
    extra = next((extra for word, extra in EXTRAS.items() if word in problem.lower()), None)
    remedy = f"; install it with: pip install -e '.[{extra}]'" if extra else ""
    return f"'{name}' needs a package that is not installed ({problem}){remedy}"


def _unknown_id(name: str) -> str:
    atari = name.upper().startswith("ALE/") or "NoFrameskip-v" in name or "Deterministic-v" in name
    if atari and not any(env_id.startswith("ALE/") for env_id in gymnasium.registry):
        return _missing_package(name, "ale-py")
    version = _newest_version(name)
    if version:
        return f"gymnasium has no '{name}'{version}"
    guess = nearest(name, list(gymnasium.registry))
    return f"gymnasium has no env '{name}'" + (f"; did you mean '{guess}'?" if guess else "")


def _newest_version(name: str) -> str:
    base = re.sub(r"-v\d+$", "", name)
    versions = [
        int(version)
        for known, _, version in (env_id.rpartition("-v") for env_id in gymnasium.registry)
        if known == base and version.isdecimal()
    ]
    return f"; the newest version here is '{base}-v{max(versions)}'" if versions else ""


def _check_spaces(name: str, env: gymnasium.Env) -> None:
    for label, space in (("observation", env.observation_space), ("action", env.action_space)):
        unusable = [part for part in _leaves(space) if not isinstance(part, USABLE)]
        if unusable:
            env.close()
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
