"""An env that fails in the middle of a run, and what evaluation and enjoy make of scaled envs."""

import numpy as np
import pytest

from slm_lab.analysis.tables import read_table
from slm_lab.env import EnvFault, Statistics, VectorEnv
from slm_lab.experiment import checkpoint, enjoy
from slm_lab.experiment.session import Session

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


def test_a_session_that_is_to_survive_faults_is_evaluated_with_what_failing_episodes_came_to(
    make_spec, make_folder, ear, faulty
):
    folder = make_folder()
    spec = make_spec("Random", env=faulty, on_env_error="restart_episode", rigorous_eval=40, eval_frequency=100)
    assert Session(spec, folder, ear).run()["status"] == "finished"
    evaluated = read_table(folder.eval_table)
    assert set(evaluated["return_max"]) == {18.0}
    assert set(evaluated["return_min"]) == {9.0}  # three steps, and the fourth failed
    assert "an episode of the evaluation at 100 is cut short: env" in folder.log_file.read_text()


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
