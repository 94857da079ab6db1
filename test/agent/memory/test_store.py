"""What is saved is what is loaded, whatever befalls the files; and saving again costs what is new."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from slm_lab.agent.memory import make_memory, restore, store
from slm_lab.errors import RunError
from slm_lab.lib import tree_file


class Killed(BaseException):
    """Stands for the process dying: nothing in the lab may catch it."""


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch):
    monkeypatch.setattr(store, "CHUNK_BYTES", 64)  # of three rows of this walk
    monkeypatch.setattr(restore, "PIECE_BYTES", 64)


def walk(lab, memory, steps):
    for obs in steps:
        ended = [(obs + env) % 5 == 4 for env in range(memory.num_envs)]
        lab.add(memory, obs, reward=obs, terminated=ended, next_obs=obs + 0.5 if obs % 3 == 2 else None)


def state(memory):
    tree = memory.state_dict()
    return {**tree, "ring": {key: np.asarray(value).tolist() for key, value in tree["ring"].items()}}


def assert_same(ours, theirs):
    for key in (ours := state(ours)).keys() | (theirs := state(theirs)).keys():
        if key == "sampler" and "held" in ours[key]:
            assert ours[key]["held"].tolist() == theirs[key]["held"].tolist()
        else:
            assert ours[key] == theirs[key]


def files(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("name", ["Replay", "PrioritizedReplay"])
@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_every_save_of_a_run_can_be_loaded_and_gone_on_from(lab, tmp_path, name, num_envs, storage):
    memory = lab.make(name, num_envs, max_size=20 * num_envs)
    for first, last in ((0, 1), (1, 2), (2, 9), (9, 9), (9, 30), (30, 33), (33, 120), (120, 125)):
        walk(lab, memory, range(first, last))
        memory.update_priorities(memory.sample(4).ids, np.arange(4.0))
        memory.save(tmp_path)
        copy = lab.make(name, num_envs, max_size=20 * num_envs, storage=storage)
        copy.load(tmp_path)
        assert_same(memory, copy)
        other = tmp_path.with_name("other")
        shutil.copytree(tmp_path, other)
        walk(lab, copy, range(last, last + 7))  # goes on elsewhere, and is saved on top of what it was loaded from
        copy.load(other)
        walk(lab, copy, range(last, last + 7))
        copy.save(other)
        again = lab.make(name, num_envs, max_size=20 * num_envs)
        again.load(other)
        assert_same(copy, again)
        shutil.rmtree(other)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), num_envs=st.integers(1, 3), slots=st.integers(1, 12))
def test_whatever_happens_between_saves(lab_maker, tmp_path_factory, data, num_envs, slots):
    lab, folder = lab_maker, tmp_path_factory.mktemp("store")
    memory = lab.make(num_envs=num_envs, max_size=slots * num_envs)
    obs = 0
    for what in data.draw(st.lists(st.sampled_from(["add", "rows", "save", "reset", "resize", "load"]), max_size=12)):
        if what == "add":
            walk(lab, memory, range(obs, obs := obs + data.draw(st.integers(1, 20))))
        elif what == "rows":
            count = data.draw(st.integers(1, 9))
            line = np.arange(obs, obs + count, dtype=np.float32)[:, None]
            ends = np.arange(count) % 4 == 3
            rows = {"obs": line, "action": ends.astype(int), "reward": line[:, 0], "terminated": ends}
            rows |= {"truncated": ends, "next_obs": line + 1}
            memory.add_rows(rows, data.draw(st.integers(0, num_envs - 1)))
        elif what == "reset":
            memory.reset()
        elif what == "resize":
            memory.resize(data.draw(st.integers(1, 12)) * num_envs)
        else:
            memory.save(folder)
            copy = lab.make(num_envs=num_envs, max_size=memory.max_size)
            copy.load(folder)
            assert_same(memory, copy)
            memory = copy if what == "load" else memory


@pytest.fixture(scope="module")
def lab_maker():
    from test.agent.memory.conftest import Lab

    return Lab


def test_size_of_the_store_is_bounded(lab, tmp_path):
    memory = lab.make(max_size=100)
    row, sizes, counts = memory.describe()["bytes_per_row"], [], []
    for start in range(0, 3000, 23):
        walk(lab, memory, range(start, start + 23))
        memory.save(tmp_path)
        sizes.append(sum(file.stat().st_size for file in tmp_path.glob("rows_*.bin")))
        counts.append(len(files(tmp_path)))
    assert max(sizes) <= 1.6 * 100 * row  # with the finals
    assert max(counts) < 30


def test_a_save_writes_new_rows_only(lab, tmp_path, monkeypatch):
    memory = lab.make(max_size=1000)
    walk(lab, memory, range(500))
    memory.save(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.glob("*.bin")}
    written = []
    real = store.write_all
    monkeypatch.setattr(store, "write_all", lambda file, array: (written.append(array.nbytes), real(file, array)))
    walk(lab, memory, range(500, 510))
    memory.save(tmp_path)
    assert sum(written) <= 10 * (memory.describe()["bytes_per_row"] + 8)
    assert all(file.read_bytes().startswith(content) for file, content in before.items())


def test_newest_save_damaged_gives_way_to_the_one_before(lab, tmp_path):
    memory, before, copy = (lab.make(max_size=30) for _ in range(3))
    for each in (memory, before):
        walk(lab, each, range(40))
    memory.save(tmp_path)
    walk(lab, memory, range(40, 50))
    memory.save(tmp_path)
    (tmp_path / "tree_b.safetensors").write_bytes(b"torn")
    copy.load(tmp_path)
    assert_same(before, copy)
    walk(lab, copy, range(60, 65))
    copy.save(tmp_path)
    again = lab.make(max_size=30)
    again.load(tmp_path)
    assert_same(copy, again)


def test_saves_after_a_damaged_one_take_its_place_and_keep_the_good_one(lab, tmp_path):
    memory, copy, again = (lab.make(max_size=30) for _ in range(3))
    for count in range(3):  # a, b, a
        walk(lab, memory, range(10 * count, 10 * count + 10))
        memory.save(tmp_path)
    (tmp_path / "tree_a.safetensors").write_bytes(b"torn")
    copy.load(tmp_path)
    assert copy.seen == 20
    walk(lab, copy, range(50, 53))
    copy.save(tmp_path)  # into a: b must stay whole
    (tmp_path / "tree_a.safetensors").write_bytes(b"torn")
    again.load(tmp_path)
    assert again.seen == 20


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_no_damage_goes_unnoticed(lab, tmp_path, damage):
    memory = lab.make("PrioritizedReplay", max_size=30)
    walk(lab, memory, range(40))
    memory.save(tmp_path)
    for name in files(tmp_path):
        file = tmp_path / name
        whole = file.read_bytes()
        places = range(0, len(whole), max(1, len(whole) // 40)) if damage != "gone" else [0]
        for place in places:
            if damage == "gone":
                file.unlink()
            elif damage == "cut":
                file.write_bytes(whole[:place])
            else:
                file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            copy = lab.make("PrioritizedReplay", max_size=30)
            with pytest.raises(RunError, match="no memory could be loaded"):
                copy.load(tmp_path)
            assert copy.size == 0
            walk(lab, copy, range(3))
            assert copy.size == 3
        file.write_bytes(whole)
    copy.load(tmp_path)
    assert_same(memory, copy)


def forged(lab, tmp_path, change):
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    memory = lab.make(max_size=30)
    walk(lab, memory, range(12))
    memory.save(folder)
    entry = tree_file.read(folder / "tree_a.safetensors")
    change(entry["tree"])
    tree_file.write(folder / "tree_a.safetensors", entry)
    with pytest.raises(RunError, match="no memory could be loaded"):
        lab.make(max_size=30).load(folder)


@pytest.mark.parametrize("count", [10**15, 2**62, 2**70, -1])
def test_claims_are_checked_before_room_is_made_for_them(lab, tmp_path, count):
    most = min(count, 2**62)

    def segments(**columns):
        arrays = {key: np.array(values, np.int64) for key, values in columns.items()}
        return lambda tree: tree["ring"]["segments"].update(arrays)

    def more_rows(tree):
        tree["ring"]["head"] = [count]
        segments(stop=[[most - 1]])(tree)

    forged(lab, tmp_path, more_rows)
    forged(lab, tmp_path, lambda tree: tree["ring"].update(head=[count]))
    forged(lab, tmp_path, lambda tree: tree["ring"].update(tail=[count]))
    forged(lab, tmp_path, segments(parts=[[0, 11, most]]))
    forged(lab, tmp_path, segments(parts=[[0, most, 1]]))
    forged(lab, tmp_path, segments(parts=[[0, -most, 0], [0, most + 11, 0]]))
    forged(lab, tmp_path, segments(parts=[[most, 11, 0]]))
    forged(lab, tmp_path, segments(parts=[[-2, 11, 0]]))
    forged(lab, tmp_path, segments(parts=np.zeros((0, 3))))
    forged(lab, tmp_path, segments(number=[most]))
    forged(lab, tmp_path, segments(number=[0, 1]))
    forged(lab, tmp_path, segments(sums=[[most, 0]]))
    forged(lab, tmp_path, lambda tree: tree["ring"]["segments"].pop("parts"))
    forged(lab, tmp_path, lambda tree: tree["ring"]["segments"].update(number="../../x"))
    forged(lab, tmp_path, lambda tree: tree["ring"].update(segments=[{"number": 0}]))
    forged(lab, tmp_path, lambda tree: tree["ring"].pop("newest"))
    forged(lab, tmp_path, lambda tree: tree["ring"].update(pending=np.zeros(3)))
    forged(lab, tmp_path, lambda tree: tree.update(fields=[{"group": "obs", "key": None, "dtype": "O", "shape": [1]}]))
    forged(
        lab, tmp_path, lambda tree: tree["fields"].append({**tree["fields"][0], "group": "extras", "shape": [count]})
    )


def die_at(monkeypatch, function, call):
    real, calls = getattr(os, function), []

    def dying(*args):
        calls.append(args)
        if len(calls) >= call:
            raise Killed
        return real(*args)

    monkeypatch.setattr(os, function, dying)
    return calls


@pytest.mark.parametrize(("function", "calls"), [("fsync", 6), ("unlink", 2)])
def test_killed_at_any_point_of_a_save_one_of_the_two_is_loaded(lab, tmp_path, monkeypatch, function, calls):
    for call in range(1, calls + 1):
        folder = tmp_path / f"{call}"
        memory = lab.make(max_size=30)
        walk(lab, memory, range(40))
        memory.save(folder)
        walk(lab, memory, range(40, 52))
        memory.save(folder)
        before = state(memory)
        walk(lab, memory, range(52, 64))
        with monkeypatch.context() as patch:
            die_at(patch, function, call)
            with suppress(Killed):
                memory.save(folder)
        copy = lab.make(max_size=30)
        copy.load(folder)
        assert state(copy) in (before, state(memory))
        walk(lab, copy, range(70, 75))
        copy.save(folder)
        again = lab.make(max_size=30)
        again.load(folder)
        assert_same(copy, again)


def test_a_full_disk_leaves_the_last_save_and_the_next_one_works(lab, tmp_path, monkeypatch):
    memory, copy = lab.make(max_size=30), lab.make(max_size=30)
    walk(lab, memory, range(40))
    memory.save(tmp_path)
    before = state(memory)
    walk(lab, memory, range(40, 50))
    with monkeypatch.context() as patch:

        def full(file, array):
            file.write(b"half")
            raise OSError(28, "No space left on device")

        patch.setattr(store, "write_all", full)
        with pytest.raises(RunError, match="rows cannot be written: No space left"):
            memory.save(tmp_path)
    copy.load(tmp_path)
    assert state(copy) == before
    memory.save(tmp_path)
    copy.load(tmp_path)
    assert_same(memory, copy)


def test_a_tree_whose_rows_did_not_reach_the_disk_is_not_taken(lab, tmp_path, monkeypatch):
    memory, copy = lab.make(max_size=30), lab.make(max_size=30)
    walk(lab, memory, range(20))
    memory.save(tmp_path)
    before = state(memory)
    walk(lab, memory, range(20, 25))
    with monkeypatch.context() as patch:

        def lost(file, begun):
            begun.set()
            with file:
                file.truncate(file.tell() - 8)
            raise OSError(5, "Input/output error")

        patch.setattr(store, "_sync", lost)
        with pytest.raises(RunError, match="rows cannot be written: Input/output error"):
            memory.save(tmp_path)
    assert len(list(tmp_path.glob("tree_?.safetensors"))) == 2  # the newer one is on the disk
    copy.load(tmp_path)
    assert state(copy) == before
    memory.save(tmp_path)  # in the place of the one that tells of rows that are not there
    copy.load(tmp_path)
    assert_same(memory, copy)
    walk(lab, memory, range(25, 28))
    memory.save(tmp_path)
    copy.load(tmp_path)
    assert_same(memory, copy)


def test_other_rows_in_the_same_folder_are_not_taken_for_these(lab, tmp_path):
    memory, other = lab.make(max_size=30), lab.make(max_size=30)
    walk(lab, memory, range(20))
    walk(lab, other, range(100, 140))
    memory.save(tmp_path)
    memory.load_state_dict(other.state_dict())
    memory.save(tmp_path)
    copy = lab.make(max_size=30)
    copy.load(tmp_path)
    assert_same(other, copy)
    memory.save(tmp_path)
    other.save(tmp_path)
    copy.load(tmp_path)
    assert_same(other, copy)


def test_killed_while_it_saves_again_and_again(lab, tmp_path):
    program = f"""
