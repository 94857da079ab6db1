"""An env that fails in the middle of a run, and what evaluation and enjoy make of scaled envs."""

import numpy as np
import pytest

from slm_lab.analysis.tables import read_table
from slm_lab.env import EnvFault, Statistics, VectorEnv
from slm_lab.errors import Interrupted
from slm_lab.experiment import checkpoint, enjoy
from slm_lab.experiment.session import Session
from slm_lab.types import Lost

FAULTY = """
import gymnasium, numpy as np


class Faulty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1000, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    fails = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drawn, self.steps = int(self.np_random.integers(1, 10)), 0
        return np.array([self.drawn, 0], np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.drawn == 9 and self.steps == 4 and Faulty.fails:
            raise RuntimeError("the wheel came off")
        return np.array([self.drawn, self.steps], np.float32), 3.0, self.steps == 6, False, {}
"""


@pytest.fixture
def faulty(tmp_path):
    """The env block of an env in which every ninth episode or so fails."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    return {"name": f"{tmp_path}/faulty.py:Faulty", "max_frame": 200, "num_envs": 2}


def test_a_fault_stops_the_session_with_the_state_of_the_step_before(make_spec, make_folder, ear, faulty):
    spec, folder = make_spec(env=faulty), make_folder()
    with pytest.raises(EnvFault, match=r"the wheel came off \(sub-env \d, episode \d+, step 3, action"):
        Session(spec, folder, ear).run()
    tree = checkpoint.read(folder.latest)
    frame = tree["clock"]["frame"]
    assert 0 < frame < 200
    assert sum(len(taken) for taken in tree["env"]["actions"]) == sum(
        frame // 2 - 6 * int(episode) for episode in tree["env"]["episode"]
    )
    with pytest.raises(EnvFault):  # it goes on to the same fault
        Session(spec, folder, ear).run()
    assert checkpoint.read(folder.latest)["clock"]["frame"] == frame


def test_lost_episodes_of_an_evaluation_do_not_count(make_spec, make_folder, ear, faulty):
    folder = make_folder()
    spec = make_spec("Random", env=faulty, on_env_error="restart_episode", rigorous_eval=40, eval_frequency=100)
    assert Session(spec, folder, ear).run()["status"] == "finished"
    evaluated = read_table(folder.eval_table)
    assert set(evaluated["return_max"]) == set(evaluated["return_min"]) == {18.0}
    assert (evaluated["episodes"] < 40).all()
    told = folder.log_file.read_text()
    assert told.count("an episode of the evaluation at 100 does not count: env") == 40 - evaluated["episodes"][0]


def test_an_evaluation_of_lost_episodes_alone_has_no_return_and_is_not_the_best(
    make_spec, make_folder, ear, faulty, monkeypatch
):
    played = VectorEnv.step

    def step(env, action):
        told = played(env, action)
        if env.training:
            return told
        lost = tuple(Lost(index, "the wheel came off") for index in range(env.num_envs))
        return told._replace(truncated=np.ones(env.num_envs, np.bool_), lost=lost)

    monkeypatch.setattr(VectorEnv, "step", step)
    folder = make_folder()
    spec = make_spec("Random", env=faulty, on_env_error="restart_episode", rigorous_eval=2, eval_frequency=100)
    assert Session(spec, folder, ear).run()["final_return"] is not None  # of training
    evaluated = read_table(folder.eval_table)
    assert evaluated["episodes"].tolist() == [0, 0]
    assert np.isnan([evaluated[key] for key in ("return", "return_min", "return_max", "length")]).all()
    assert not folder.best.exists()


FLAKY = """
import gymnasium, numpy as np
from pathlib import Path


