import math

import pytest
from pydantic import ValidationError

from slm_lab.agent.algorithm.schedule import ScheduleSpec, constant
from slm_lab.spec import registry

SPAN = {"start_step": 100, "end_step": 300}
TABLE = [
    # keys, {frame: value}
    ({"name": "no_decay", "start_val": 0.5}, {0: 0.5, 10**9: 0.5}),
    ({"name": "no_decay", "start_val": 0.5, "end_val": 0.1, **SPAN}, {0: 0.5, 200: 0.5, 10**9: 0.5}),
    (
        {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, **SPAN},
        {0: 1, 100: 1, 150: 0.75, 200: 0.5, 300: 0, 301: 0, 10**9: 0},
    ),
    (
        {"name": "linear_decay", "start_val": 0.0, "end_val": 8.0, **SPAN},
        {0: 0, 100: 0, 150: 2, 250: 6, 300: 8, 999: 8},
    ),
    # four halvings from frame 100 to 300: one every 50 frames; at the end, the end value
    (
        {"name": "rate_decay", "start_val": 16.0, "end_val": 0.5, "decay_rate": 0.5, "frequency": 4, **SPAN},
        {0: 16, 100: 16, 150: 8, 200: 4, 250: 2, 300: 0.5, 10**9: 0.5},
    ),
    (
        {"name": "rate_decay", "start_val": 1.0, "end_val": 10.0, "decay_rate": 0.5, "frequency": 4, **SPAN},
        {0: 1, 150: 2, 200: 4, 250: 8, 300: 10, 10**9: 10},
    ),
    (
        {"name": "rate_decay", "start_val": 16.0, "end_val": 0.0, "decay_rate": 0.5, "frequency": 4, **SPAN},
        {250: 2, 299: 16 * 0.5 ** (4 * 199 / 200), 300: 0, 10**9: 0},
    ),
    # one wave of a cosine, 2 pi, under a line that falls from 1 to 0
    (
        {"name": "periodic_decay", "start_val": 1.0, "end_val": 0.0, "frequency": 2 * math.pi, **SPAN},
        {0: 1, 100: 1, 150: 0.5 * 0.75, 200: 0, 250: 0.5 * 0.25, 300: 0, 999: 0},
    ),
    (
        {"name": "periodic_decay", "start_val": 0.0, "end_val": 8.0, "frequency": 2 * math.pi, **SPAN},
        {0: 0, 150: 8 - 8 * 0.5 * 0.75, 200: 8, 250: 8 - 8 * 0.5 * 0.25, 300: 8, 999: 8},
    ),
]


@pytest.mark.parametrize(("keys", "values"), TABLE)
def test_a_schedule_by_hand_down_and_up(keys, values):
    spec = ScheduleSpec(**keys)
    assert {frame: spec.at(frame) for frame in values} == pytest.approx(values, abs=1e-12)


def test_rates_are_decayed_twenty_times_and_waves_have_sixty_radians_unless_told_otherwise():
    rate = ScheduleSpec(name="rate_decay", start_val=1.0, end_val=0.0, decay_rate=0.5, **SPAN)
    assert rate.at(200) == 0.5**10
    wave = ScheduleSpec(name="periodic_decay", start_val=1.0, end_val=0.0, **SPAN)
    assert wave.at(200) == pytest.approx(0.5 * (1 + math.cos(30)) / 2)


def test_a_constant_stays():
    assert constant(0.25).at(0) == constant(0.25).at(10**9) == 0.25


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"name": "linear_decay"}, "linear_decay needs end_val and end_step"),
        ({"name": "linear_decay", "end_val": 0.0}, "needs end_val and end_step"),
        (
            {"name": "linear_decay", "end_val": 0, "start_step": 9, "end_step": 9},
            "end_step 9 must lie after start_step 9",
        ),
        ({"name": "rate_decay", "end_val": -1, "end_step": 9}, "cannot be negative"),
        ({"name": "rate_decay", "start_val": 0, "end_val": 1, "end_step": 9}, "cannot leave a start_val of 0"),
        ({"name": "exp_decay", "end_val": 0, "end_step": 9}, "Input should be 'no_decay', 'linear_decay'"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(keys, told):
    with pytest.raises(ValidationError) as caught:
        ScheduleSpec(**{"start_val": 1.0, **keys})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "key", "value"),
    [
        ("DQN", "explore_var_spec", -0.1),
        ("SARSA", "explore_var_spec", 3.0),
        ("PPO", "clip_eps_spec", -0.2),
        ("TD3", "explore_var_spec", -0.1),
    ],
)
def test_a_schedule_out_of_the_range_of_its_use_is_refused(algorithm, key, value):
    settings = registry.settings_of("algorithm", algorithm)
    schedule = {"name": "linear_decay", "start_val": 0.5, "end_val": value, "end_step": 10}
    with pytest.raises(ValueError, match=rf"(?s){key}.*value {value:g} is outside of 0 to (1|inf)"):
        settings.model_validate({key: schedule})
