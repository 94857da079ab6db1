import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.errors import InvalidRow
from slm_lab.experiment import dev
from slm_lab.experiment.session import Session


def verdicts(spec, folder, ear):
    checks = dev.Checks()
    Session(dev.shortened(spec), folder, ear, watch=checks.watch).run()
    return {verdict.name: verdict for verdict in checks.verdicts()}


def changed(spec, block, **keys):
    part = getattr(spec.agent, block).model_copy(update=keys)
    return spec.model_copy(update={"agent": spec.agent.model_copy(update={block: part})})


@pytest.mark.parametrize("name", ["DQN", "PPO", "Reinforce", "ActorCritic"])
def test_a_sound_spec_passes_all_checks(make_spec, make_folder, ear, name):
    found = verdicts(make_spec(name), make_folder(), ear)
    assert len(found) == 7
    assert all(verdict.ok for verdict in found.values()), found


def test_one_that_does_not_learn_has_less_to_check(make_spec, make_folder, ear):
    found = verdicts(make_spec("Random"), make_folder(), ear)
    assert list(found) == ["actions", "observations", "learning"]


def test_the_short_spec_learns_within_its_frames_whatever_the_start(make_spec):
    spec = changed(make_spec(env={"max_frame": 10**6}, max_session=4), "algorithm", training_start_step=50_000)
    short = dev.shortened(spec)
    assert (short.env.max_frame, short.agent.algorithm.training_start_step, short.meta.max_session) == (3000, 1500, 1)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_learning_rate_beyond_reason_is_told_by_its_loss(make_spec, make_folder, ear):
    spec = make_spec()
    optim = spec.agent.net.optim_spec.model_copy(update={"lr": 1e38})
    found = verdicts(changed(spec, "net", optim_spec=optim), make_folder(), ear)
    assert not found["loss"].ok
    assert "at learn step 2; try a lower lr" in found["loss"].text
    assert not found["gradients"].ok


def test_an_optimizer_that_changes_nothing_is_told(make_spec, make_folder, ear):
    spec = make_spec()
    optim = spec.agent.net.optim_spec.model_copy(update={"lr": 0.0})
    found = verdicts(changed(spec, "net", optim_spec=optim), make_folder(), ear)
    assert str(found["parameters"]).startswith("check parameters: optimizer 0 has changed nothing")


def test_a_row_that_does_not_fit_the_memory_is_told(make_spec, make_folder, ear):
    checks = dev.Checks()
    session = Session(make_spec(), make_folder(), ear, watch=checks.watch)
    obs = session.env.reset()
    action = session.agent.act(obs, 0)
    step = session.env.step(action)
    with pytest.raises(InvalidRow):
        session.agent.remember(obs, action, step._replace(reward=np.array([np.nan])))
    assert "reward" in checks.faults["memory"]
    with pytest.raises(InvalidRow):
        session.agent.remember(obs, action + 5.5, step)
    assert "outside Discrete(2)" in checks.faults["actions"]
    session._close()


def test_rows_inside_a_space_are_counted_through_its_parts():
    box, coin = spaces.Box(-1, 1, (2,)), spaces.Discrete(2, start=1)
    assert dev.count_inside(np.array([[0, 1], [0, 1.5], [np.nan, 0]]), box) == 1
    assert dev.count_inside(np.array([0, 1, 2, 3]), coin) == 2
    nested = spaces.Dict({"box": box, "more": spaces.Tuple([coin])})
    rows = {"box": np.array([[0, 0], [0, 2], [0, 0]]), "more.0": np.array([1, 1, 3])}
    assert dev.count_inside(rows, nested) == 1
