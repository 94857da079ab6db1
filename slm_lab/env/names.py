"""What env names stand for: old ones and the envs that live on from them, those without a successor, and unknown ones.

Importing this registers nothing; `find_package` imports the package that an id belongs to, where it is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import warnings
from typing import Any

import gymnasium

from slm_lab.spec.registry import nearest

ATARI = r"ALE/.*|.*(NoFrameskip|Deterministic)-v\d"
PACKAGES = (  # ids like these come with a package that registers them as it is imported; and the extra that brings it
    (r"(MiniGrid|BabyAI)-.*", "minigrid", "minigrid"),
    (r"(Fetch|Hand|Adroit|Franka|PointMaze|AntMaze).*", "gymnasium_robotics", "robotics"),
    (rf"{ATARI}|\w+-v[04]", "ale_py", "atari"),
)
EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale": "atari", "cv2": "atari", "opencv": "atari", "pygame": "all"}

MUJOCO_FROM_PYBULLET = (  # these simulate about the same bodies; their rewards, and so their returns, are others
    *("Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedDoublePendulum", "InvertedPendulum", "Pusher", "Reacher"),
    "Walker2d",
)
LIVING = {
    "CartPole-v0": "CartPole-v1",
    "RoboschoolInvertedPendulumSwingup-v1": "InvertedPendulum-v5",
    "InvertedPendulumSwingupBulletEnv-v0": "InvertedPendulum-v5",
    **{f"Roboschool{body}-v1": f"{body}-v5" for body in MUJOCO_FROM_PYBULLET},
    **{f"{body}BulletEnv-v0": f"{body}-v5" for body in MUJOCO_FROM_PYBULLET},
    **{f"{body}PyBulletEnv-v0": f"{body}-v5" for body in MUJOCO_FROM_PYBULLET},
}
TIMES = {"CartPole-v1": "; its episodes go on for up to 500 steps, not 200"}
GONE = (  # patterns, in small letters, of what has no successor
    (
        r"(unity|gridworld).*|(3dball|hallway|pushblock|walljump|ball3dhard|bouncer|crawler|pyramids|tennis|soccer)\w*",
        "Unity's envs are programs of their own that gymnasium does not run",
    ),
    (r"vizdoom.*|doom.*", "VizDoom's old ids are gone; where the package vizdoom is installed, name 'vizdoom:ITS-ID'"),
    (r"roboschool.*|.*bulletenv-v\d+", "its simulator is no longer kept and no MuJoCo env is like it"),
)


def living(name: str) -> tuple[str, str]:
    """The id that `name` stands for today, and a line to print where it is another; unknown names as they are."""
    new = LIVING.get(name) or _of_atari(name) or _newer_version(name)
    if new is None or new == name:
        return name, ""
    return new, f"env '{name}' is '{new}' today{TIMES.get(new, '')}"


def find_package(name: str) -> None:
    """Import what registers that id, if there is such a package here."""
    if name in gymnasium.registry or ":" in name:
        return
    for pattern, package, _ in PACKAGES:
        if re.fullmatch(pattern, name):
            quiet = io.StringIO()  # some say on import which of their envs are out of date
            with warnings.catch_warnings(), contextlib.redirect_stderr(quiet), contextlib.suppress(ModuleNotFoundError):
                warnings.simplefilter("ignore")
                gymnasium.register_envs(importlib.import_module(package))
            return


def unknown(name: str) -> str:
    """Why there is no such env, in one sentence with the remedy."""
    module, colon, own = name.rpartition(":")
    if colon:
        return f"gymnasium has no env '{name}'" + (newest_version(own, f"{module}:") or _guess(own, module))
    for pattern, reason in GONE:
        if re.fullmatch(pattern, name.lower()):
            return f"'{name}' has no successor: {reason}"
    version = newest_version(name)
    if version:
        return f"gymnasium has no '{name}'{version}"
    for pattern, package, extra in PACKAGES:
        pattern = ATARI if extra == "atari" else pattern
        if re.fullmatch(pattern, name) and not _installed(package):
            return missing_package(name, package.replace("_", "-"), extra)
    if re.fullmatch(r"[A-Z]\w+-v[04]", name) and not _installed("ale_py"):
        return f"gymnasium has no env '{name}'; Atari's games come with: pip install -e '.[atari]'{_guess(name)}"
    return f"gymnasium has no env '{name}'{_guess(name)}"


def _guess(name: str, module: str = "") -> str:
    """The nearest id, of those of the module if one is given, as the end of a sentence; empty where none is near."""
    known = [key for key, spec in gymnasium.registry.items() if _is_from(module, spec.entry_point)]
    guess = nearest(name, known)
    return f"; did you mean '{module and module + ':'}{guess}'?" if guess else ""


def _is_from(module: str, entry_point: Any) -> bool:
    place = entry_point if isinstance(entry_point, str) else (getattr(entry_point, "__module__", None) or "")
    return not module or place.partition(":")[0].split(".")[0] == module.split(".")[0]


def missing_package(name: str, problem: str, extra: str | None = None) -> str:
    """Which extra to install, from what an import complained of."""
    problem = problem.splitlines()[0] if problem else ""
    if "moved" in problem:
        return f"'{name}' cannot be made: {problem}{newest_version(name)}"
    extra = extra or next((extra for word, extra in EXTRAS.items() if word in problem.lower()), None)
    remedy = f"; install it with: pip install -e '.[{extra}]'" if extra else ""
    return f"'{name}' needs a package that is not installed ({problem}){remedy}"


def newest_version(name: str, module: str = "") -> str:
    """The newest of the versions that are registered, as the end of a sentence; empty where there are none."""
    base, _ = _split(name)
    versions = _versions(base)
    return f"; the newest version here is '{module}{base}-v{max(versions)}'" if versions else ""


def _newer_version(name: str) -> str | None:
    """The newest version of an id whose own version is lower, and not to be had."""
    base, version = _split(name)
    newer = [other for other in _versions(base) if version is not None and other > version]
    if not newer or (name in gymnasium.registry and not _is_stub(name)):
        return None
    return f"{base}-v{max(newer)}"


def _is_stub(name: str) -> bool:
    """Whether the id is there only to say that it has moved, or needs mujoco-py, which is no more: MuJoCo's v2 and v3,
    and the first ones of gymnasium-robotics."""
    entry_point = gymnasium.registry[name].entry_point
    place = str(getattr(entry_point, "__name__", entry_point))
    return place.startswith(("_raise", "gymnasium_robotics.envs.mujoco")) or ":MujocoPy" in place


def _of_atari(name: str) -> str | None:
    """PongDeterministic-v4 skips 4 frames, as the lab does by itself."""
    match = re.fullmatch(r"(\w+)Deterministic-v([04])", name)
    return f"{match[1]}NoFrameskip-v{match[2]}" if match else None


def _split(name: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.*)-v(\d+)", name)
    return (match[1], int(match[2])) if match else (name, None)


def _versions(base: str) -> list[int]:
    split = map(_split, gymnasium.registry)
    return [version for known, version in split if known == base and version is not None]


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # somebody has said that it is not
        return False
