"""Bytes are copied between places, and fetching them changes nothing."""

from __future__ import annotations

import numpy as np

from slm_lab.lib.bytes import copy, fetch
from slm_lab.lib.jit import njit


@njit
def move(target, at, source, source_at, count):
    fetch(source, source_at)
    copy(target, at, source, source_at, count)


def test_bytes_arrive_between_arrays_of_different_types_and_nothing_else_changes():
    source = np.arange(8, dtype=np.float32)
    target = np.full(24, 255, np.uint8)
    move(target, 4, source, 8, 12)
    assert target[4:16].view(np.float32).tolist() == [2, 3, 4]
    assert set(target[:4]) == set(target[16:]) == {255}
    assert source.tolist() == list(range(8))


def test_nothing_is_copied_where_the_count_is_zero():
    target = np.ones(4, np.uint8)
    move(target, 4, np.zeros(4, np.uint8), 4, 0)
    assert target.tolist() == [1] * 4
