import gymnasium
import numpy as np
import pytest

from slm_lab.env import VectorEnv, make_env
from slm_lab.env.wrappers import frame_stack
from slm_lab.errors import SpecError
from slm_lab.spec.schema import EnvSpec


def spec(name="toy/Countdown-v0", **keys):
    return EnvSpec(name=name, max_frame=1, **keys)


def refusal(*arguments, **keys):
    with pytest.raises(SpecError) as caught:
        make_env(spec(*arguments, **keys))
    return str(caught.value)


@pytest.mark.parametrize(
    ("op", "stacked"),
    [
        ("stack", [[[0], [0], [0]], [[0], [0], [1]], [[0], [1], [2]]]),
        ("concat", [[[0, 0, 0]], [[0, 0, 1]], [[0, 1, 2]]]),
    ],
)
def test_the_last_frames_come_together_and_the_first_is_repeated(op, stacked):
    env = make_env(spec(frame_op=op, frame_op_len=3, kwargs={"length": 5}))
    seen = [env.reset(seed=0)[0], env.step(0)[0], env.step(0)[0]]
    steps = [obs[..., 1::2].tolist() if op == "concat" else obs[:, 1:].tolist() for obs in seen]
    assert [np.ravel(frame).tolist() for frame in steps] == [np.ravel(frame).tolist() for frame in stacked]
    assert seen[0] in env.observation_space


def test_frames_that_a_memory_can_hold_once_are_told():
    assert frame_stack(spec(frame_op="stack", frame_op_len=3)) == 3
    assert frame_stack(spec(frame_op="concat")) == frame_stack(spec()) == 1
    assert frame_stack(spec(frame_op="stack", normalize_obs=True)) == 1


def test_the_share_of_time_that_is_gone_is_the_last_number():
    env = make_env(spec(time_aware=True, max_t=4, kwargs={"length": 9}))
    assert env.reset(seed=0)[0][-1] == 0
    assert env.step(0)[0][-1] == 0.25


def test_time_without_a_limit_is_refused():
    assert refusal(time_aware=True).startswith("env.time_aware: does not go with this env")


def test_images_are_shrunk_and_nothing_else_is():
    pytest.importorskip("cv2")

    class Picture(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (8, 6, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

    gymnasium.register("toy/Picture-v0", Picture)
    assert make_env(spec("toy/Picture-v0", image_downsize=[4, 3])).observation_space.shape == (4, 3, 3)
    assert "its observations are no images" in refusal(image_downsize=[4, 3])


def test_wrappers_by_name_with_their_keywords():
    name = "gymnasium.wrappers.TransformReward"
    env = make_env(spec(wrappers=[{"name": "gymnasium.wrappers.TimeLimit", "max_episode_steps": 1}]))
    env.reset(seed=0)
    assert env.step(0)[3]
    assert refusal(wrappers=[{"name": "gymnasium.wrappers.TimeLimi", "max_episode_steps": 1}]).endswith(
        "did you mean 'gymnasium.wrappers.TimeLimit'?"
    )
    assert refusal(wrappers=[{"name": name}]).startswith("env.wrappers[0]: does not go with this env: ")


def test_text_in_a_dict_is_left_out_with_a_note():
    pytest.importorskip("minigrid")
    notes = []
    env = make_env(spec("MiniGrid-Empty-5x5-v0"), notes=notes)
    assert set(env.observation_space.spaces) == {"direction", "image"}
    assert notes == ["env 'MiniGrid-Empty-5x5-v0': its text (mission) is left out of the observations"]


def test_a_class_in_a_users_own_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text(
        "import gymnasium\n"
        "class Mine(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Discrete(3, start=2)\n"
        "    action_space = gymnasium.spaces.Discrete(2, start=5)\n"
        "    def __init__(self, first=2):\n"
        "        self.first = first\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return self.first, {}\n"
        "    def step(self, action):\n"
        "        return action - 3, 1.0, False, False, {}\n"
    )
    envs = VectorEnv(spec("my_env.py:Mine", num_envs=2, kwargs={"first": 4}), 0)
    assert envs.reset().tolist() == [4, 4]
    assert envs.step(np.array([5, 6])).obs.tolist() == [2, 3]
    assert refusal("my_env.py:Min") == "env.name: 'my_env.py:Min': no class 'Min' in my_env.py; did you mean 'Mine'?"
    assert "there is no file other.py" in refusal("other.py:Mine")
    (tmp_path / "wrong.py").write_text("import no_such_package")
    assert "wrong.py cannot be imported: ModuleNotFoundError: No module named" in refusal("wrong.py:Mine")


@pytest.mark.parametrize("key", ["normalize_obs", "normalize_reward"])
def test_wrappers_with_statistics_of_their_own_are_refused(key):
    name = {"normalize_obs": "NormalizeObservation", "normalize_reward": "NormalizeReward"}[key]
    told = refusal(wrappers=[{"name": "TimeAwareObservation"}, {"name": name}], max_t=3)
    assert told.startswith(f"env.wrappers[1]: '{name}' goes by statistics")
    assert told.endswith(f"set env.{key} instead")
