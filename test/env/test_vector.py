import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.env import VectorEnv
from slm_lab.env.arrays import make_scatter, policy_space
from slm_lab.env.make import EnvFault
from slm_lab.errors import RunError
from slm_lab.spec.schema import EnvSpec


def vector(name="CartPole-v1", num_envs=2, seed=7, stream="train", max_t=None, **kwargs):
    return VectorEnv(
        EnvSpec(name=name, num_envs=num_envs, max_t=max_t, max_frame=1, kwargs=kwargs), seed, stream=stream
    )


def draw(envs, rng):
    """(N, ...) random actions for an env with one action array; out of bounds at times."""
    if hasattr(envs.action_space, "n"):
        return rng.integers(0, envs.action_space.n, envs.num_envs)
    return rng.normal(size=(envs.num_envs, *envs.action_space.shape)).astype(np.float32)


def play(envs, steps, rng):
    """Every number that comes out, as one list of bytes."""
    return [array.tobytes() for _ in range(steps) for array in envs.step(draw(envs, rng))[:5]]


def first_observations(envs, episodes):
    """(episodes, N, 2) of Countdown: the first observation of each episode."""
    firsts = [envs.reset()]
    while len(firsts) < episodes:
        step = envs.step(np.zeros(envs.num_envs, np.int64))
        if step.terminated.all():
            firsts.append(step.obs)
    return np.stack(firsts)


def test_same_seed_same_episodes():
    first, second = vector(), vector()
    assert first.reset().tobytes() == second.reset().tobytes()
    assert play(first, 200, np.random.default_rng(0)) == play(second, 200, np.random.default_rng(0))


@pytest.mark.parametrize("other", [{"stream": "eval"}, {"seed": 8}])
def test_other_streams_and_other_seeds_have_other_episodes(other):
    ours = first_observations(vector("toy/Countdown-v0", num_envs=3), 4)[..., 0]
    theirs = first_observations(vector("toy/Countdown-v0", num_envs=3, **other), 4)[..., 0]
    assert (ours == theirs).sum() <= 1  # 12 pairs of draws from 999 numbers


def test_every_episode_of_every_sub_env_is_another():
    drawn = first_observations(vector("toy/Countdown-v0", num_envs=3), 5)[..., 0]
    assert len(np.unique(drawn)) >= 14  # 15 draws from 999 numbers


def test_the_episodes_of_a_sub_env_do_not_depend_on_how_many_there_are():
    two = first_observations(vector("toy/Countdown-v0", num_envs=2), 4)
    five = first_observations(vector("toy/Countdown-v0", num_envs=5), 4)
    assert np.array_equal(two, five[:, :2])


@pytest.mark.parametrize("truncates", [False, True])
def test_an_episodes_last_step_gives_its_final_observation_and_the_next_ones_first(truncates):
    envs = vector("toy/Countdown-v0", num_envs=1, length=3, truncates=truncates)
    first = envs.reset()
    steps = [envs.step(np.array([0])) for _ in range(4)]
    drawn, drawn_next = first[0, 0], steps[2].obs[0, 0]
    assert drawn != drawn_next
    assert [step.next_obs[0].tolist() for step in steps] == [[drawn, 1], [drawn, 2], [drawn, 3], [drawn_next, 1]]
    assert [step.obs[0].tolist() for step in steps] == [[drawn, 1], [drawn, 2], [drawn_next, 0], [drawn_next, 1]]
    assert [step.reward[0] for step in steps] == [1, 2, 4, 1]
    ended = [False, False, True, False]
    assert [bool(step.terminated[0]) for step in steps] == ([False] * 4 if truncates else ended)
    assert [bool(step.truncated[0]) for step in steps] == (ended if truncates else [False] * 4)


def test_a_sub_env_that_goes_on_is_not_disturbed_by_one_that_ends():
    envs = vector("toy/Countdown-v0", num_envs=2, length=3)
    envs.reset()
    envs.envs[1].unwrapped.length = 5
    steps = [envs.step(np.zeros(2, np.int64)) for _ in range(5)]
    assert [step.terminated.tolist() for step in steps[2:]] == [[True, False], [False, False], [False, True]]
    assert [step.next_obs[1, 1] for step in steps] == [1, 2, 3, 4, 5]
    assert steps[2].obs[1].tolist() == steps[2].next_obs[1].tolist()


