from slm_lab.analysis.experiment import experiment_table, ranked, trial_row


def test_a_trials_row_has_the_means_of_its_metrics():
    metrics = {"sessions": 2, "area": {"mean": 3.0, "std": 1.0, "min": 2.0, "max": 4.0}}
    assert trial_row(metrics) == {"sessions": 2, "area": 3.0}


def test_rows_are_ranked_by_a_metric_and_those_without_it_left_out():
    rows = [
        {"trial": 0, "x": 1},
        {"trial": 1, "x": 3.0},
        {"trial": 2},
        {"trial": 3, "x": float("nan")},
        {"trial": 4, "x": 3},
    ]
    assert [row["trial"] for row in ranked(rows, "x")] == [1, 4, 0]
    assert [row["trial"] for row in ranked(rows, "x", "min")] == [0, 1, 4]


def test_the_table_has_a_column_for_whatever_a_row_has():
    rows = [{"trial": 0, "lr": 0.1234567890123, "error": ""}, {"trial": 1, "net": [64, 64], "error": 'a, "b"'}]
    assert experiment_table(rows, ["trial", "net"]) == (
        'trial,net,lr,error\n0,,0.123456789,\n1,"[64, 64]",,"a, ""b"""\n'
    )
