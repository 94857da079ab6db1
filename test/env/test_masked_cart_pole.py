import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.utils.env_checker import check_env

from slm_lab.env import make_env
from slm_lab.env.make import time_limit
from slm_lab.env.masked_cart_pole import MaskedCartPole
from slm_lab.spec.schema import EnvSpec


def test_it_keeps_gymnasium_s_rules():
    check_env(MaskedCartPole(), skip_render_check=True)


def test_it_is_cart_pole_of_which_position_and_angle_are_seen_as_shares_of_their_limits():
    masked, whole = MaskedCartPole(), CartPoleEnv()
    views = [(masked.reset(seed=3)[0], whole.reset(seed=3)[0])]
    for step in range(8):
        (seen, *told), (obs, *expected) = masked.step(step % 2), whole.step(step % 2)
        assert told == expected
        views.append((seen, obs))
    limits = 2.4, 12 * np.pi / 180  # of position in units of length, and angle in radians
    np.testing.assert_allclose([seen * limits for seen, _ in views], [obs[[0, 2]] for _, obs in views], rtol=1e-6)


def test_its_episodes_are_cut_at_500_steps_where_the_spec_does_not_say_otherwise():
    assert time_limit(make_env(EnvSpec(name="MaskedCartPole-v1", max_frame=1))) == 500
    assert time_limit(make_env(EnvSpec(name="MaskedCartPole-v1", max_frame=1, max_t=7))) == 7
