"""Rows as episodes of a Minari dataset, and back. Minari is asked for only when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from slm_lab.agent.memory.fields import fields_of, pick
from slm_lab.errors import EmptyMemory, RunError

if TYPE_CHECKING:
    from slm_lab.agent.memory.memory import Memory


def export(memory: Memory, name: str) -> None:
    """Each stretch of rows that continue each other is an episode; one that did not end in the env is truncated."""
    minari = _minari()
    from minari.data_collector import EpisodeBuffer

    from slm_lab.agent.memory.archive import Rows

    ids = memory.ring.ids()
    if not ids.size:
        raise EmptyMemory("export: the memory holds 0 rows")
    rows = Rows(memory)
    last = np.flatnonzero(memory.ring.ends(ids))
    observation_space, action_space = memory.spaces
    episodes = []
    for number, part in enumerate(np.split(ids, last[:-1] + 1)):
        values = {name: rows.read(name, part) for name in rows.arrays}
        obs = {
            key: np.concatenate([values[key], values[key.replace("obs", "next_obs", 1)][-1:]])
            for key in values
            if key.split(".")[0] == "obs"
        }
        ended = np.arange(part.size) == part.size - 1
        episodes.append(
            EpisodeBuffer(
                id=number,
                observations=_nested(observation_space, obs, "obs"),
                actions=_nested(action_space, values, "action"),
                rewards=values["reward"].tolist(),
                terminations=values["terminated"].tolist(),
                truncations=(ended & ~values["terminated"]).tolist(),
                infos={},
            )
        )
    try:
        minari.create_dataset_from_buffers(
            name, episodes, observation_space=observation_space, action_space=action_space, data_format="hdf5"
        )
    except (ValueError, OSError, ImportError) as error:
        raise RunError(f"minari:{name}: cannot be written: {error}") from error


def import_(memory: Memory, name: str) -> None:
    """All episodes as rows of env 0, one after another; all are checked before the first is written."""
    minari = _minari()
    try:
        episodes = list(minari.load_dataset(name).iterate_episodes())
    except (FileNotFoundError, ValueError, OSError, ImportError) as error:
        raise RunError(f"minari:{name}: cannot be read: {error}") from error
    observation_space, action_space = memory.spaces
    parts = []
    for episode in episodes:
        obs = _leaves(observation_space, episode.observations)
        parts.append(
            {
                "obs": _slices(obs, slice(None, -1)),
                "next_obs": _slices(obs, slice(1, None)),
                "action": _leaves(action_space, episode.actions),
                "reward": np.asarray(episode.rewards),
                "terminated": np.asarray(episode.terminations, bool),
                "truncated": np.asarray(episode.truncations, bool),
            }
        )
    for rows in parts:
        memory.validate(rows)
    for rows in parts:
        memory.add_rows(rows)


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise RunError("a Minari dataset needs the package minari: pip install 'minari[hdf5]'") from error
    return minari


def _nested(space: spaces.Space, values: dict[str, np.ndarray], name: str) -> Any:
    """The arrays in the space's own shape."""
    if isinstance(space, spaces.Dict):
        return {key: _nested(part, values, f"{name}.{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(part, values, f"{name}.{place}") for place, part in enumerate(space.spaces))
    return values[name]


def _leaves(space: spaces.Space, values: Any) -> Any:
    """The arrays by dotted keys, as `add_rows` takes them."""
    leaves = {field.key: np.asarray(pick(values, field.key)) for field in fields_of(space, "obs")}
    return leaves.get(None, leaves)


def _slices(values: Any, part: slice) -> Any:
    return {key: array[part] for key, array in values.items()} if isinstance(values, dict) else values[part]