def test_max_t_cuts_an_episode_as_truncated():
    envs = vector("toy/Countdown-v0", num_envs=1, max_t=2, length=3)
    envs.reset()
    steps = [envs.step(np.array([0])) for _ in range(4)]
    assert [bool(step.truncated[0]) for step in steps] == [False, True, False, True]
    assert not any(step.terminated[0] for step in steps)


def test_what_a_step_returned_is_not_changed_by_the_next():
    envs = vector("toy/Countdown-v0", num_envs=2)
    envs.reset()
    step = envs.step(np.zeros(2, np.int64))
    kept = [array.copy() for array in step[:5]]
    envs.step(np.zeros(2, np.int64))
    assert all(np.array_equal(array, copy) for array, copy in zip(step[:5], kept, strict=True))


def test_arrays_have_a_leading_env_axis_and_the_envs_dtypes():
    envs = vector(num_envs=3)
    step = envs.step(np.zeros(3, np.int64)) if envs.reset().shape == (3, 4) else None
    assert (step.obs.shape, step.obs.dtype) == ((3, 4), np.float32)
    assert [(array.shape, array.dtype) for array in step[2:5]] == [
        ((3,), np.float64),
        ((3,), np.bool_),
        ((3,), np.bool_),
    ]


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Taxi-v4"])
@pytest.mark.parametrize("steps", [0, 1, 137])
def test_a_new_vector_env_goes_on_from_a_saved_state_bit_for_bit(name, steps):
    envs = vector(name, num_envs=3, max_t=60)
    envs.reset()
    rng = np.random.default_rng(3)
    play(envs, steps, rng)
    state = envs.state_dict()
    other = vector(name, num_envs=3, max_t=60)
    other.load_state_dict(state)
    assert other.current_obs().tobytes() == envs.current_obs().tobytes()
    rngs = np.random.default_rng(4), np.random.default_rng(4)
    assert play(other, 80, rngs[0]) == play(envs, 80, rngs[1])


def test_a_state_saved_before_the_first_reset_starts_at_the_first_episode():
    envs, other = vector(), vector()
    other.load_state_dict(envs.state_dict())
    assert other.reset().tobytes() == envs.reset().tobytes()


def test_a_state_of_another_number_of_sub_envs_is_refused():
    with pytest.raises(RunError, match="holds 2 sub-envs, the spec asks for 3"):
        vector(num_envs=3).load_state_dict(vector(num_envs=2).state_dict())


def test_nested_actions_reach_the_env_and_nested_observations_come_back_by_dotted_keys():
    envs = vector("toy/Echo-v0", num_envs=2)
    assert set(envs.reset()) == {"move", "mode", "pair.0", "pair.1"}
    action = {
        "move": np.array([[0.5, -0.25], [2.0, -2.0]]),
        "mode": np.array([2, 1]),
        "pair.0": np.array([[3, 4], [0, 1]]),
        "pair.1": np.array([[1, 0, 1], [0, 0, 1]]),
    }
    obs = envs.step(action).obs
    assert obs["move"].tolist() == [[0.5, -0.25], [1, -1]]  # clipped
    assert all(obs[key].tolist() == action[key].tolist() for key in ("mode", "pair.0", "pair.1"))


def test_an_env_with_nested_actions_is_restored():
    envs, other = vector("toy/Echo-v0", num_envs=2), vector("toy/Echo-v0", num_envs=2)
    envs.reset()
    envs.step(
        {
            "move": np.array([[0.5, -0.25], [0.0, 1.0]]),
            "mode": np.array([2, 1]),
            "pair.0": np.array([[3, 4], [0, 1]]),
            "pair.1": np.ones((2, 3), np.int8),
        }
    )
    other.load_state_dict(envs.state_dict())
    ours, theirs = envs.current_obs(), other.current_obs()
    assert all(ours[key].tobytes() == theirs[key].tobytes() for key in ours)


def test_box_actions_are_clipped_and_taken_from_one_to_the_envs_bounds():
    envs = vector("toy/Line-v0", num_envs=2)
    assert (envs.action_space.low.tolist(), envs.action_space.high.tolist()) == ([-1, -1], [1, 1])
    envs.reset()
    action = np.array([[-9.0, -9.0], [9.0, 0.5]])
    assert envs.step(action).obs.tolist() == [[-1, 0], [1, 2.25]]  # the second bound is [0, 3]
    assert action.tolist() == [[-9, -9], [9, 0.5]]


