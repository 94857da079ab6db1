import json

import numpy as np
import pytest

from slm_lab.analysis.metrics import mean_band, session_metrics, trial_metrics

NAN = float("nan")


def table(**columns) -> dict[str, np.ndarray]:
    return {name: np.array(values, np.float64) for name, values in columns.items()}


TRAIN = table(
    frame=[50, 100, 150, 200],
    wall_time=[1, 2, 3, 4],
    fps=[50, NAN, 100, 25],
    episodes=[2, 4, 6, 8],
    opt_step=[10, 20, 30, 40],
    return_ma=[NAN, 1, 2, 4],
)
EVAL = table(**{"frame": [100, 200, 400], "wall_time": [2, 4, 8], "opt_step": [20, 40, 80], "return": [10, 30, 20]})


def test_session_metrics_of_a_table_done_by_hand():
    assert session_metrics(TRAIN, EVAL) == {
        "source": "eval",
        "final_return": 20.0,
        "final_return_ma": 20.0,
        "best_return": 30.0,
        "best_frame": 200,
        "area": (100 * 20 + 200 * 25) / 300,
        "strength": None,
        "frames": 400,
        "opt_steps": 80,
        "episodes": 8,
        "wall_time": 8.0,
        "fps": 150 / (1 + 0.5 + 2),  # the row without one counts neither its frames nor its time
    }


def test_strength_is_the_area_above_what_acting_at_random_is_worth():
    assert session_metrics(TRAIN, EVAL, 10.0)["strength"] == (100 * 20 + 200 * 25) / 300 - 10


def test_final_return_ma_is_over_the_last_ten_evaluations():
    eval = table(**{"frame": np.arange(12), "return": np.arange(12)})
    assert session_metrics({}, eval)["final_return_ma"] == sum(range(2, 12)) / 10


def test_without_evaluation_the_training_average_serves_and_says_so():
    metrics = session_metrics(TRAIN, table(frame=[], **{"return": []}))
    assert metrics["source"] == "train"
    assert (metrics["final_return"], metrics["best_frame"], metrics["area"]) == (4.0, 200, (50 * 1.5 + 50 * 3) / 100)


def test_evaluations_without_a_number_do_not_count():
    eval = table(**{"frame": [1, 2, 3], "return": [5, NAN, NAN]})
    metrics = session_metrics({}, eval)
    assert (metrics["final_return"], metrics["area"], metrics["frames"]) == (5.0, 5.0, 3)


@pytest.mark.parametrize("eval", [{}, table(frame=[], **{"return": []})])
def test_no_rows_at_all_gives_nulls_under_the_same_names(eval):
    metrics = session_metrics({}, eval)
    assert list(metrics) == list(session_metrics(TRAIN, EVAL))
    assert set(metrics.values()) == {None}


def test_the_first_of_equally_good_evaluations_is_the_best():
    assert session_metrics({}, table(**{"frame": [1, 2, 3], "return": [0, 7, 7]}))["best_frame"] == 2


def test_metrics_are_json():
    sessions = [session_metrics(TRAIN, EVAL), session_metrics({}, {})]
    assert json.loads(json.dumps(sessions, allow_nan=False)) == sessions
    json.dumps(trial_metrics(sessions), allow_nan=False)


def test_trial_metrics_are_over_the_sessions_that_have_the_number():
    metrics = trial_metrics([{"final_return": 1.0}, {"final_return": 3.0}, {"final_return": None}])
    assert metrics == {"sessions": 3, "final_return": {"mean": 2.0, "std": 2**0.5, "min": 1.0, "max": 3.0}}


def test_one_session_has_no_std():
    assert trial_metrics([{"session": 0, "source": "eval", "area": 2.0}]) == {
        "sessions": 1,
        "area": {"mean": 2.0, "std": None, "min": 2.0, "max": 2.0},
    }


def test_the_band_interpolates_within_each_sessions_own_range():
    short = (np.array([0.0, 2.0]), np.array([0.0, 2.0]))
    long = (np.array([1.0, 3.0]), np.array([3.0, 5.0]))
    frames, mean, low, high = mean_band([short, long])
    half_range = 2 / 2**0.5  # of two values that lie 2 apart: the sample's std
    assert frames.tolist() == [0, 1, 2, 3]
    assert mean.tolist() == [0, 2, 3, 5]
    assert np.allclose(high - mean, [0, half_range, half_range, 0])
    assert np.allclose(mean - low, high - mean)


def test_frames_between_two_sessions_that_neither_covers_do_not_appear():
    frames, *_ = mean_band([(np.array([0.0, 1.0]), np.ones(2)), (np.array([5.0]), np.ones(1))])
    assert frames.tolist() == [0, 1, 5]


def test_no_curves_no_band():
    assert [len(part) for part in mean_band([(np.empty(0), np.empty(0))])] == [0, 0, 0, 0]
