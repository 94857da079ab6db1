import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.agent.agent import Agent
from slm_lab.experiment import evaluate
from slm_lab.experiment.evaluate import Evaluator
from slm_lab.spec.schema import EnvSpec


class Countdown(gymnasium.Env):
    """An episode of 2 to 9 steps, drawn from its seed; each pays 1. It notes the seeds it was reset with."""

    observation_space, action_space = spaces.Box(0, 10, (1,)), spaces.Discrete(2)
    seeds = []  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Countdown.seeds.append(seed)
        self.left = int(self.np_random.integers(2, 10))
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


class Still:
    """An agent that always acts 0."""

    def first_carried(self, num_envs):
        return None

    def act(self, obs, frame, explore, carried):
        assert explore is False
        return np.zeros(len(obs), np.int64)


@pytest.fixture
def countdown():
    gymnasium.register("Countdown-v0", Countdown)
    Countdown.seeds.clear()
    yield EnvSpec(name="Countdown-v0", max_frame=1)
    del gymnasium.registry["Countdown-v0"]


def test_each_env_counts_its_first_episode_alone(countdown):
    evaluator = Evaluator(countdown, 6, seed=3)
    evaluation = evaluator.run(Still(), 100)
    lengths = [int(np.random.default_rng(seed).integers(2, 10)) for seed in Countdown.seeds[:6]]
    assert evaluation.lengths.tolist() == lengths == evaluation.returns.tolist()
    assert len(set(lengths)) > 1
    row = evaluation.row()
    assert (row["episodes"], row["return_min"], row["return_max"]) == (6, min(lengths), max(lengths))


def test_episodes_depend_on_seed_and_frame_alone(countdown):
    first, second = Evaluator(countdown, 6, seed=3), Evaluator(countdown, 6, seed=3)
    at_100 = first.run(Still(), 100).lengths.tolist()
    at_200 = first.run(Still(), 200).lengths.tolist()
    assert second.run(Still(), 200).lengths.tolist() == at_200 != at_100
    assert second.run(Still(), 100).lengths.tolist() == at_100
    assert Evaluator(countdown, 6, seed=4).run(Still(), 100).lengths.tolist() != at_100


@pytest.mark.parametrize(
    ("env", "limit"),
    [
        ({"name": "CliffWalking-v1"}, 10_000),
        ({"name": "CliffWalking-v1", "max_t": 7}, math.inf),
        ({"name": "CartPole-v1"}, math.inf),
    ],
)
def test_an_episode_is_cut_where_neither_env_nor_spec_sets_a_limit(env, limit):
    assert Evaluator(EnvSpec(**env, max_frame=1), 1, seed=0).limit == limit


def test_what_was_cut_is_told_with_its_remedy(countdown, monkeypatch):
    monkeypatch.setattr(evaluate, "STEPS_WITHOUT_LIMIT", 5)
    evaluation = Evaluator(countdown, 6, seed=3).run(Still(), 100)
    assert evaluation.lengths.max() == 5 > evaluation.lengths.min()
    assert evaluation.note == "Countdown-v0 sets no time limit: evaluation episodes end after 5 steps; set env.max_t"
    monkeypatch.setattr(evaluate, "STEPS_WITHOUT_LIMIT", 10)
    assert Evaluator(countdown, 6, seed=3).run(Still(), 100).note == ""


def test_one_that_is_asked_to_stop_says_nothing_and_can_be_done_again(countdown):
    evaluator, calls = Evaluator(countdown, 6, seed=3), iter([False, True])
    assert evaluator.run(Still(), 100, lambda: next(calls)) is None
    assert evaluator.run(Still(), 100).lengths.tolist() == Evaluator(countdown, 6, 3).run(Still(), 100).lengths.tolist()


def test_an_agent_that_acts_at_random_is_the_same_when_evaluated_again(make_spec):
    spec = make_spec("Random")
    evaluator = Evaluator(spec.env, 3, seed=0)
    space = evaluator.env.observation_space, evaluator.env.action_space
    once, again = Agent(spec, *space, 0), Agent(spec, *space, 0)
    again.act(np.zeros((2, 4), np.float32), 0)
    evaluator.run(again, 50)
    assert evaluator.run(once, 100).lengths.tolist() == evaluator.run(again, 100).lengths.tolist()