import numpy as np
from gymnasium import spaces
from slm_lab.agent.memory import make_memory
memory = make_memory({{"name": "Replay", "max_size": 50, "batch_size": 1}},
                     spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2), gamma=0.5)
one = np.ones((1, 1), np.float32)
for number in range(10**9):
    ends = np.array([number % 5 == 4])
    memory.add(one * number, np.array([number % 2]), np.array([float(number)]), ends, ends, one * (number + 1))
    memory.save({str(tmp_path)!r})
    if number == 60:
        print("saved", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "saved\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    copy = lab.make(max_size=50)
    copy.load(tmp_path)
    newest = copy.seen - 1
    assert newest >= 60
    assert [row[0] for row in lab.read(copy)] == list(range(newest - 49, newest + 1))
    assert [row[1] for row in lab.read(copy)] == list(range(newest - 49, newest + 1))


def test_nothing_saved_and_other_memories_are_told(lab, tmp_path):
    with pytest.raises(RunError, match="no such checkpoint"):
        lab.make(max_size=8).load(tmp_path / "nowhere")
    memory = lab.make(max_size=30, num_envs=2)
    walk(lab, memory, range(9))
    memory.save(tmp_path)
    with pytest.raises(RunError, match="rows of 2 envs, this one is for 1"):
        lab.make(max_size=30).load(tmp_path)
    with pytest.raises(RunError, match="holds 9 rows an env, this one has room for 4"):
        lab.make(max_size=8, num_envs=2).load(tmp_path)


def test_empty_memory_is_saved_too(lab, tmp_path):
    lab.make(max_size=8).save(tmp_path)
    copy = lab.make(max_size=8)
    copy.load(tmp_path)
    assert copy.size == 0


@pytest.mark.parametrize(
    ("name", "keys", "reason"),
    [
        ("Replay", {"max_size": 4, "num_envs": 2}, "holds 9 rows an env, this one has room for 2"),
        ("Replay", {"num_envs": 1}, "rows of 2 envs, this one is for 1"),
        (
            "PrioritizedReplay",
            {"num_envs": 2},
            "another kind of memory: it lacks sampler.held, sampler.highest, which PrioritizedReplay needs",
        ),
        (
            "ModelBasedReplay",
            {"num_envs": 2},
            "another kind of memory: it lacks split, scales, fitted_at, which ModelBasedReplay needs",
        ),
    ],
)
def test_a_memory_that_refuses_a_save_stays_as_it_is(lab, tmp_path, name, keys, reason):
    other, memory = lab.make(num_envs=2, max_size=30), lab.make(name, **({"max_size": 30} | keys))
    walk(lab, other, range(9))
    other.save(tmp_path / "other")
    walk(lab, memory, range(50, 53))
    memory.save(tmp_path / "own")
    rows, drawn = lab.read(memory), memory.state_dict()["generator"]
    with pytest.raises(RunError, match=reason):
        memory.load(tmp_path / "other")
    with pytest.raises(RunError, match="no such checkpoint"):
        memory.load(tmp_path / "typo")
    assert lab.read(memory) == rows
    assert memory.state_dict()["generator"] == drawn
    segments = list(memory.saved.store.segments)
    memory.save(tmp_path / "own")
    assert memory.saved.store.segments == segments  # they are known yet


def test_a_memory_of_other_observations_refuses_a_save_and_stays_as_it_is(lab, tmp_path):
    memory = lab.make(max_size=30)
    walk(lab, memory, range(5))
    other = make_memory({"max_size": 32}, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))
    other.save(tmp_path)
    with pytest.raises(RunError, match="the saved memory holds"):
        memory.load(tmp_path)
    assert memory.size == 5


