import multiprocessing
import os
import socket

import pytest

from slm_lab.errors import RunError
from slm_lab.lib import lock
from slm_lab.lib.lock import Lock, locked


def test_the_second_is_refused_until_the_first_has_ended(tmp_path):
    path = tmp_path / "lock"
    with locked(path, "it is held"):
        told = rf"it is held by process {os.getpid()} on .+; wait for it"
        with pytest.raises(RunError, match=told), locked(path, "it is held"):
            pass
        assert path.exists()
    assert not path.exists()
    with locked(path, "it is held"):
        pass


def test_a_file_that_nobody_holds_counts_for_nothing(tmp_path):
    path = tmp_path / "lock"
    path.write_text("process 123456789 on a host that is gone\n")
    with locked(path, "it is held"):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    assert not path.exists()


def wait(held, words):
    words.get()


def test_a_child_holds_it_on_when_its_parent_is_gone(tmp_path):
    path, context = tmp_path / "lock", multiprocessing.get_context("spawn")
    handle, words = lock._take(path, "it is held"), context.Queue()
    child = context.Process(target=wait, args=(Lock(handle), words), daemon=True)
    child.start()
    os.close(handle)
    with pytest.raises(RunError, match="it is held by"), locked(path, "it is held"):
        pass
    words.put("go")
    child.join()
    with locked(path, "it is held"):
        pass


def test_whose_children_hold_it_is_told(tmp_path):
    path, context = tmp_path / "lock", multiprocessing.get_context("spawn")
    handle = lock._take(path, "it is held")
    ended = context.Process(target=print)
    ended.start()
    ended.join()
    path.write_text(f"process {ended.pid} on {socket.gethostname()}\n")
    told = f"it is held by what process {ended.pid} on .* had started before it ended; wait a moment"
    with pytest.raises(RunError, match=told), locked(path, "it is held"):
        pass
    os.close(handle)


def test_without_fcntl_there_is_no_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    with locked(tmp_path / "lock", "it is held"), locked(tmp_path / "lock", "it is held"):
        assert not (tmp_path / "lock").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(RunError, match="cannot be written: No such file"), locked(tmp_path / "no" / "lock", "it"):
        pass
