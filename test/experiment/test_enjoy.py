import pytest

from slm_lab.errors import RunError
from slm_lab.experiment import checkpoint, enjoy
from slm_lab.experiment.folder import RunFolder
from slm_lab.experiment.session import Session
from slm_lab.lib.files import write_json


@pytest.fixture
def run(tmp_path):
    """A run of which sessions 0 and 1 have a best policy, session 2 has nothing yet."""
    run = RunFolder.create(tmp_path, "small")
    for index, score in ((0, 30), (1, 20)):
        folder = run.trial(0).session(index).make()
        checkpoint.write(folder.best, {})
        write_json(folder.metrics_file, {"best_return": score})
    run.trial(0).session(2).make()
    return run


@pytest.mark.parametrize(("trial", "session", "index"), [(None, None, 0), (0, None, 0), (0, 1, 1)])
def test_the_best_session_plays_unless_one_is_named(run, trial, session, index):
    assert enjoy.best_session(run, trial, session).index == index


def test_a_session_without_a_checkpoint_cannot_play(run):
    with pytest.raises(RunError, match="s2: there is no checkpoint yet"):
        enjoy.best_session(run, 0, 2)


@pytest.mark.parametrize("name", ["DQN", "PPO", "ActorCritic", "Random"])
def test_the_policy_that_plays_is_the_best_one_not_the_latest(make_spec, make_folder, ear, name):
    spec, folder = make_spec(name), make_folder()
    session = Session(spec, folder, ear)
    session.run()
    latest = enjoy.load_policy(session.agent, folder)
    assert latest == checkpoint.read(folder.best)["frame"]
    played = list(enjoy.play(spec, folder, 3, render=False))
    assert len(played) == 3
    assert all(total == length for total, length in played)  # CartPole pays 1 a step
    assert played == list(enjoy.play(spec, folder, 3, render=False))
    folder.best.unlink()
    assert len(list(enjoy.play(spec, folder, 1, render=False))) == 1  # the latest, before there is a best
