import sys
import warnings

import gymnasium
import pytest
from gymnasium import spaces

from slm_lab.env import make_env
from slm_lab.errors import SpecError
from slm_lab.spec.schema import EnvSpec


def refusal(name, **kwargs):
    with pytest.raises(SpecError) as caught:
        make_env(EnvSpec(name=name, max_frame=1, kwargs=kwargs))
    (mistake,) = caught.value.mistakes
    assert "\n" not in str(mistake)
    return str(mistake)


def test_an_env_is_made_with_the_keywords_given():
    env = make_env(EnvSpec(name="toy/Countdown-v0", max_frame=1, kwargs={"length": 7}))
    assert env.unwrapped.length == 7


def test_max_t_takes_the_place_of_the_envs_own_limit():
    assert make_env(EnvSpec(name="CartPole-v1", max_frame=1)).spec.max_episode_steps == 500
    assert make_env(EnvSpec(name="CartPole-v1", max_frame=1, max_t=9)).spec.max_episode_steps == 9


def test_an_env_that_knows_no_render_mode_is_made_without_one():
    assert make_env(EnvSpec(name="toy/Countdown-v0", max_frame=1)).render_mode is None


def test_a_typing_error_is_told_with_the_nearest_id():
    assert refusal("CartPol-v1") == "env.name: gymnasium has no env 'CartPol-v1'; did you mean 'CartPole-v1'?"


@pytest.mark.parametrize(("name", "newest"), [("CartPole-v9", "CartPole-v1"), ("CartPole", "CartPole-v1")])
def test_a_version_that_is_not_there_is_told_with_the_newest(name, newest, recwarn):
    assert refusal(name) == f"env.name: gymnasium has no '{name}'; the newest version here is '{newest}'"
    assert not recwarn


def test_what_gymnasium_warns_of_is_noted(monkeypatch):
    class Warning(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def __init__(self):
            warnings.warn("this env is strange", stacklevel=1)

    gymnasium.register("toy/Warning-v0", Warning)
    notes = []
    make_env(EnvSpec(name="toy/Warning-v0", max_frame=1), notes=notes)
    assert notes == ["this env is strange"]


@pytest.mark.parametrize("name", ["garbage id!", ""])
def test_an_id_that_cannot_be_one_is_refused(name):
    assert refusal(name).startswith(f"env.name: '{name}' cannot be made")


def test_a_missing_package_is_told_with_the_extra_that_brings_it():
    assert refusal("toy/Needy-v0").endswith("install it with: pip install -e '.[mujoco]'")


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_atari_ids_name_their_extra_where_ale_is_not_installed(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.setattr(
        gymnasium.envs.registration,
        "registry",
        {key: value for key, value in gymnasium.registry.items() if "Pong" not in key},
    )
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    assert refusal(name).endswith("install it with: pip install -e '.[atari]'")


def test_a_module_that_cannot_be_imported_is_told():
    assert "No module named 'no_such_lab'" in refusal("no_such_lab:Foo-v0")


def test_an_unknown_keyword_is_told_without_gymnasiums_own_noise():
    told = refusal("CartPole-v1", gravitty=3)
    assert told.startswith("env.kwargs: 'CartPole-v1' cannot be made with {'gravitty': 3}: TypeError")
    assert told.endswith("got an unexpected keyword argument 'gravitty'")


def test_a_value_that_the_env_refuses_in_its_own_way_is_told():
    assert refusal("FrozenLake-v1", map_name="9x9").endswith("KeyError: '9x9'")


def test_keywords_that_are_the_labs_business_are_sent_to_their_place():
    assert refusal("CartPole-v1", max_episode_steps=3) == (
        "env.kwargs.max_episode_steps: not for here: the longest episode is env.max_t"
    )


def test_observations_without_a_fixed_shape_are_refused():
    assert refusal("toy/Wordy-v0") == (
        "env.name: 'toy/Wordy-v0' has observations of type Text, which have no fixed shape; "
        "one of env.wrappers may turn them into such as have"
    )


NOTHING, NUMBERS = spaces.Box(0, 1, (0,)), spaces.Box(0, 1, (2,))


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (spaces.Dict({}), "observations without any part"),
        (NOTHING, "observations of shape (0,): there is nothing in them"),
        (spaces.Dict({"a": NUMBERS, "b": NOTHING}), "observations of shape (0,) in 'b'"),
        (spaces.Dict({"a.b": NUMBERS}), "observations with a dot in a key of a Dict"),
        (spaces.Tuple((spaces.Dict({"a.b": NUMBERS}),)), "observations with a dot in a key of a Dict"),
        (spaces.Discrete(10**12), "observations of 1,000,000,000,000 classes"),
        (spaces.Dict({"a": spaces.MultiDiscrete([2**20, 2])}), "observations of 1,048,578 classes in 'a'"),
    ],
)
def test_a_space_that_no_net_can_take_is_refused_with_the_reason(space, told):
    class Odd(gymnasium.Env):
        observation_space, action_space = space, spaces.Discrete(2)

    gymnasium.register("toy/Odd-v0", Odd)
    try:
        assert f"'toy/Odd-v0' has {told}" in refusal("toy/Odd-v0")
    finally:
        del gymnasium.registry["toy/Odd-v0"]


def test_a_constructor_that_exits_is_told():
    class Exiting(gymnasium.Env):
        def __init__(self):
            raise SystemExit("bye")

    gymnasium.register("toy/Exiting-v0", Exiting)
    assert "cannot be made with {}: SystemExit: bye" in refusal("toy/Exiting-v0")
