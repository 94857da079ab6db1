import numpy as np
import pytest

from slm_lab.env import VectorEnv, make_env
from slm_lab.env.native import refuse
from slm_lab.env.wrappers import frame_stack, reward_scale
from slm_lab.errors import SpecError
from slm_lab.spec.schema import EnvSpec

pytest.importorskip("ale_py")
NOOP, FIRE = 0, 1


def spec(name="BreakoutNoFrameskip-v4", **keys):
    return EnvSpec(name=name, max_frame=1, **keys)


def test_observations_are_four_grey_images_of_bytes():
    env = make_env(spec("ALE/Pong-v5"))
    assert env.observation_space.shape == (4, 84, 84)
    assert env.observation_space.dtype == np.uint8
    assert make_env(spec("ALE/Pong-v5", frame_op_len=1, image_downsize=[42, 40])).observation_space.shape == (42, 40)
    assert make_env(spec("ALE/Pong-v5", kwargs={"obs_type": "ram"})).observation_space.shape == (128,)


@pytest.mark.parametrize(("name", "sticky"), [("ALE/Pong-v5", 0.25), ("PongNoFrameskip-v4", 0.0)])
def test_actions_stick_as_the_id_says_and_four_frames_pass_for_each(name, sticky):
    env = make_env(spec(name))
    ale = env.unwrapped.ale
    env.reset(seed=0)
    frame = ale.getEpisodeFrameNumber()
    env.step(NOOP)
    assert ale.getEpisodeFrameNumber() == frame + 4
    assert ale.getFloat("repeat_action_probability") == sticky


def test_no_ops_at_the_start_differ_from_seed_to_seed_and_are_thirty_at_most():
    env = make_env(spec("PongNoFrameskip-v4"), training=False)
    frames = []
    for seed in range(12):
        env.reset(seed=seed)
        frames.append(env.unwrapped.ale.getEpisodeFrameNumber())
    assert len(set(frames)) > 5
    assert max(frames) - min(frames) < 30


def lives_lost(env, steps):
    """(ended, goes on, lives before) of each step of a game in which nothing is done but serving."""
    found = []
    env.reset()
    ale = env.envs[0].unwrapped.ale
    for place in range(steps):
        before = ale.lives()
        step = env.step(np.array([FIRE if place % 4 == 0 else NOOP]))
        if ale.lives() != before or step.terminated[0]:
            found.append((bool(step.terminated[0]), step.goes_on is not None, before, step))
    return found


def test_a_lost_life_ends_an_episode_in_training_and_the_game_goes_on():
    env = VectorEnv(spec(), 3)
    found = lives_lost(env, 260)
    assert [(ended, on, lives) for ended, on, lives, _ in found[:5]] == [
        *((True, True, lives) for lives in (5, 4, 3, 2)),
        (True, False, 1),
    ]
    assert env.episode[0] >= 1
    step = found[0][3]
    assert (step.obs[0] == step.obs[0][0]).all()  # the new episode's stack repeats its first frame
    assert (step.next_obs[0] != step.next_obs[0][0]).any()


def test_in_evaluation_a_game_is_an_episode():
    found = lives_lost(VectorEnv(spec(), 3, training=False), 260)
    assert [(ended, lives) for ended, _, lives, _ in found[:5]] == [
        *((False, lives) for lives in (5, 4, 3, 2)),
        (True, 1),
    ]


def test_a_game_with_lost_lives_in_it_goes_on_from_a_saved_state():
    keys = {"num_envs": 2, "kwargs": {"repeat_action_probability": 0.25}}
    envs, other = VectorEnv(spec(**keys), 3), VectorEnv(spec(**keys), 3)
    envs.reset()
    rng = np.random.default_rng(0)
    lives = sum(int(envs.step(rng.integers(0, 4, 2)).goes_on is not None) for _ in range(90))
    assert lives >= 1
    other.load_state_dict(envs.state_dict())
    assert other.strayed == []
    for action in rng.integers(0, 4, (40, 2)):
        ours, theirs = envs.step(action), other.step(action)
        assert ours.obs.tobytes() == theirs.obs.tobytes()
        assert ours.terminated.tolist() == theirs.terminated.tolist()


