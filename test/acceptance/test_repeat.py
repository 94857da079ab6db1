"""The same spec and seed give the same files, however many threads the process was given."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from slm_lab.cli import cli
from slm_lab.spec.files import read_file

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "spec" / "demo.json"


def trained(name, folder, threads):
    torch.set_num_threads(threads)
    short = ("env.max_frame=3000", "meta.eval_frequency=1000", "meta.log_frequency=500", "meta.rigorous_eval=2")
    words = [word for change in (*short, "meta.compile=false", "meta.max_session=1") for word in ("-s", change)]
    done = CliRunner().invoke(cli, [str(DEMO), name, "train", "-q", "--seed", "11", "--data-dir", str(folder), *words])
    assert done.exit_code == 0, done.output
    [run] = folder.iterdir()
    return run


@pytest.mark.parametrize("name", read_file(DEMO))
def test_a_demo_spec_comes_to_the_same_twice_with_one_thread_and_with_two(kill, name, tmp_path):
    """A session computes in one thread, whatever the process has."""
    before = torch.get_num_threads()
    try:
        first, second = (trained(name, tmp_path / str(threads), threads) for threads in (1, 2))
    finally:
        torch.set_num_threads(before)
    assert list(kill.differences(first, second)) == []
