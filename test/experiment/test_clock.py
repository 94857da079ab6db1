import time

import pytest

from slm_lab.experiment import clock as clocks
from slm_lab.experiment.clock import Clock


@pytest.fixture
def now(monkeypatch):
    """Seconds that pass only when told to."""
    seconds = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    assert clocks.time is time
    return seconds


@pytest.mark.parametrize(
    ("num_envs", "every", "passed_at"),
    [(1, 3, [3, 6, 9]), (4, 6, [8, 12, 20, 24]), (4, 4, [4, 8, 12, 16, 20, 24]), (10, 3, [10, 20])],
)
def test_a_multiple_that_falls_between_two_ticks_is_passed_at_the_later_one(num_envs, every, passed_at):
    clock, found = Clock(), []
    while clock.frame < passed_at[-1]:
        clock.tick(num_envs)
        found += [clock.frame] if clock.passed(every) else []
    assert found == passed_at


def test_training_time_leaves_out_the_pauses(now):
    clock = Clock()
    now[0] += 3
    with clock.paused():
        now[0] += 5
    now[0] += 1
    assert (clock.wall_time, clock.training_time) == (9, 4)


def test_a_clock_goes_on_from_its_state_without_the_time_between(now):
    clock = Clock()
    clock.tick(8)
    now[0] += 4
    with clock.paused():
        now[0] += 2
    tree = clock.state_dict()
    now[0] += 1000
    later = Clock()
    now[0] += 50  # building what the checkpoint is loaded into
    later.load_state_dict(tree)
    now[0] += 1
    assert (later.frame, later.wall_time, later.training_time) == (8, 7, 5)
    assert not later.passed(8)  # that was dealt with before the checkpoint
