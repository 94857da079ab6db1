"""Returns and advantages of rows in time order, computed backwards.

Rows are flat, (B,), one env after the other; `end[t]` says that row t+1 does not continue row t. What follows such a
row is bootstrapped from its own next observation, through `discount` = gamma * (1 - terminated).
"""

from __future__ import annotations

import numpy as np

from slm_lab.lib.jit import njit


@njit
def gae(reward, discount, end, value, next_value, lam):
    """(B,) generalised advantage estimates (Schulman 2016, eq. 16), cut at `end`."""
    advantage = np.empty_like(reward)
    following = 0.0
    for t in range(len(reward) - 1, -1, -1):
        delta = reward[t] + discount[t] * next_value[t] - value[t]
        following = delta if end[t] else delta + discount[t] * lam * following
        advantage[t] = following
    return advantage


@njit
def n_step_returns(reward, discount, end, next_value, n):
    """(B,) sums of up to n discounted rewards plus the discounted value of what follows; fewer steps before an end."""
    out = np.empty_like(reward)
    for t in range(len(reward)):
        total, factor, k = 0.0, 1.0, t
        while True:
            total += factor * reward[k]
            factor *= discount[k]
            if end[k] or k - t + 1 == n:
                break
            k += 1
        out[t] = total + factor * next_value[k]
    return out


@njit
def returns_to_go(reward, discount, end, next_value):
    """(B,) discounted rewards to the end of each stretch of rows, plus the discounted value of what follows it."""
    out = np.empty_like(reward)
    following = 0.0
    for t in range(len(reward) - 1, -1, -1):
        following = reward[t] + discount[t] * (next_value[t] if end[t] else following)
        out[t] = following
    return out


def standardize(values: np.ndarray) -> np.ndarray:
    """Zero mean and unit deviation; a single row or equal rows come out as zeros."""
    return (values - values.mean()) / (values.std() + 1e-8)
