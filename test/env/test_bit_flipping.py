import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from slm_lab.env import VectorEnv, goal_functions, make_env
from slm_lab.env.bit_flipping import BitFlipping
from slm_lab.spec.schema import EnvSpec


@pytest.mark.parametrize("flat", [True, False])
def test_it_keeps_gymnasium_s_rules(flat):
    check_env(BitFlipping(bits=4, flat=flat), skip_render_check=True)


def test_an_action_flips_a_bit_and_agreement_ends_the_episode():
    env = BitFlipping(bits=3)
    env.reset(seed=0)
    env.state, env.goal = np.array([0, 1, 0], np.int8), np.array([1, 1, 1], np.int8)
    obs, *rest = env.step(0)
    assert obs.tolist() == [1, 1, 0, 1, 1, 1]
    assert rest == [-1.0, False, False, {}]
    assert env.step(2)[1:] == (0.0, True, False, {})


def test_as_many_steps_as_bits_cut_an_episode_off():
    env = BitFlipping(bits=2)
    env.reset(seed=0)
    env.state, env.goal = np.array([0, 0], np.int8), np.array([1, 1], np.int8)
    assert env.step(0)[2:4] == (False, False)
    assert env.step(0)[2:4] == (False, True)


def test_no_episode_begins_at_its_goal():
    env = BitFlipping(bits=1)
    for seed in range(10):
        obs, _ = env.reset(seed=seed)
        assert obs[0] != obs[1]


def test_goals_are_judged_many_at_once():
    spec = EnvSpec(name="BitFlipping-v0", max_frame=10)
    reward, terminated = goal_functions(make_env(spec), spec)
    achieved, desired = np.array([[0, 1], [1, 1]]), np.array([[0, 1], [0, 1]])
    assert reward(achieved, desired, [{}, {}]).tolist() == [0, -1]
    assert terminated(achieved, desired, [{}, {}]).tolist() == [True, False]


def test_an_env_without_goals_has_no_goal_functions():
    assert VectorEnv(EnvSpec(name="CartPole-v1", max_frame=10), seed=0).goal_functions == (None, None)
