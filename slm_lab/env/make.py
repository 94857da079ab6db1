"""One gymnasium env from the spec's `env` block, or a sentence that says why not."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import error, spaces

from slm_lab.env import atari, names
from slm_lab.env.arrays import parts_of
from slm_lab.env.scaling import RewardScaling
from slm_lab.env.wrappers import reward_scale, wrapped
from slm_lab.errors import Mistake, RunError, SpecError
from slm_lab.lib.trees import leaves
from slm_lab.spec.registry import nearest
from slm_lab.spec.schema import EnvSpec

FILE = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)")  # a class in a user's own file
MOST_CLASSES = 2**20
FOREIGN = (Exception, SystemExit)  # what may come of code that is not the lab's
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


def make_env(
    spec: EnvSpec, render_mode: str | None = None, *, training: bool = True, notes: list[str] | None = None
) -> gymnasium.Env:
    """The env that the spec names, wrapped as it says; raises SpecError where it cannot be had.

    `training`: with what helps to learn and is no part of the task, such as lost lives as ends of episodes.
    `notes` gets lines for the user: an old name, text left out, and what gymnasium warns of.
    """
    notes = [] if notes is None else notes
    misplaced = [key for key in spec.kwargs if key in OWN_KEYWORDS]
    if misplaced:
        raise SpecError([Mistake(f"env.kwargs.{key}", f"not for here: {OWN_KEYWORDS[key]}") for key in misplaced])
    with warnings.catch_warnings(record=True) as caught:
        spec, note = today(spec)
        env = _made(spec, render_mode)
        try:
            _require_spaces(spec.name, env)
            env = wrapped(env, spec, training=training, notes=notes)
            _check_spaces(spec.name, env)
        except BaseException:
            env.close()
            raise
    notes += [note] if note else []
    notes += list(dict.fromkeys(str(warning.message) for warning in caught))
    return env


def today(spec: EnvSpec) -> tuple[EnvSpec, str]:
    """The spec with the name that its env has today, registered, and a line to print where it is another."""
    if spec.name in OWN_ENVS and spec.name not in gymnasium.registry:
        gymnasium.register(spec.name, **OWN_ENVS[spec.name])
    names.find_package(spec.name)
    name, note = names.living(spec.name)
    return spec.model_copy(update={"name": name}), note


def _made(spec: EnvSpec, render_mode: str | None) -> gymnasium.Env:
    others = ":" not in spec.name and spec.name not in gymnasium.registry and names.newest_version(spec.name)
    if others:  # gymnasium would take it for the newest of them
        raise SpecError([Mistake("env.name", names.unknown(spec.name))])
    of_atari = atari.is_atari(spec.name)
    keywords = atari.own_keywords(spec.kwargs) if of_atari else dict(spec.kwargs)
    keywords |= {} if render_mode is None else {"render_mode": render_mode}
    limit = None if of_atari else spec.max_t  # the frames that it skips do not count
    try:
        env_id = own_file(spec.name) if FILE.fullmatch(spec.name) else spec.name
        return gymnasium.make(env_id, max_episode_steps=limit, disable_env_checker=True, **keywords)
    except (error.UnregisteredEnv, error.DeprecatedEnv) as problem:
        raise SpecError([Mistake("env.name", names.unknown(spec.name))]) from problem
    except (error.DependencyNotInstalled, ImportError) as problem:
        raise SpecError([Mistake("env.name", names.missing_package(spec.name, str(problem)))]) from problem
    except error.Error as problem:
        raise SpecError([Mistake("env.name", f"'{spec.name}' cannot be made: {problem}")]) from problem
    except SpecError:
        raise
    except FOREIGN as problem:  # an env's constructor refuses its keywords in its own ways
        place = "env.kwargs" if spec.kwargs else "env.name"
        reason = str(problem).split(" was raised from the environment creator")[0]
        refused = f"'{spec.name}' cannot be made with {spec.kwargs}: {type(problem).__name__}: {reason}"
        raise SpecError([Mistake(place, refused)]) from problem


def own_file(name: str) -> gymnasium.envs.registration.EnvSpec:
    """What "path/my_env.py:MyEnv" names, ready to be made. Importing runs the file's code."""
    match = FILE.fullmatch(name)
    assert match is not None
    path, found = Path(match["path"]).expanduser(), match["name"]
    if not path.is_file():
        raise SpecError([Mistake("env.name", f"'{name}': there is no file {path}, beside the spec file or from here")])
    module_name = f"slm_lab_env_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    module = sys.modules.get(module_name)
    if module is None:
        place = importlib.util.spec_from_file_location(module_name, path)
        assert place is not None
        assert place.loader is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(place)
        try:
            place.loader.exec_module(module)
        except BaseException as problem:
            del sys.modules[module_name]
            reason = f"'{name}': {path} cannot be imported: {type(problem).__name__}: {problem}"
            raise SpecError([Mistake("env.name", reason)]) from problem
    made = getattr(module, found, None)
    if not callable(made):
        there = [key for key, value in vars(module).items() if isinstance(value, type) and not key.startswith("_")]
        guess = nearest(found, there)
        hint = f"did you mean '{guess}'?" if guess else f"it has {', '.join(there) or 'no classes'}"
        raise SpecError([Mistake("env.name", f"'{name}': no class '{found}' in {path}; {hint}")])
    return gymnasium.envs.registration.EnvSpec(f"{path.stem}/{found}-v0", entry_point=made)


