"""Rows given to others and taken back."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.memory import make_memory
from slm_lab.errors import EmptyMemory, InvalidRow, RunError

NESTED = spaces.Dict(at=spaces.Box(-99, 99, (2,), np.float64), seen=spaces.Tuple([spaces.Discrete(9)]))


def make(space=NESTED, num_envs=2, **keys):
    return make_memory(
        {"name": "Replay", "max_size": 12, "batch_size": 1, **keys}, space, spaces.Discrete(2), num_envs, gamma=0.5
    )


def walk(memory, steps, **extras):
    count = memory.num_envs
    for number in steps:
        obs, next_obs = (
            {"at": np.full((count, 2), value + 0.1), "seen.0": np.full(count, value % 9)}
            for value in (number, number + 1)
        )
        ends = np.array([number % 4 == 3, number % 5 == 4])[:count]
        more = {name: np.full(count, value) for name, value in extras.items()}
        memory.add(
            obs, np.full(count, number % 2), np.full(count, number), ends, ~ends & (number % 7 == 6), next_obs, **more
        )


def rows(memory):
    ring = memory.ring.state_dict()
    return ring["rows"].tobytes(), ring["finals"].tobytes(), ring["pending"].tobytes()


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_what_is_exported_comes_back(tmp_path, storage):
    memory, copy = make(storage=storage), make(storage=storage)
    walk(memory, range(6), log_prob=1)
    memory.export(tmp_path / "rows.npz")
    copy.import_(tmp_path / "rows.npz")
    assert rows(copy) == rows(memory)
    walk(memory, range(6, 9), log_prob=1)
    walk(copy, range(6, 9), log_prob=1)
    assert rows(copy) == rows(memory)


def test_export_is_plain_arrays_in_the_env_s_dtypes(tmp_path):
    memory = make()
    walk(memory, range(9), source=1)
    memory.export(tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz", allow_pickle=False) as file:
        arrays = dict(file)
    assert set(arrays) == {
        "obs.at", "obs.seen.0", "next_obs.at", "next_obs.seen.0", "action", "reward", "terminated", "truncated",
        "extras.source", "env", "order", "cut",
    }  # fmt: skip
    assert arrays["obs.at"].dtype == np.float64
    assert arrays["obs.at"][:, 0].tolist() == [number + 0.1 for number in range(3, 9)] * 2
    assert arrays["next_obs.at"][:, 0].tolist() == [number + 0.1 for number in range(4, 10)] * 2
    assert arrays["env"].tolist() == [0] * 6 + [1] * 6
    assert arrays["order"].tolist() == [*range(6, 18, 2), *range(7, 18, 2)]
    assert arrays["terminated"].tolist() == [t % 4 == 3 for t in range(3, 9)] + [t % 5 == 4 for t in range(3, 9)]


def test_import_from_another_s_file_needs_no_env_and_order(tmp_path):
    space, count = spaces.Box(-9, 9, (1,), np.float32), 5
    obs = np.arange(count, dtype=np.float32)[:, None]
    flat = np.zeros(count)
    plain = {"obs": obs, "action": flat.astype(int), "reward": flat, "terminated": flat > 0, "truncated": flat > 0}
    np.savez(tmp_path / "rows.npz", next_obs=obs + 1, **plain)
    memory = make(space, 1)
    memory.import_(tmp_path / "rows.npz")
    assert memory.all().obs[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"reward": None}, "reward: missing"),
        ({"next_obs": None}, "next_obs: missing"),
        ({"obs": np.zeros((5, 2), np.float32)}, "obs: shape"),
        ({"obs": np.full((5, 1), 99, np.float32)}, "obs"),
        ({"action": np.array([0, 1, 2, 0, 1])}, "action"),
        ({"reward": np.array([0, 1, np.nan, 0, 1])}, "reward"),
        ({"terminated": np.zeros(4, bool)}, "terminated: shape"),
        ({"env": np.array([0, 0, 0, 0, 1])}, "env: "),
    ],
)
def test_every_row_is_checked_before_one_is_written(tmp_path, change, problem):
    obs, flat = np.zeros((5, 1), np.float32), np.zeros(5)
    arrays = {"obs": obs, "action": flat.astype(int), "reward": flat, "terminated": flat > 0, "truncated": flat > 0}
    arrays = {key: value for key, value in ({**arrays, "next_obs": obs} | change).items() if value is not None}
    np.savez(tmp_path / "rows.npz", **arrays)
    memory = make(spaces.Box(-9, 9, (1,), np.float32), 1)
    with pytest.raises(InvalidRow, match=problem):
        memory.import_(tmp_path / "rows.npz")
    assert memory.seen == 0


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x93NUMPY"])
def test_damaged_files_are_told(tmp_path, content):
    (tmp_path / "rows.npz").write_bytes(content)
    with pytest.raises(RunError, match=r"damaged or not an \.npz file"):
        make().import_(tmp_path / "rows.npz")


def test_objects_are_not_read_and_missing_files_told(tmp_path):
    np.savez(tmp_path / "rows.npz", obs=np.array([{}], dtype=object))
    with pytest.raises(RunError, match=r"damaged or not an \.npz file"):
        make().import_(tmp_path / "rows.npz")
    with pytest.raises(RunError, match="no such file"):
        make().import_(tmp_path / "none.npz")
    with pytest.raises(EmptyMemory, match="export: the memory holds 0 rows"):
        make().export(tmp_path / "rows.npz")


def test_minari_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    memory = make()
    walk(memory, range(3))
    with pytest.raises(RunError, match=r"needs the package minari: pip install 'minari\[hdf5\]'"):
        memory.export("minari:lab/walk-v0")


def test_minari_datasets_go_out_and_come_back(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    memory, copy = make(), make(num_envs=1)
    walk(memory, range(6))
    memory.export("minari:lab/walk-v0")
    copy.import_("minari:lab/walk-v0")
    assert copy.all().obs["at"].tolist() == memory.all().obs["at"].tolist()
    assert copy.all().next_obs["at"].tolist() == memory.all().next_obs["at"].tolist()
    assert copy.all().discount.tolist() == memory.all().discount.tolist()


def test_rows_that_were_stored_one_by_one_are_not_joined_where_their_observations_coincide(lab, tmp_path):
    memory, copy = lab.make(max_size=9), lab.make(max_size=9)
    rows = {"obs": np.array([[0], [1], [2]], np.float32), "action": np.zeros(3, int), "reward": np.array([1.0, 2, 4])}
    rows |= {"terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool), "next_obs": rows["obs"] + 1}
    memory.add_rows(rows, ordered=False)
    for obs in (3, 4, 5):
        lab.add(memory, obs, reward=8)
    memory.export(tmp_path / "rows.npz")
    copy.import_(tmp_path / "rows.npz")
    assert [row[1] for row in lab.read(copy, 3)] == [1, 2, 4, 14, 12, 8]
    assert lab.read(copy, 3) == lab.read(memory, 3)
    with pytest.raises(InvalidRow, match=r"cut: shape \(2,\) was given, \(3,\) is needed"):
        copy.add_rows(rows, cut=[True, False])
