"""Two learners of one weight that starts at 2 and sees 1 and 3: the mean of w * obs has the gradient 2."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from slm_lab.agent.agent import Agent, has_compiler, make_algorithm
from slm_lab.agent.learner import Learner, frozen
from slm_lab.agent.net.hidden import BatchNorm
from slm_lab.agent.net.mlp import MLPNetSettings
from slm_lab.errors import RunError
from slm_lab.spec import registry
from slm_lab.types import Batch

BATCH = Batch(torch.tensor([[1.0], [3.0]]), None, torch.zeros(2), None, None)
PLANE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
MODES = pytest.mark.parametrize("synced", [False, True], ids=["shared", "synced"])


def weight(value=2.0):
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, value)
    return net


def mean_loss(net, target, batch, scalars):
    return net(batch.obs).mean(), {}


def nothing_to_learn(net, target, batch, scalars):
    return 0 * net(batch.obs).mean(), {}


def make(common=None, net=None, loss=mean_loss, *, has_target=False, compiled=False, **keys):
    settings = MLPNetSettings(**{"optim_spec": {"name": "SGD", "lr": 0.5}, **keys})
    return Learner(net or weight(), loss, settings, has_target=has_target, compiled=compiled, common=common)


def pair(synced, **keys):
    """Two learners of what a third one began with; their own beginnings are others."""
    common = make(**keys).share(synced=synced)
    return [make(common, **{"net": weight(7.0), **keys}) for _ in range(2)]


def test_shared_learners_have_one_net():
    first, second = pair(False)
    assert first.net.weight.item() == second.net.weight.item() == 2
    first.step(BATCH, 1)
    assert first.net.weight.item() == second.net.weight.item() == 2 - 1
    second.step(BATCH, 1)
    assert first.net.weight.item() == 2 - 1 - 1


def test_a_synced_learner_keeps_its_net_until_its_own_step_and_then_has_the_changes_of_all():
    first, second = pair(True)
    second.loss = nothing_to_learn
    first.step(BATCH, 1)
    first.step(BATCH, 1)
    assert (first.net.weight.item(), second.net.weight.item()) == (0, 2)
    second.step(BATCH, 1)  # a gradient of zero
    assert second.net.weight.item() == 0


def test_a_synced_gradient_is_that_of_the_learners_own_net():
    def square(net, target, batch, scalars):  # its gradient is w
        return 0.5 * net(torch.ones(1, 1)).square().mean(), {}

    first, second = pair(True, loss=square)
    first.step(BATCH, 1)
    assert first.net.weight.item() == 2 - 0.5 * 2
    second.step(BATCH, 1)  # of the net at 2, applied to the one at 1
    assert second.net.weight.item() == 1 - 0.5 * 2


@MODES
def test_another_net_that_sees_the_parameters_sees_the_others_changes(synced):
    first, second = pair(synced)
    seen = frozen(second.net)
    first.step(BATCH, 1)
    assert seen.weight.item() == second.net.weight.item()
    second.step(BATCH, 1)
    assert seen.weight.item() == second.net.weight.item() == 0


@MODES
@pytest.mark.parametrize("name", ["GlobalAdam", "GlobalRMSprop"])
def test_global_optimizers_take_two_learners_steps_as_one_learner_would(synced, name):
    alone = make(optim_spec={"name": name.removeprefix("Global"), "lr": 0.5})
    first, second = pair(synced, optim_spec={"name": name, "lr": 0.5})
    for learner in (first, second, first):
        learner.step(BATCH, 1)
        alone.step(BATCH, 1)
    assert first.net.weight.item() == alone.net.weight.item()
    assert first.groups[0].optimizer.state[first.groups[0].flat]["step"] == 3


def test_other_optimizers_have_states_of_their_own():
    alone = make(optim_spec={"name": "RMSprop", "lr": 0.5})
    first, second = pair(False, optim_spec={"name": "RMSprop", "lr": 0.5})
    for learner in (first, second):
        learner.step(BATCH, 1)
        alone.step(BATCH, 1)
    # the first step of RMSprop is lr * g / sqrt(0.01 * g^2) = 5; the second of one learner is shorter
    assert first.net.weight.item() == pytest.approx(2 - 5 - 5)
    assert alone.net.weight.item() > -8
    assert first.groups[0].optimizer.state[first.groups[0].flat]["step"] == 1


@MODES
def test_the_target_is_one_and_follows_once_in_so_many_frames_of_all(synced):
    first, second = pair(synced, has_target=True, update_type="replace", update_frequency=4)
    seen = []
    for learner, frame in ((first, 2), (first, 4), (second, 3), (second, 5), (first, 6), (second, 8)):
        learner.step(BATCH, frame)
        seen.append(first.target.weight.item())
    # the weight goes 1, 0, -1, ...: `first` passes frame 4, and `second` comes later; then `second` passes 8
    assert seen == [2, 0, 0, 0, 0, -4]
    assert second.target.weight.item() == -4


def normed(value=2.0):
    return nn.Sequential(BatchNorm(1), weight(value))


@MODES
def test_running_means_take_in_the_batches_of_all(synced):
    alone = make(net=normed())
    common = make(net=normed()).share(synced=synced)
    first, second = (make(common, net=normed(7.0)) for _ in range(2))
    for learner in (first, second, first):
        learner.step(BATCH, 1)
        alone.step(BATCH, 1)
    assert first.net[0].running_mean.item() == alone.net[0].running_mean.item() > 0
    assert (second.net[0].running_mean.item() == first.net[0].running_mean.item()) is not synced


@MODES
def test_a_learner_alone_with_common_parameters_learns_what_it_would_without(synced):
    keys = {"has_target": True, "optim_spec": {"name": "GlobalAdam", "lr": 0.1}, "polyak_coef": 0.1}
    alone = make(net=normed(), **keys)
    other = make(make(net=normed(), **keys).share(synced=synced), net=normed(7.0), **keys)
    for frame in range(5):
        alone.step(BATCH, frame)
        other.step(BATCH, frame)
    assert repr(other.state_dict()) == repr(alone.state_dict())


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on the PATH, which torch.compile needs")
@pytest.mark.parametrize(("synced", "name"), [(False, "GlobalAdam"), (True, "GlobalAdam"), (True, "SGD")])
def test_a_compiled_step_changes_the_common_parameters_as_the_eager_one_does(synced, name):
    keys = {"has_target": True, "optim_spec": {"name": name, "lr": 0.1}}
    common = make(**keys).share(synced=synced)
    eager, compiled = make(**keys), make(common, net=weight(7.0), compiled=True, **keys)
    other = make(common, net=weight(7.0), **keys)
    for learner in (compiled, other, compiled):
        learner.step(BATCH, 1)
        eager.step(BATCH, 1)
    assert compiled.net.weight.item() == pytest.approx(eager.net.weight.item(), rel=1e-5)
    assert compiled.groups[0].flat.item() == pytest.approx(eager.net.weight.item(), rel=1e-5)
    assert compiled.target.weight.item() == pytest.approx(eager.target.weight.item(), rel=1e-5)


# state


@MODES
def test_loading_a_learner_leaves_what_is_common_as_it_is(synced):
    first, second = pair(synced, has_target=True, optim_spec={"name": "GlobalAdam", "lr": 0.1})
    first.step(BATCH, 1)
    tree = first.state_dict()
    for _ in range(3):
        first.step(BATCH, 1)
    now = first.net.weight.item(), first.target.weight.item()
    assert tree["parameters"][0].item() > now[0]  # the tree is a copy
    first.load_state_dict(tree)
    assert (first.net.weight.item(), first.target.weight.item()) == now
    assert first.opt_step == 1
    assert first.groups[0].optimizer.state[first.groups[0].flat]["step"] == 4
    second.step(BATCH, 1)
    assert second.groups[0].flat.item() < now[0]


def test_what_is_shared_is_what_the_learner_has_come_to():
    keys = {"has_target": True, "optim_spec": {"name": "GlobalAdam", "lr": 0.1}}
    old = make(**keys)
    old.step(BATCH, 1)
    go_on = make(old.share(synced=True), net=weight(7.0), **keys)
    for learner in (old, go_on):
        learner.step(BATCH, 2)
    assert go_on.net.weight.item() == old.net.weight.item()
    assert go_on.target.weight.item() == old.target.weight.item()


# agents


def agents(lab, name, synced, **spec):
    """Two agents that train what a third began with."""
    spec = lab.spec(name, meta_={"max_session": 2, "distributed": "synced" if synced else "shared"}, **spec)
    common = make_algorithm(spec, PLANE, lab.action_space(name), 0).share(synced=synced)
    return [Agent(spec, PLANE, lab.action_space(name), seed, common=common) for seed in (1, 2)]


NAMES = ["DQN", "C51", "SARSA", "Reinforce", "ActorCritic", "PPO", "SIL", "SAC", "CrossQ", "TD3"]


@pytest.mark.parametrize("name", NAMES)
def test_all_that_an_agent_learns_the_other_has_too(lab, name):
    algorithm = {"time_horizon": 8} if name == "PPO" else {}
    first, second = agents(lab, name, False, algorithm_=algorithm, net_={"shared": False})
    before = policy(second)
    lab.Life(seed=3).go_on(first, 40)
    assert first.algorithm.opt_step > 0 == second.algorithm.opt_step
    for one, other in zip(first.algorithm.learners, second.algorithm.learners, strict=True):
        for mine, yours in zip(one.state_dict()["parameters"], other.state_dict()["parameters"], strict=True):
            assert torch.equal(mine, yours)
    assert not torch.equal(before, policy(second))
    obs = lab.Life(seed=4).obs
    assert (first.act(obs, 40, explore=False) == second.act(obs, 40, explore=False)).all()


def policy(agent):
    return agent.algorithm.policy_state()["parameters"][0].clone()


def test_a_synced_agent_acts_as_it_did_until_it_learns(lab):
    first, second = agents(lab, "PPO", True, algorithm_={"time_horizon": 8})
    before = policy(second)
    lab.Life(seed=3).go_on(first, 8)
    assert first.algorithm.opt_step > 0
    assert torch.equal(before, policy(second))
    lab.Life(seed=4).go_on(second, 8)
    assert torch.equal(second.algorithm.learner.groups[0].own, first.algorithm.learner.groups[0].flat)


def test_schedules_and_the_start_of_training_count_the_frames_of_all_sessions(lab):
    explore = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "end_step": 200}
    keys = {"algorithm_": {"explore_var_spec": explore, "training_start_step": 21}, "net_": {}}
    agent, _ = agents(lab, "DQN", False, **keys)
    assert agent.report(50)["explore_var"] == 0.5
    life = lab.Life()
    life.go_on(agent, 5)  # 10 frames here, 20 in all
    assert agent.algorithm.opt_step == 0
    life.go_on(agent, 1)
    assert agent.algorithm.opt_step > 0


def test_a_learner_that_is_not_handed_what_is_common_is_told(lab, monkeypatch):
    class Selfish(registry.find("algorithm", "DQN")):
        def __init__(self, settings, net_settings, site):
            super().__init__(settings, net_settings, site)
            self.learner.common = None

    monkeypatch.setattr("slm_lab.agent.algorithm.dqn.DQN", Selfish)
    with pytest.raises(RunError, match=r"DQN does not hand site.common to its learner: it cannot be distributed"):
        agents(lab, "DQN", False)
