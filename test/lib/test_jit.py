from __future__ import annotations

from numba.core.caching import FunctionCache

from slm_lab.lib.jit import njit


def twice(number):
    return 2 * number


def test_compiles_without_a_cache_where_none_can_be_written(monkeypatch):
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])
    assert njit(twice)(21) == 42


def test_keeps_the_machine_code_where_a_cache_can_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    assert njit(twice)(21) == 42
    assert list(tmp_path.rglob("*.nbi"))
