import numpy as np
import pytest

from slm_lab.analysis.tables import read_table
from slm_lab.errors import RunError


def test_columns_are_float64_and_empty_cells_nan(tmp_path):
    path = tmp_path / "eval.csv"
    path.write_text("frame,return\n1,0.1\n2,\n3,torn")
    table = read_table(path)
    assert list(table) == ["frame", "return"]
    assert table["frame"].dtype == np.float64
    assert table["frame"].tolist() == [1, 2]
    assert table["return"][0] == 0.1
    assert np.isnan(table["return"][1])


def test_a_table_without_rows_has_empty_columns(tmp_path):
    path = tmp_path / "eval.csv"
    path.write_text("frame,return\n")
    assert {name: len(column) for name, column in read_table(path).items()} == {"frame": 0, "return": 0}
    path.write_text("")
    assert read_table(path) == {}


@pytest.mark.parametrize(
    ("content", "trouble"),
    [("a,b\n1\n", "line 2 has 1 cells where there are 2 columns"), ("a\nx\n", "could not convert")],
)
def test_a_table_that_is_none_is_refused_by_name(tmp_path, content, trouble):
    path = tmp_path / "eval.csv"
    path.write_text(content)
    with pytest.raises(RunError, match=rf"eval\.csv: .*{trouble}"):
        read_table(path)
    with pytest.raises(RunError, match=r"none\.csv: cannot be read"):
        read_table(tmp_path / "none.csv")
