import numpy as np
import pytest

from slm_lab.analysis.tables import read_table
from slm_lab.experiment.clock import Clock
from slm_lab.experiment.evaluate import Evaluation
from slm_lab.experiment.logbook import Logbook
from slm_lab.types import Step


def evaluation(*returns):
    return Evaluation(np.array(returns, np.float64), np.full(len(returns), 5))


def count(book, reward, ended):
    over = np.array([ended])
    book.count(Step(None, None, np.array([float(reward)]), over, np.zeros(1, np.bool_)))


def test_a_train_row_tells_of_the_episodes_since_the_last_one(make_folder):
    folder = make_folder().make()
    book, clock = Logbook(folder, 1, ("q",)), Clock()
    for reward, ended in ((1, False), (2, True), (4, True), (8, False)):
        clock.tick(1)
        count(book, reward, ended)
    book.write_train(clock, 3, {"loss": 0.5, "q": 7})
    clock.tick(1)
    count(book, 16, True)
    book.write_train(clock, 4, {})
    book.close()
    table = read_table(folder.train_table)
    assert table["frame"].tolist() == [4, 5]
    assert table["episodes"].tolist() == [2, 3]
    assert table["return"].tolist() == [3.5, 24]  # of 1 + 2 and 4; of 8 + 16
    assert table["length"].tolist() == [1.5, 2]
    assert table["return_ma"].tolist() == [3.5, 31 / 3]
    assert table["q"][0] == 7
    assert np.isnan(table["q"][1])


def test_the_moving_average_of_evaluations_is_of_the_last_ten_and_passes_over_nan(make_folder):
    folder = make_folder().make()
    book = Logbook(folder, 1, ())
    for value in (float("nan"), *range(1, 12)):
        book.write_eval(Clock(), 0, evaluation(value))
    book.close()
    averages = read_table(folder.eval_table)["return_ma"]
    assert np.isnan(averages[0])
    assert averages[1:4].tolist() == [1, 1.5, 2]
    assert averages[-1] == np.mean(range(2, 12))


def test_the_last_number_is_found_behind_rows_without_one(make_folder):
    book = Logbook(make_folder().make(), 1, ())
    assert book.last(book.train, "loss") is None
    book.write_train(Clock(), 0, {"loss": 0.25})
    book.write_train(Clock(), 0, {})
    assert book.last(book.train, "loss") == 0.25
    book.close()


def test_fps_is_of_all_the_last_rows_together(make_folder):
    book = Logbook(make_folder().make(), 1, ())
    assert book.fps == 0
    book.train.append({"frame": 100, "fps": 100})  # 1 s
    assert book.fps == pytest.approx(100)
    book.train.append({"frame": 400, "fps": 100})  # 3 s
    book.train.append({"frame": 500, "fps": 25})  # 4 s
    assert book.fps == pytest.approx(500 / 8)
    for row in range(8):
        book.train.append({"frame": 510 + 10 * row, "fps": 10})  # 1 s each
    assert book.fps == pytest.approx(480 / 15)  # eleven rows, of which the first no longer counts
    for row in range(8, 10):
        book.train.append({"frame": 510 + 10 * row, "fps": 10})
    assert book.fps == pytest.approx(10)
    book.close()


def test_a_fresh_start_forgets_rows_and_columns_of_an_earlier_one(make_folder):
    folder = make_folder().make()
    book = Logbook(folder, 1, ("q",))
    book.write_train(Clock(), 0, {})
    book.write_eval(Clock(), 0, evaluation(1))
    book.close()
    book = Logbook(folder, 1, ("entropy_loss",), fresh=True)
    assert book.train.rows == book.eval.rows == []
    assert "entropy_loss" in folder.train_table.read_text()
    book.close()


def test_a_logbook_goes_back_to_its_state(make_folder):
    folder = make_folder().make()
    book, clock = Logbook(folder, 1, ()), Clock()
    clock.tick(2)
    count(book, 1, False)
    book.write_train(clock, 0, {})
    tree = book.state_dict()
    count(book, 2, True)
    book.write_train(clock, 0, {})
    book.close()
    later = Logbook(folder, 1, ())
    later.load_state_dict(tree)
    assert len(later.train.rows) == 1
    count(later, 4, True)
    assert later.tally.since() == [(5.0, 2)]
    later.close()


def test_a_log_that_cannot_be_written_stops_nothing(make_folder):
    folder = make_folder().make()
    folder.log_file.mkdir()
    book = Logbook(folder, 1, ())
    book.note("hello")
    book.close()
