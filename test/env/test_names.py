import sys

import gymnasium
import pytest

from slm_lab.env import make_env
from slm_lab.env.names import find_package, living, unknown
from slm_lab.errors import SpecError
from slm_lab.spec.schema import EnvSpec


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CartPole-v0", "CartPole-v1"),
        ("Pendulum-v0", "Pendulum-v1"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("Taxi-v2", "Taxi-v4"),
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("Hopper-v3", "Hopper-v5"),
        ("RoboschoolHalfCheetah-v1", "HalfCheetah-v5"),
        ("HalfCheetahBulletEnv-v0", "HalfCheetah-v5"),
        ("PongDeterministic-v4", "PongNoFrameskip-v4"),
    ],
)
def test_old_names_stand_for_the_envs_that_live_on_and_a_line_tells(old, new):
    name, note = living(old)
    assert name == new
    assert note.startswith(f"env '{old}' is '{new}' today")


@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v4", "CartPole-v9", "CartPole", "NoSuchThing-v0"])
def test_names_of_today_and_unknown_ones_stay(name):
    assert living(name) == (name, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [("FetchReach-v1", "FetchReach-v4"), ("HandReach-v0", "HandReach-v3"), ("FetchPush-v2", "FetchPush-v4")],
)
def test_robotics_that_need_mujoco_py_stand_for_the_ones_that_live_on(old, new):
    pytest.importorskip("gymnasium_robotics")
    find_package(old)
    assert living(old)[0] == new


@pytest.mark.parametrize("name", ["vizdoom-v0", "gridworld", "unity-3dball", "RoboschoolHumanoidFlagrun-v1"])
def test_what_has_no_successor_is_refused_with_the_reason(name):
    assert unknown(name).startswith(f"'{name}' has no successor: ")
    with pytest.raises(SpecError, match="has no successor"):
        make_env(EnvSpec(name=name, max_frame=1))


def test_an_old_name_is_made_as_the_living_env_with_a_note():
    notes = []
    env = make_env(EnvSpec(name="CartPole-v0", max_frame=1), notes=notes)
    assert env.spec.id == "CartPole-v1"
    assert notes == ["env 'CartPole-v0' is 'CartPole-v1' today; its episodes go on for up to 500 steps, not 200"]


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("FetchReach-v4", "gymnasium_robotics", "robotics"),
        ("ALE/Pong-v5", "ale_py", "atari"),
    ],
)
def test_a_package_that_is_not_installed_is_told_with_its_extra(name, package, extra, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    others = {
        key: value for key, value in gymnasium.registry.items() if key.rpartition("-")[0] != name.rpartition("-")[0]
    }
    monkeypatch.setattr(gymnasium, "registry", others)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", others)
    with pytest.raises(SpecError, match=rf"pip install -e '\.\[{extra}\]'"):
        make_env(EnvSpec(name=name, max_frame=1))


@pytest.mark.parametrize("name", ["Pong-v0", "Pong-v4", "TennisNoFrameskip-v4", "ALE/Tennis-v5"])
def test_games_of_atari_name_their_extra_where_ale_is_not_installed(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    others = {key: spec for key, spec in gymnasium.registry.items() if "ale_py" not in str(spec.entry_point)}
    monkeypatch.setattr(gymnasium, "registry", others)
    told = unknown(name)
    assert "pip install -e '.[atari]'" in told
    assert "Unity" not in told


def test_ids_of_a_module_are_suggested_with_it(tmp_path, monkeypatch):
    source = "import gymnasium\nclass My(gymnasium.Env): pass\ngymnasium.register('My-v0', My)\n"
    (tmp_path / "my_module_of_envs.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for wrong in ("My-v3", "Mi-v0"):
        with pytest.raises(SpecError, match=r"'my_module_of_envs:My-v0'"):
            make_env(EnvSpec(name=f"my_module_of_envs:{wrong}", max_frame=1))
    with pytest.raises(SpecError, match=r"no env 'my_module_of_envs:Pon-v0'$"):  # no other module's
        make_env(EnvSpec(name="my_module_of_envs:Pon-v0", max_frame=1))
    with pytest.raises(SpecError, match="has no observation_space"):
        make_env(EnvSpec(name="my_module_of_envs:My-v0", max_frame=1))