class Flaky(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def obs(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.obs(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 7 and Path(__file__).with_name("fails").exists():
            raise RuntimeError("the wheel came off")
        return self.obs(), float(action), False, self.steps == 20, {}
"""


@pytest.mark.parametrize("name", ["DQN", "PPO", "recurrent DQN", "recurrent PPO"])
def test_a_run_that_goes_on_after_a_fault_ends_like_one_that_had_none(make_spec, make_folder, ear, tmp_path, name):
    (tmp_path / "flaky.py").write_text(FLAKY)
    env = {"name": f"{tmp_path}/flaky.py:Flaky", "max_frame": 300, "num_envs": 2}
    spec, whole, broken = make_spec(name, env=env), make_folder(), make_folder()
    Session(spec, whole, ear).run()

    flag = tmp_path / "fails"
    stops = iter([False] * 83 + [True])
    with pytest.raises(Interrupted):  # early in an episode
        Session(spec, broken, ear, stop=lambda: next(stops)).run()
    flag.touch()
    for _ in range(2):  # the second begins with the step that failed
        with pytest.raises(EnvFault, match="step 6"):
            Session(spec, broken, ear).run()
    flag.unlink()
    Session(spec, broken, ear).run()

    for table in ("train_table", "eval_table"):
        tables = [read_table(getattr(folder, table)) for folder in (whole, broken)]
        for timed in ("wall_time", "fps"):
            for columns in tables:
                columns.pop(timed, None)
        np.testing.assert_equal(*tables)
    agents = [checkpoint.read(folder.latest)["agent"] for folder in (whole, broken)]
    states = [agent["algorithm"] for agent in agents]
    assert states[0]["rng"] == states[1]["rng"]
    for ours, theirs in zip(*(state["learner"]["parameters"] for state in states), strict=True):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def test_where_an_env_does_not_repeat_itself_actions_are_chosen_anew(make_spec, make_folder, ear, tmp_path):
    (tmp_path / "flaky.py").write_text(FLAKY)
    env = {"name": f"{tmp_path}/flaky.py:Flaky", "max_frame": 300, "num_envs": 2}
    spec, folder = make_spec("recurrent PPO", env=env), make_folder()
    (tmp_path / "fails").touch()
    with pytest.raises(EnvFault):
        Session(spec, folder, ear).run()
    tree = checkpoint.read(folder.latest)
    tree["env"]["obs"][1] = "another"
    checkpoint.write(folder.latest, tree)
    session = Session(spec, folder, ear)
    session._begin()
    assert session.failed_in is None
    np.testing.assert_array_equal(session.carried.values[0], tree["failed_in"]["before"][0])
    assert np.abs(session.carried.values[0] - tree["carried"]["values"][0]).max() > 0
    assert not session.carried.values[1].any()
    session._close()


def test_a_reset_that_fails_in_training_is_told_and_passed_over(make_spec, make_folder, ear, faulty, tmp_path):
    source = FAULTY.replace(
        "self.drawn, self.steps = int(self.np_random.integers(1, 10)), 0",
        "self.drawn, self.steps = int(self.np_random.integers(1, 9)), 0\n        assert self.drawn > 1, 'no wheels'",
    )
    (tmp_path / "faulty.py").write_text(source)
    folder = make_folder()
    spec = make_spec("Random", env=faulty, on_env_error="restart_episode", rigorous_eval=0)
    assert Session(spec, folder, ear).run()["status"] == "finished"
    told = [line for line in folder.log_file.read_text().splitlines() if "the episode is passed over" in line]
    assert len(told) >= 2
    assert all("failed in reset: AssertionError: no wheels" in line for line in told)
    with pytest.raises(EnvFault, match="failed in reset: AssertionError: no wheels"):
        Session(make_spec("Random", env=faulty), make_folder(), ear).run()


@pytest.mark.parametrize("name", ["DQN", "PPO"])
def test_a_session_that_is_to_survive_faults_counts_them_and_no_part_of_a_lost_episode(
    make_spec, make_folder, ear, faulty, name
):
    folder = make_folder()
    spec = make_spec(name, env=faulty, on_env_error="restart_episode", rigorous_eval=0)
    session = Session(spec, folder, ear)
    metrics = session.run()
    assert metrics["status"] == "finished"
    told = [line for line in folder.log_file.read_text().splitlines() if "the episode is lost" in line]
    assert len(told) >= 2
    trained = read_table(folder.train_table)
    assert set(trained["return"][np.isfinite(trained["return"])]) == {18.0}
    if name == "DQN":  # every row is of a step that was made
        memory = session.agent.memory
        assert memory.seen == 200 - len(told)
        rows = memory.all()
        assert (rows.next_obs[:, 1] == rows.obs[:, 1] + 1).all()
        assert (rows.reward == 3).all()
        newest = memory.ring.ends(rows.ids.numpy())
        begun = [
            rows.obs[end, 0].item() for end in np.flatnonzero(newest)
        ]  # of each episode, what was drawn at its start
        assert begun.count(9) <= 2  # those that go on; none is left of those that were lost
        assert len(told) > 2


def test_the_best_policy_plays_with_the_statistics_that_it_learned_with(make_spec, make_folder, ear, monkeypatch):
    spec, folder = make_spec("PPO", env={"normalize_obs": True, "normalize_reward": True}), make_folder()
    session = Session(spec, folder, ear)
    counts = []
    monkeypatch.setattr(Statistics, "add", lambda self, obs, real=Statistics.add: (counts.append(1), real(self, obs)))
    session.run()
    assert len(counts) == 1 + 300  # none of them from an evaluation
    best = checkpoint.read(folder.best)
    used = []

    class Watched(VectorEnv):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            used.append(self)

    monkeypatch.setattr(enjoy, "VectorEnv", Watched)
    played = list(enjoy.play(spec, folder, 2, render=False))
    assert all(total == length for total, length, _ in played)  # CartPole's own rewards
    (env,) = used
    assert env.statistics.parts[""].count == best["statistics"]["obs"]["count"]
    np.testing.assert_array_equal(env.statistics.parts[""].mean, best["statistics"]["obs"]["mean"])
    assert len(counts) == 1 + 300
    trained, evaluated = read_table(folder.train_table), read_table(folder.eval_table)
    assert np.nanmax(trained["return"]) > 5  # in the env's units, not in deviations
    assert (evaluated["return"] == evaluated["length"]).all()