def test_a_bound_that_is_not_there_is_no_bound():
    space = spaces.Box(np.array([-np.inf, 0, -4], np.float32), np.array([np.inf, np.inf, 4], np.float32))
    assert policy_space(space) == spaces.Box(
        np.array([-np.inf, 0, -1], np.float32), np.array([np.inf, np.inf, 1], np.float32)
    )
    (taken,) = make_scatter(space)(np.array([[-7.0, -7.0, 0.5]]))
    assert taken.tolist() == [-7, 0, 2]


@pytest.mark.parametrize("space", ["box", "multi_discrete", "multi_binary"])
def test_a_caller_may_reuse_its_action_array(space):
    envs, other = vector("toy/Line-v0", space=space), vector("toy/Line-v0", space=space)
    envs.reset()
    action = np.ones((2, 2), np.int64)
    envs.step(action)
    action[:] = 0
    other.load_state_dict(envs.state_dict())
    assert other.current_obs().tolist() == ([[1, 3], [1, 3]] if space == "box" else [[1, 1], [1, 1]])


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raises", "RuntimeError: the physics exploded"),
        ("observes NaN", "its observation is"),
        ("observes infinity", "its observation is"),
        ("rewards NaN", "its reward is nan"),
    ],
)
def test_an_env_that_goes_wrong_is_told_with_its_place(fault, told):
    envs = vector("toy/Faulty-v0", num_envs=2, fault=fault)
    envs.reset()
    envs.envs[0].unwrapped.fault = None
    for _ in range(2):
        envs.step(np.array([0, 1]))
    with pytest.raises(EnvFault, match=told) as caught:
        envs.step(np.array([0, 1]))
    assert "sub-env 1, episode 0" in str(caught.value)
    assert "action 1" in str(caught.value)


@pytest.mark.filterwarnings("ignore:overflow")
def test_large_but_finite_observations_pass():
    envs = vector("toy/Line-v0", num_envs=1)
    envs.reset()
    envs.envs[0].unwrapped.step = lambda action: (np.full(2, 3e38, np.float32), 0.0, False, False, {})
    assert np.isfinite(envs.step(np.zeros((1, 2))).obs).all()


def told_in_step(envs, obs=None, reward=0.0):
    envs.envs[0].unwrapped.step = lambda action: (obs, reward, False, False, {})
    envs._rows._steps[0] = envs.envs[0].unwrapped.step
    return envs.step(np.zeros(envs.num_envs, np.int64))


class Classes(gymnasium.Env):
    action_space = spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}


@pytest.mark.parametrize(
    ("space", "right", "wrong"),
    [
        (spaces.Discrete(5), (0, 4, np.int64(3)), (-1, 5, 7)),
        (spaces.Discrete(3, start=-4), (-4, -2), (-5, -1, 0)),
        (spaces.MultiDiscrete([2, 3]), ([0, 0], [1, 2]), ([-1, 0], [0, 3], [2, 0])),
    ],
)
def test_a_class_that_the_space_does_not_have_is_told(space, right, wrong):
    gymnasium.register("toy/Classes-v0", Classes)
    try:
        envs = vector("toy/Classes-v0", num_envs=1, space=space)
    finally:
        del gymnasium.registry["toy/Classes-v0"]
    envs.reset()
    for value in right:
        assert told_in_step(envs, value).obs[0].tolist() == np.asarray(value).tolist()
    for value in wrong:
        with pytest.raises(EnvFault, match=r"its observation is .*sub-env 0, episode 0"):
            told_in_step(envs, value)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array(1.0), np.array([1.0]), np.array([[1]])])
def test_a_reward_may_be_any_one_number(reward):
    envs = vector("toy/Countdown-v0", num_envs=2)
    obs = envs.reset()[0]
    step = told_in_step(envs, obs, reward)
    assert step.reward.tolist() == [1.0, 1.0]
    assert step.reward.dtype == np.float64


@pytest.mark.parametrize("reward", [None, "1", [1.0, 2.0], np.zeros(2), np.zeros(0), 1j, {}, [[1], [1, 2]]])
def test_a_reward_that_is_no_number_is_told(reward):
    envs = vector("toy/Countdown-v0", num_envs=2)
    obs = envs.reset()[0]
    with pytest.raises(EnvFault, match=r"its reward is .*, not a number .sub-env 0, episode 0"):
        told_in_step(envs, obs, reward)
