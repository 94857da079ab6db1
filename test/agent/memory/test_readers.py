"""Batches that other processes gather are those that this process would, whole and in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.memory import make_memory
from slm_lab.errors import InvalidMemorySpec, RunError

WIDE = spaces.Box(-np.inf, np.inf, (500,), np.float32)


@pytest.fixture
def make(tmp_path):
    made = []

    def make(folder="a", num_envs=2, **keys):
        block = {"name": "NStepReplay", "max_size": 60, "batch_size": 16, "fetch_every": 2, **keys}
        memory = make_memory(block, WIDE, spaces.Discrete(2), num_envs, gamma=0.5, path=tmp_path / folder)
        made.append(memory)
        return memory

    yield make
    for memory in made:
        memory.close()


def add(memory, number, terminated=False, cut=False):
    """A row whose every value is its number, and whose next obs is too, where the next row does not tell better."""
    count = memory.num_envs
    obs = np.full((count, 500), number, np.float32)
    next_obs = np.full((count, 500), number + (0.5 if terminated or cut else 1), np.float32)
    ends = np.full(count, terminated)
    memory.add(obs, np.full(count, number % 2), np.full(count, number), ends, np.zeros(count, bool), next_obs)


def walk(memory, steps):
    batches = []
    for number in steps:
        add(memory, number, terminated=number % 13 == 12, cut=number % 7 == 6)
        if number >= 3:
            batches.append(memory.sample())
    return batches


def columns(batch):
    return [batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.steps, batch.weight, batch.ids]


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(columns(ours), columns(theirs), strict=True))


def test_every_row_is_whole_while_the_ring_wraps_under_readers_however_many_there_are(make):
    ones, twos = (walk(make(f"{workers}", workers=workers, n_step=1), range(300)) for workers in (1, 2))
    assert all(same(one, two) for one, two in zip(ones, twos, strict=True))
    for batch in twos:
        number = batch.obs[:, :1]
        assert (batch.obs == number).all()
        assert (batch.reward == number[:, 0]).all()
        assert (batch.action == number[:, 0].long() % 2).all()
        loose = (batch.reward % 13 == 12) | (batch.reward % 7 == 6)
        assert (batch.next_obs == number + torch.where(loose, 0.5, 1.0)[:, None]).all()


def test_a_row_can_be_drawn_from_the_fetch_every_th_sample_on(make):
    newest = {}
    for fetch_every in (1, 2, 4, 9):
        memory = make(f"{fetch_every}", 1, workers=2, fetch_every=fetch_every, batch_size=1, use_cer=True, n_step=1)
        add(memory, 0)
        memory.sample()
        add(memory, 1)
        newest[fetch_every] = [int(memory.sample().obs[0, 0]) for _ in range(6)]
    assert newest == {  # with use_cer the newest row is in every batch that is drawn
        1: [1, 1, 1, 1, 1, 1],
        2: [0, 1, 1, 1, 1, 1],
        4: [0, 0, 0, 1, 1, 1],
        9: [0, 0, 0, 0, 1, 1],  # two batches a worker are ready
    }


def test_what_waits_is_saved_with_the_memory(make):
    memory, copy = make("a", workers=1), make("b", workers=1)
    walk(memory, range(80))
    copy.load_state_dict(memory.state_dict())
    for ours, theirs in zip(walk(memory, range(80, 120)), walk(copy, range(80, 120)), strict=True):
        assert same(ours, theirs)


def test_call_with_a_size_of_its_own_is_answered_here_and_death_of_a_reader_is_told(make):
    memory = make(workers=1)
    walk(memory, range(9))
    assert len(memory.sample(5).reward) == 5
    assert len(memory.sample().reward) == 16
    memory.reset()
    add(memory, 99)
    assert (memory.sample().obs == 99).all()
    os.kill(memory.readers._readers[0].process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match="a reader process of the memory has ended"):
        walk(memory, range(99, 120))


def test_readers_leave_with_the_memory_and_with_a_killed_parent(make, tmp_path):
    memory = make(workers=1)
    walk(memory, range(9))
    processes = [reader.process for reader in memory.readers._readers]
    memory.close()
    assert all(process.returncode == 0 for process in processes)
    assert not (tmp_path / "a").exists()

    program = f"""
import numpy as np
from gymnasium import spaces
from slm_lab.agent.memory import make_memory
memory = make_memory({{"name": "NStepReplay", "max_size": 8, "batch_size": 2, "workers": 1}},
                     spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2), path={str(tmp_path / "killed")!r})
for _ in range(3):
    memory.add(np.zeros((1, 1), np.float32), np.zeros(1, int), np.zeros(1), np.zeros(1, bool), np.zeros(1, bool),
               np.zeros((1, 1), np.float32))
    memory.sample()
print(*(reader.process.pid for reader in memory.readers._readers), flush=True)
input()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    readers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(readers) == 1
    parent.kill()
    parent.communicate()
    give_up = time.monotonic() + 20
    while any(alive(pid) for pid in readers):
        assert time.monotonic() < give_up, "readers outlive their parent"
        time.sleep(0.02)


def alive(pid):
    """Whether the process runs; one that has ended may still be listed until somebody asks how."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_readers_of_rows_in_ram_are_refused():
    with pytest.raises(InvalidMemorySpec, match="use storage 'disk', or 0 workers"):
        make_memory({"name": "NStepReplay", "storage": "ram", "workers": 1}, WIDE, spaces.Discrete(2))


def test_two_memories_with_one_path_read_their_own_rows(make, tmp_path):
    old, new = make("a", workers=1), make("a", workers=1)
    for number in range(20):
        add(old, number)
        add(new, 100 + number)
    for _ in range(5):
        assert (old.sample().obs < 50).all()
        assert (new.sample().obs >= 100).all()
    old.close()
    assert (new.sample().obs >= 100).all()
    assert os.listdir(tmp_path / "a") == ["rows.ring"]


def test_a_program_that_ends_without_closing_its_memory_leaves_nothing(tmp_path):
    program = f"""
import numpy as np
from gymnasium import spaces
from slm_lab.agent.memory import make_memory
memory = make_memory({{"name": "NStepReplay", "max_size": 8, "batch_size": 2, "workers": 1}},
                     spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2), path={str(tmp_path / "kept")!r})
zero, flat = np.zeros((1, 1), np.float32), np.zeros(1)
memory.add(zero, flat.astype(int), flat, flat == 1, flat == 1, zero)
memory.sample()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert os.listdir(tmp_path) == []


def test_a_snapshot_needs_a_folder(make, tmp_path):
    block = {"name": "NStepReplay", "save_snapshot": True, "max_size": 60, "batch_size": 1}
    with pytest.raises(InvalidMemorySpec, match="save_snapshot: the snapshot is saved in the memory's folder"):
        make_memory(block, WIDE, spaces.Discrete(2))
    memory = make("a", save_snapshot=True)
    add(memory, 1)
    memory.close()
    copy = make("b")
    copy.load(tmp_path / "a" / "snapshot")
    assert copy.size == 2
