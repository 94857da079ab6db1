"""Compiled loops: numba's njit, cached on disk wherever a cache can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def njit(function: Callable, nogil: bool = False) -> Any:
    """`function` compiled at its first call; the machine code is kept for the next process where a folder allows it."""
    try:
        return numba.njit(cache=True, nogil=nogil, error_model="numpy")(function)
    except RuntimeError:  # "no locator available": neither the package's folder nor the user's cache is writable
        return numba.njit(nogil=nogil, error_model="numpy")(function)