def test_a_memory_is_empty_and_takes_rows_of_other_extras_where_a_load_ended_half_way(lab, tmp_path):
    other, memory = lab.make(max_size=30), lab.make(max_size=30)
    for obs in range(20):
        lab.add(other, obs, note=1)
    other.save(tmp_path)
    file = tmp_path / "rows_000000.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    walk(lab, memory, range(3))
    with pytest.raises(RunError, match="does not match its checksum"):
        memory.load(tmp_path)
    assert memory.size == 0
    walk(lab, memory, range(3))
    assert memory.size == 3


@pytest.mark.parametrize("change", ["folder removed", "a file removed", "rewritten", "rewritten twice"])
def test_a_memory_is_saved_whole_where_its_last_save_is_gone(lab, tmp_path, change):
    memory, copy, folder = lab.make(max_size=30), lab.make(max_size=30), tmp_path / "saved"
    for count in range(2):
        walk(lab, memory, range(7 * count, 7 * count + 7))
        memory.save(folder)
    if change == "folder removed":
        shutil.rmtree(folder)
    elif change == "a file removed":
        (folder / "rows_000000.bin").unlink()
    for number in range(change.count("rewritten") + change.count("twice")):
        other = lab.make(max_size=30)
        walk(lab, other, range(100, 120 + number))
        other.save(folder)
    for count in range(2, 4):
        walk(lab, memory, range(7 * count, 7 * count + 7))
        memory.save(folder)
        copy.load(folder)
        assert_same(memory, copy)
