import numpy as np
import pytest
import torch

from slm_lab.errors import RunError
from slm_lab.experiment import checkpoint, enjoy, evaluate
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


@pytest.mark.parametrize("name", ["DQN", "PPO", "ActorCritic", "Reinforce"])
def test_the_policy_that_plays_is_the_best_one_not_the_latest(make_spec, make_folder, ear, name):
    spec, folder = make_spec(name, env={"max_frame": 50}), make_folder()
    session = Session(spec, folder, ear)
    algorithm, obs = session.agent.algorithm, np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    torch.manual_seed(0)
    best, begun = (
        {"parameters": [torch.randn_like(part) for part in algorithm.policy_state()["parameters"]]} for _ in range(2)
    )
    actions = {}
    for key, policy in (("best", best), ("latest", begun)):
        algorithm.load_policy_state(policy)
        actions[key] = algorithm.act(obs, 0, explore=False).tolist()
    assert actions["best"] != actions["latest"]
    session.checkpoints.save_best({"frame": 7, "score": 1.0, "policy": best})
    session.checkpoints.save(session.state_dict())
    session._close()
    agent = Session(spec, make_folder(), ear).agent
    assert enjoy.load_policy(agent, folder) == 7
    assert agent.act(obs, 0, explore=False).tolist() == actions["best"]
    folder.best.unlink()
    assert enjoy.load_policy(agent, folder) == 0  # the latest, before there is a best
    assert agent.act(obs, 0, explore=False).tolist() == actions["latest"]


@pytest.mark.parametrize("name", ["DQN", "Random"])
def test_the_same_episodes_are_played_each_time(make_spec, make_folder, ear, name):
    spec, folder = make_spec(name), make_folder()
    Session(spec, folder, ear).run()
    played = list(enjoy.play(spec, folder, 3, render=False))
    assert len(played) == 3
    assert all(total == length and not note for total, length, note in played)  # CartPole pays 1 a step
    assert played == list(enjoy.play(spec, folder, 3, render=False))


def test_episodes_in_an_env_without_a_time_limit_end_and_are_told(make_spec, make_folder, ear, monkeypatch):
    monkeypatch.setattr(evaluate, "STEPS_WITHOUT_LIMIT", 5)
    spec, folder = make_spec("Random", env={"name": "CliffWalking-v1", "max_frame": 10}), make_folder()
    Session(spec, folder, ear).run()
    note = "CliffWalking-v1 sets no time limit: evaluation episodes end after 5 steps; set env.max_t"
    assert [(length, told) for _, length, told in enjoy.play(spec, folder, 2, render=False)] == [(5, note), (5, note)]
