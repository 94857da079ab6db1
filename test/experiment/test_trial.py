import os
import signal

import pytest

from slm_lab.env import VectorEnv
from slm_lab.env.make import EnvFault
from slm_lab.errors import Interrupted, RunError
from slm_lab.experiment import trial as trials
from slm_lab.experiment.display import Display
from slm_lab.experiment.folder import RunFolder
from slm_lab.experiment.trial import Trial
from slm_lab.lib.files import read_json


@pytest.fixture
def make_trial(tmp_path, monkeypatch):
    """Trials in the folder of one run, whose sessions run in this process, one after the other."""
    monkeypatch.setattr(trials, "usable_cores", lambda: 1)
    folder = RunFolder.create(tmp_path, "small").trial(0)
    return lambda spec: Trial(spec, folder, Display("small", spec.meta.max_session, -1))


def test_sessions_have_their_own_rows_and_share_metrics_and_a_picture(make_trial, make_spec):
    trial = make_trial(make_spec("Random", max_session=2))
    metrics = trial.run()
    assert [row["session"] for row in metrics] == [0, 1]
    assert metrics[0]["final_return"] != metrics[1]["final_return"]
    whole = read_json(trial.folder.metrics_file)
    assert whole["sessions"] == 2
    assert whole["final_return"]["max"] == max(row["final_return"] for row in metrics)
    assert trial.folder.curve_file.exists()


def test_finished_sessions_are_not_run_again(make_trial, make_spec):
    make_trial(make_spec("Random")).run()
    trial = make_trial(make_spec("Random", max_session=2))
    assert [session.index for session in trial.unfinished()] == [1]
    before = trial.sessions[0].log_file.read_text()
    assert len(trial.run()) == 2
    assert trial.sessions[0].log_file.read_text() == before
    assert trial.unfinished() == []


def test_a_session_that_fails_leaves_the_others_to_finish(make_trial, make_spec, monkeypatch, capsys):
    real, steps = VectorEnv.step, [0]

    def step(self, action):
        steps[0] += self.stream == "train"
        if steps[0] == 150:
            raise EnvFault("the wheel came off (sub-env 0)")
        return real(self, action)

    monkeypatch.setattr(VectorEnv, "step", step)
    trial = make_trial(make_spec("Random", max_session=2))
    with pytest.raises(RunError) as problem:
        trial.run()
    first, second = trial.sessions
    told = f"session 0: the wheel came off (sub-env 0); the traceback is in {first.log_file}"
    assert str(problem.value) == told
    assert isinstance(problem.value.__cause__, EnvFault)
    assert capsys.readouterr().out == f"warning: {told}\n"
    assert "Traceback" in first.log_file.read_text()
    assert trial.unfinished() == [first]
    assert read_json(second.metrics_file)["status"] == "finished"
    assert read_json(trial.folder.metrics_file)["sessions"] == 2
    assert trial.folder.curve_file.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_session_under_way_and_those_that_wait(make_trial, make_spec, monkeypatch, number, code):
    real, steps = VectorEnv.step, [0]

    def step(self, action):
        steps[0] += 1
        if steps[0] == 50:
            os.kill(os.getpid(), number)
        return real(self, action)

    monkeypatch.setattr(VectorEnv, "step", step)
    before = signal.getsignal(number)
    trial = make_trial(make_spec("Random", max_session=2))
    with pytest.raises(Interrupted) as stop:
        trial.run()
    assert stop.value.exit_code == code
    assert signal.getsignal(number) is before
    first, second = trial.sessions
    assert read_json(first.metrics_file)["status"] == "stopped"
    assert "stopped at frame 50" in first.log_file.read_text()
    assert not second.root.exists()
    assert trial.folder.curve_file.exists()
    assert len(make_trial(make_spec("Random", max_session=2)).run()) == 2


@pytest.mark.parametrize("damage", ["{", "[]", ""])
def test_a_damaged_metrics_file_is_written_anew(make_trial, make_spec, damage):
    trial = make_trial(make_spec("Random"))
    (metrics,) = trial.run()
    trial.sessions[0].metrics_file.write_text(damage)
    assert trial.unfinished() == trial.sessions
    assert trial.run() == [metrics]
    assert read_json(trial.sessions[0].metrics_file) == metrics