def test_what_the_field_does_is_the_default_and_can_be_undone():
    make_env(spec())
    assert (frame_stack(spec()), reward_scale(spec())) == (4, "sign")
    assert (frame_stack(spec(frame_op_len=1)), reward_scale(spec(reward_scale=1.0))) == (1, 1.0)
    assert (frame_stack(spec("CartPole-v1")), reward_scale(spec("CartPole-v1"))) == (1, 1.0)


def test_max_t_counts_actions_not_frames():
    env = make_env(spec(max_t=3), training=False)
    env.reset(seed=0)
    assert [env.step(NOOP)[3] for _ in range(3)] == [False, False, True]


def test_the_native_vector_env_gives_true_final_observations_and_counts_games():
    envs = VectorEnv(spec(vectorization="native", num_envs=3), 3)
    obs = envs.reset()
    rng = np.random.default_rng(0)
    lives = games = 0
    for _ in range(200):
        step = envs.step(rng.integers(0, 4, 3))
        ended = step.terminated | step.truncated
        assert (step.next_obs[:, :3] == obs[:, 1:]).all()  # its newest frame is of this step, whatever ended
        over = ended if step.goes_on is None else ended & ~step.goes_on
        assert (step.obs[~over] == step.next_obs[~over]).all()
        assert all((step.obs[index] != step.next_obs[index]).any() for index in over.nonzero()[0])
        lives, games = lives + ended.sum() - over.sum(), games + over.sum()
        obs = step.obs
    assert lives >= 4 * games > 0
    assert sum(envs.episode) == games
    envs.close()


def test_the_native_vector_env_goes_on_from_a_saved_state():
    keys = {"vectorization": "native", "num_envs": 3, "kwargs": {"repeat_action_probability": 0.25}}
    envs, other = VectorEnv(spec(**keys), 3), VectorEnv(spec(**keys), 3)
    envs.reset()
    rng = np.random.default_rng(0)
    while max(envs.episode) == 0:
        envs.step(rng.integers(0, 4, 3))
    for _ in range(7):
        envs.step(rng.integers(0, 4, 3))
    other.load_state_dict(envs.state_dict())
    assert other.strayed == []
    for action in rng.integers(0, 4, (40, 3)):
        ours, theirs = envs.step(action), other.step(action)
        assert ours.obs.tobytes() == theirs.obs.tobytes()
        assert ours.terminated.tolist() == theirs.terminated.tolist()


@pytest.mark.parametrize("keys", [{"name": "CartPole-v1"}, {"max_t": 5}, {"frame_op": "concat"}])
def test_native_is_refused_where_it_cannot_be_exact_or_lacks_a_key(keys):
    with pytest.raises(SpecError, match="native"):
        VectorEnv(spec(**keys, vectorization="native", num_envs=2), 0)


@pytest.mark.parametrize("frames", [[2, 5], 0, 2.5, True])
@pytest.mark.parametrize("way", ["sync", "native"])
def test_frames_to_skip_that_are_no_number_of_frames_are_refused(frames, way):
    with pytest.raises(SpecError, match=r"env\.kwargs\.frameskip: .*one whole number of frames"):
        VectorEnv(spec(vectorization=way, num_envs=2, kwargs={"frameskip": frames}), 3)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"kwargs": {"mode": 12}}, r"env\.kwargs\.mode: not with vectorization 'native'"),
        ({"frame_op_len": 1}, r"env\.frame_op_len: 1: vectorization 'native' always stacks"),
    ],
)
def test_what_the_native_vector_env_cannot_do_is_refused(keys, told):
    with pytest.raises(SpecError, match=told):
        refuse(spec(vectorization="native", **keys))
    given = {"frameskip": 2, "repeat_action_probability": 0.1, "full_action_space": True}
    refuse(spec(vectorization="native", kwargs=given))
