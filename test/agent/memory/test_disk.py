"""Rows in a memory-mapped file behave as rows in RAM do, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.memory import disk, make_memory
from slm_lab.errors import InvalidMemorySpec, RunError

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)
FRAME = spaces.Box(0, 255, (64, 64), np.uint8)


def make(path=None, num_envs=1, space=LINE, **keys):
    block = {"name": "Replay", "storage": "disk", "max_size": 8, "batch_size": 1, **keys}
    return make_memory(block, space, spaces.Discrete(2), num_envs, gamma=0.5, path=path)


def walk(lab, memory, steps):
    for obs in steps:
        lab.add(memory, obs, reward=obs, terminated=obs % 5 == 4, next_obs=obs + 0.5 if obs % 3 == 2 else None)


@pytest.mark.parametrize("name", ["Replay", "PrioritizedReplay", "NStepReplay"])
def test_rows_on_disk_are_the_rows_in_ram(lab, tmp_path, name):
    both = [make(tmp_path, 2, name=name, max_size=14, storage=storage) for storage in ("ram", "disk")]
    for memory in both:
        walk(lab, memory, range(25))
        memory.update_priorities(memory.sample(9).ids, np.arange(9.0))
    ram, on_disk = both
    assert lab.read(ram, 3) == lab.read(on_disk, 3)
    assert ram.sample(50).ids.tolist() == on_disk.sample(50).ids.tolist()
    for memory in both:
        memory.resize(6)
        walk(lab, memory, range(25, 27))
    assert lab.read(ram, 3) == lab.read(on_disk, 3)


def test_state_of_a_memory_in_ram_can_go_on_from_disk(lab, tmp_path):
    memory = make(storage="ram")
    walk(lab, memory, range(13))
    copy = make(tmp_path)
    copy.load_state_dict(memory.state_dict())
    for each in (memory, copy):
        walk(lab, each, range(13, 30))
    assert lab.read(memory) == lab.read(copy)


def test_file_has_its_full_length_from_the_start_and_takes_room_as_rows_come(lab, tmp_path):
    memory = make(tmp_path, space=FRAME, max_size=10_000)
    file = tmp_path / "rows.ring"
    length, at_first = file.stat().st_size, file.stat().st_blocks * 512
    assert length > 10_000 * 64 * 64
    assert at_first < 100_000
    frame = np.zeros((1, 64, 64), np.uint8)
    flat = np.zeros(1)
    for step in range(100):
        memory.add(frame + step, flat.astype(int), flat, flat == 1, flat == 1, frame + step + 1)
    assert file.stat().st_size == length
    assert file.stat().st_blocks * 512 < 200 * 64 * 64


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_rows_on_disk_are_not_in_the_process_s_own_memory(tmp_path):
    def own_bytes():
        status = Path("/proc/self/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])

    memory = make(tmp_path, space=FRAME, max_size=10_000)
    rows = {"obs": np.zeros((1000, 64, 64), np.uint8), "action": np.zeros(1000, int), "reward": np.zeros(1000)}
    rows |= {"terminated": np.zeros(1000, bool), "truncated": np.zeros(1000, bool), "next_obs": rows["obs"]}
    memory.add_rows(rows)
    gc.collect()
    before = own_bytes()
    for _ in range(9):
        memory.add_rows(rows)
    gc.collect()
    assert memory.size == 10_000
    assert own_bytes() - before < 0.5 * 9000 * 64 * 64


def test_closing_removes_the_file(tmp_path):
    memory = make(tmp_path)
    assert (tmp_path / "rows.ring").exists()
    memory.close()
    assert list(tmp_path.iterdir()) == []


def test_memory_without_a_folder_uses_a_temporary_one_and_removes_it(lab):
    memory = make()
    folder = memory.ring.disk.folder
    walk(lab, memory, range(3))
    assert os.listdir(folder) == ["rows.ring"]
    del memory
    gc.collect()
    assert not folder.exists()


def test_file_of_a_run_that_was_killed_gives_way(lab, tmp_path):
    (tmp_path / "rows.ring").write_bytes(b"old")
    (tmp_path / "rows.tmp").write_bytes(b"older")
    memory = make(tmp_path)
    walk(lab, memory, range(3))
    assert len(lab.read(memory)) == 3
    assert os.listdir(tmp_path) == ["rows.ring"]


def test_too_small_a_disk_is_refused_with_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(RunError, match=r"'disk' needs 0.192 GB in .*, which has 0.1 GB free; lower max_size"):
        make(tmp_path, max_size=8_000_000)
    assert list(tmp_path.iterdir()) == []


class Usage:
    free = 100_000_000


def test_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        make(tmp_path / "file" / "folder")


def test_file_of_something_else_is_not_mapped(tmp_path):
    (tmp_path / "rows.ring").write_bytes(bytes(8192))
    with pytest.raises(RunError, match="not a memory's file"):
        disk.FileMap(tmp_path / "rows.ring")


def test_unknown_storage_is_refused():
    with pytest.raises(InvalidMemorySpec, match="storage"):
        make(storage="tape")


def test_final_observations_that_the_disk_has_no_room_for_are_refused_before_they_are_written(tmp_path, monkeypatch):
    usage = Usage()
    usage.free = 400 * 64 * 64
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    memory = make(tmp_path, space=FRAME, max_size=300)
    frame, flat = np.zeros((1, 64, 64), np.uint8), np.zeros(1)
    for step in range(50):
        memory.add(frame + step, flat.astype(int), flat, flat == 0, flat == 1, frame)
    usage.free = 300 * 64 * 64  # rows take 250 of them yet
    rows = {"obs": np.repeat(frame, 60, 0), "action": np.zeros(60, int), "reward": np.zeros(60)}
    rows |= {"terminated": np.ones(60, bool), "truncated": np.zeros(60, bool), "next_obs": rows["obs"]}
    with pytest.raises(RunError, match=r"no room for another .* GB of episodes' final observations .*rows take"):
        memory.add_rows(rows)
    assert memory.size == 50
    assert len(memory.sample(5).reward) == 5


def test_room_for_final_observations_is_taken_a_little_ahead_and_not_for_rows_that_end_nothing(tmp_path):
    memory = make(tmp_path, space=FRAME, max_size=10_000)
    rows = {"obs": np.zeros((3000, 64, 64), np.uint8), "action": np.zeros(3000, int), "reward": np.zeros(3000)}
    rows |= {"terminated": np.zeros(3000, bool), "truncated": np.zeros(3000, bool), "next_obs": rows["obs"]}
    memory.add_rows(rows)
    taken = (tmp_path / "rows.ring").stat().st_blocks * 512
    assert taken < 3200 * 64 * 64 + 3000 * 100
    status = os.fstat(memory.ring.disk.descriptor)
    assert status.st_blocks * 512 >= memory.ring.finals.nbytes + 3000 * 64 * 64


def test_a_memory_that_goes_leaves_the_file_of_one_that_came_in_its_place(lab, tmp_path):
    old = make(tmp_path)
    new = make(tmp_path)
    walk(lab, old, range(3))
    walk(lab, new, range(5))
    rows = lab.read(new)
    old.close()
    del old
    gc.collect()
    assert os.listdir(tmp_path) == ["rows.ring"]
    assert lab.read(new) == rows
    new.resize(20)
    new.close()
    assert os.listdir(tmp_path) == []