def time_limit(env: gymnasium.Env) -> int | None:
    """Steps after which an episode of it is truncated, or None where no one says so."""
    assert env.spec is not None  # it was made by its id
    own = env.spec.kwargs.get("max_num_frames_per_episode")  # what Atari envs have instead
    return env.spec.max_episode_steps or own


def goal_functions(env: gymnasium.Env, spec: EnvSpec) -> tuple[Callable | None, Callable | None]:
    """What a goal env says of any pair of goals: its compute_reward and compute_terminated, where it has them.

    None where goals are normalized, which the env does not know, or rewards by what has come before.
    """
    inner = env.unwrapped
    reward, terminated = getattr(inner, "compute_reward", None), getattr(inner, "compute_terminated", None)
    if spec.normalize_obs or spec.clip_obs or spec.normalize_reward:
        return None, None
    scale, clip = reward_scale(spec), spec.clip_reward or math.inf
    if reward is None or (scale == 1.0 and clip == math.inf):
        return reward, terminated
    scaling = RewardScaling(scale, False, None, 1.0, 1)
    return lambda *goals: np.clip(scaling.of_step(np.asarray(reward(*goals))), -clip, clip), terminated


def display_available() -> bool:
    """Whether a window can be opened here."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _require_spaces(name: str, env: gymnasium.Env) -> None:
    for label in ("observation_space", "action_space"):
        space = getattr(env, label, None)
        if not isinstance(space, spaces.Space):
            raise SpecError([Mistake("env.name", f"'{name}' has no {label}: a gymnasium env has both, as attributes")])


def _check_spaces(name: str, env: gymnasium.Env) -> None:
    for label, space in (("observation", env.observation_space), ("action", env.action_space)):
        unusable = [part for _, part in leaves(space) if not isinstance(part, USABLE)]
        if unusable:
            kind = type(unusable[0]).__name__
            problem = f"'{name}' has {label}s of type {kind}, which have no fixed shape"
            remedy = "; one of env.wrappers may turn them into such as have"
            raise SpecError([Mistake("env.name", problem + remedy)])
        if reason := _why_no_net_takes(space):
            raise SpecError([Mistake("env.name", f"'{name}' has {label}s {reason}")])


def _why_no_net_takes(space: spaces.Space) -> str:
    """What is wrong with a space of usable parts, nothing where all is well."""
    parts = list(leaves(space))
    if not parts:
        return "without any part"
    if _has_dotted_key(space):
        return "with a dot in a key of a Dict: by dots the lab names parts within parts"
    for key, part in parts:
        which = f" in '{key}'" if key else ""
        if 0 in (part.shape or ()):
            return f"of shape {part.shape}{which}: there is nothing in them"
        classes = _classes(part)
        if classes > MOST_CLASSES:
            return f"of {classes:,} classes{which}, each with weights of its own; a net takes {MOST_CLASSES:,} at most"
    return ""


def _has_dotted_key(space: spaces.Space) -> bool:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return False
    dotted = isinstance(space, spaces.Dict) and any("." in str(key) for key in space.spaces)
    return dotted or any(_has_dotted_key(part) for _, part in parts_of(space))


def _classes(space: spaces.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else 0


USABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class EnvFault(RunError):
    """An env misbehaved in the middle of a run; the message tells where."""
