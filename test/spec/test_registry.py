import pytest

from slm_lab.spec import registry


@pytest.mark.parametrize("kind", registry.TABLES)
def test_every_name_leads_to_a_class_with_settings(kind):
    for name in registry.names(kind):
        assert registry.settings_of(kind, name).model_fields


def test_a_class_of_the_user_s_own_is_found_by_module_and_name(standin):
    assert registry.find("memory", "standin:M").Settings is registry.settings_of("memory", "standin:M")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("replay", "no memory named 'replay'; did you mean 'Replay'?"),
        ("PER", "no memory named 'PER'; did you mean 'PrioritizedReplay'?"),
        ("xyzzy", "no memory named 'xyzzy'; known: Replay, "),
        ("nowhere.at_all:Mine", "cannot import memory 'nowhere.at_all:Mine': ModuleNotFoundError"),
        ("standin:Mine", "cannot import memory 'standin:Mine': AttributeError"),
        (":", "no memory named ':'; one of your own is 'package.module:Class'"),
        (None, "no memory named 'None'; known: "),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(name, message):
    with pytest.raises(registry.UnknownName) as caught:
        registry.find("memory", name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("kind", registry.ELSEWHERE)
def test_what_others_call_it_is_no_name_here_and_leads_to_one(kind):
    assert not registry.ELSEWHERE[kind].keys() & set(registry.names(kind))
    assert set(registry.ELSEWHERE[kind].values()) <= set(registry.names(kind))


def test_only_an_algorithm_that_says_so_needs_no_memory():
    assert not registry.learns("Random")
    assert registry.learns("DQN")
    assert registry.learns("unknown")
