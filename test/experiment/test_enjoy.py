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


DRAWN = """
import gymnasium, numpy as np


class Drawn(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,), np.float32), gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, what="rgb", render_mode=None):
        self.what, self.render_mode = what, render_mode

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 4, False, {}

    def render(self):
        rgb = np.full((16, 24, 3), 40 * self.steps, np.uint8)
        if self.what == "exits":
            raise SystemExit("bye")
        return {
            "rgb": rgb,
            "grey": rgb[..., 0],
            "one channel": rgb[..., :1],
            "rgba": np.concatenate([rgb, rgb[..., :1]], -1),
            "floats": rgb / 255,
            "nothing": None,
            "other sizes": rgb[: 16 - 8 * (self.steps % 2)],
            "flat": rgb.ravel(),
            "empty": rgb[:0],
        }[self.what]
"""


@pytest.fixture
def filmed(make_spec, make_folder, ear, tmp_path):
    """Plays two episodes of the env that draws `what`: its films, and what write_film was given."""
    (tmp_path / "drawn.py").write_text(DRAWN)

    def play(what, monkeypatch):
        env = {"name": f"{tmp_path}/drawn.py:Drawn", "max_frame": 10, "kwargs": {"what": what}}
        spec, folder = make_spec("Random", env=env), make_folder()
        Session(spec, folder, ear).run()
        given = []
        written = enjoy.write_film
        monkeypatch.setattr(enjoy, "write_film", lambda *args: (given.append(args[-1]), written(*args))[1])
        films = enjoy.Films(tmp_path / "films", 2)
        played = list(enjoy.play(spec, folder, 2, render=False, films=films))
        assert [(total, length) for total, length, _ in played] == [(4.0, 4)] * 2
        return films, given

    return play


@pytest.mark.parametrize("what", ["rgb", "grey", "one channel", "rgba"])
def test_pictures_of_bytes_become_films_in_colour(filmed, monkeypatch, what):
    films, given = filmed(what, monkeypatch)
    assert len(films.files) == 2
    assert all(file.stat().st_size > 0 for file in films.files)
    assert [frame.tolist() for frame in given[0]] == [np.full((16, 24, 3), 40 * step).tolist() for step in range(4)]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("floats", "it gives float64 of shape (16, 24, 3), not bytes of (height, width, 3)"),
        ("nothing", "it gives NoneType, not an array of bytes"),
        ("other sizes", "its pictures are of shape (16, 24, 3) and (8, 24, 3)"),
        ("flat", "it gives uint8 of shape (1152,), not bytes of (height, width, 3)"),
        ("empty", "it gives uint8 of shape (0, 24, 3), not bytes of (height, width, 3)"),
        ("exits", "bye"),
    ],
)
def test_what_is_no_picture_is_told_and_the_episodes_are_played(filmed, monkeypatch, what, told):
    films, given = filmed(what, monkeypatch)
    assert films.files == given == []
    assert films.note.startswith("no video: ")
    assert films.note.endswith(f"cannot be drawn: {told}")
