import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.env import VectorEnv, goal_functions, make_env
from slm_lab.env.scaling import Moments, ObsScaling, RewardScaling, Statistics
from slm_lab.spec.schema import EnvSpec


def vector(name="CartPole-v1", num_envs=2, statistics=None, training=True, **keys):
    return VectorEnv(
        EnvSpec(name=name, num_envs=num_envs, max_frame=1, **keys), 7, statistics=statistics, training=training
    )


def play(envs, steps, rng):
    return [envs.step(rng.integers(0, 2, envs.num_envs)) for _ in range(steps)]


def test_moments_of_batches_are_those_of_all_rows():
    rows = np.random.default_rng(0).normal(3, 2, (12, 2))
    moments = Moments((2,))
    for start, stop in ((0, 1), (1, 5), (5, 12)):
        moments.add(rows[start:stop])
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    np.testing.assert_allclose(moments.variance, rows.var(0))
    np.testing.assert_allclose(moments.normalized(rows).std(0), 1, rtol=1e-6)


def test_observations_are_normalized_by_all_that_training_has_seen_and_then_cut():
    raw, envs = vector(), vector(normalize_obs=True, clip_obs=1.5)
    seen = [raw.reset()]
    envs.reset()
    rng, same = np.random.default_rng(1), np.random.default_rng(1)
    for step, scaled in zip(play(raw, 40, rng), play(envs, 40, same), strict=True):
        seen.append(step.obs)
        rows = np.concatenate(seen)
        expected = ((step.next_obs - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)).clip(-1.5, 1.5)
        np.testing.assert_allclose(scaled.next_obs, expected, rtol=1e-4, atol=1e-5)
    assert scaled.obs.dtype == envs.observation_space.dtype == np.float32
    assert envs.observation_space.high.tolist() == [1.5] * 4


def test_evaluation_uses_the_statistics_of_training_and_does_not_change_them():
    envs = vector(normalize_obs=True)
    envs.reset()
    play(envs, 30, np.random.default_rng(0))
    before = envs.statistics.parts[""].count
    evaluation = vector(normalize_obs=True, statistics=envs.statistics, training=False)
    obs = evaluation.reset()
    play(evaluation, 30, np.random.default_rng(0))
    assert envs.statistics.parts[""].count == before == 62
    raw = vector(training=False).reset()
    np.testing.assert_allclose(obs, envs.statistics.parts[""].normalized(raw), rtol=1e-5)


def test_statistics_and_returns_under_way_go_on_from_a_saved_state():
    envs, other = (vector(normalize_obs=True, normalize_reward=True) for _ in range(2))
    envs.reset()
    play(envs, 37, np.random.default_rng(0))
    other.load_state_dict(envs.state_dict())
    assert other.current_obs().tobytes() == envs.current_obs().tobytes()
    ours, theirs = (play(env, 20, np.random.default_rng(5)) for env in (envs, other))
    assert [step.obs.tobytes() + step.reward.tobytes() for step in ours] == [
        step.obs.tobytes() + step.reward.tobytes() for step in theirs
    ]


def test_rewards_are_scaled_to_learn_from_and_the_envs_own_are_told_beside():
    envs = vector("Pendulum-v1", reward_scale=0.5, clip_reward=2.0)
    envs.reset()
    step = envs.step(np.zeros((2, 1)))
    np.testing.assert_allclose(step.reward, (step.score / 2).clip(-2, 2))
    assert (step.score < -1e-3).all()
    evaluation = vector("Pendulum-v1", reward_scale=0.5, training=False)
    evaluation.reset()
    assert evaluation.step(np.zeros((2, 1))).reward.tolist() == step.score.tolist()


def test_the_sign_of_a_reward():
    assert RewardScaling("sign", False, None, 1.0, 3)(np.array([-7.0, 0, 0.5]), np.zeros(3, bool)).tolist() == [
        -1,
        0,
        1,
    ]


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return():
    scaling = RewardScaling(1.0, True, None, 0.5, 1)
    scaling(np.array([1.0]), np.array([False]))  # returns: 1
    scaled = scaling(np.array([2.0]), np.array([True]))  # 0.5 + 2, of which and 1 the deviation is 0.75
    np.testing.assert_allclose(scaled, 2 / 0.75)
    scaled = scaling(np.array([4.0]), np.array([False]))  # an episode's end: 4 alone
    np.testing.assert_allclose(scaled, 4 / np.std([1, 2.5, 4]))


def test_parts_that_are_no_numbers_stay_as_they_are():
    space = spaces.Dict(place=spaces.Box(-1, 1, (2,), np.float64), kind=spaces.Discrete(3))
    statistics = Statistics(space)
    statistics.add({"place": np.array([[1.0, 3], [3, 3]]), "kind": np.array([0, 1])})
    scaled = ObsScaling(space, statistics, None)({"place": np.array([[3.0, 3]]), "kind": np.array([2])})
    np.testing.assert_allclose(scaled["place"], [[1, 0]])
    assert scaled["kind"].tolist() == [2]


def test_rewards_of_other_goals_are_scaled_alike():
    spec = EnvSpec(name="BitFlipping-v0", max_frame=1, reward_scale=3.0)
    reward, _ = goal_functions(make_env(spec), spec)
    assert reward(np.array([[0, 1], [1, 1]]), np.array([[0, 1], [0, 1]]), [{}, {}]).tolist() == [0, -3]


@pytest.mark.parametrize("keys", [{"normalize_obs": True}, {"normalize_reward": True}])
def test_no_goal_can_be_judged_that_the_env_does_not_know(keys):
    spec = EnvSpec(name="BitFlipping-v0", max_frame=1, **keys)
    assert goal_functions(make_env(spec), spec) == (None, None)
