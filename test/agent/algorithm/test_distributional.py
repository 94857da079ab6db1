"""Two actions; the net is a table whose row s holds the parts of state s, action after action."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.algorithm.distributional import project, quantile_loss
from slm_lab.agent.net.dueling import DuelingMLPNet
from slm_lab.types import Batch

ATOMS = torch.tensor([0.0, 2.0, 4.0])
SETTINGS = {"QRDQN": {"num_quantiles": 2}, "C51": {"num_atoms": 3, "v_min": 0.0, "v_max": 4.0}}


def tensor(*values):
    return torch.tensor(values)


def batch(weight=(1.0, 1.0)):
    """A row that goes on and one that terminated, both with action 1; gamma is one half."""
    return Batch(
        obs=tensor(0, 0),
        action=tensor(1, 1),
        reward=tensor(1.0, 2.0),
        next_obs=tensor(1, 1),
        discount=tensor(0.5, 0.0),
        weight=torch.tensor(weight),
    )


# projection


@pytest.mark.parametrize(
    ("reward", "discount", "chances", "expected"),
    [
        (0.0, 1.0, [0.25, 0.5, 0.25], [0.25, 0.5, 0.25]),  # nothing moves
        (1.0, 1.0, [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]),  # 1 lies between 0 and 2
        (0.5, 1.0, [0.0, 1.0, 0.0], [0.0, 0.75, 0.25]),  # 2.5 is nearer to 2
        (1.0, 0.5, [0.25, 0.5, 0.25], [0.125, 0.75, 0.125]),  # to 1, 2 and 3
        (3.0, 0.0, [0.25, 0.5, 0.25], [0.0, 0.5, 0.5]),  # after a terminated row all is the reward
        (9.0, 1.0, [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]),  # beyond the last atom
        (-9.0, 1.0, [0.25, 0.5, 0.25], [1.0, 0.0, 0.0]),
    ],
)
def test_projection_by_hand(reward, discount, chances, expected):
    assert project(tensor(reward), tensor(discount), torch.tensor([chances]), ATOMS).tolist() == [expected]


def test_projection_keeps_the_sum_and_within_the_atoms_the_mean():
    generator = torch.Generator().manual_seed(0)
    chances = torch.rand(64, 51, generator=generator).softmax(-1)
    atoms = torch.linspace(-10, 10, 51)
    reward, discount = torch.rand(64, generator=generator), torch.full((64,), 0.9)
    projected = project(reward, discount, chances, atoms)
    torch.testing.assert_close(projected.sum(-1), torch.ones(64))
    torch.testing.assert_close(projected @ atoms, reward + 0.9 * (chances @ atoms), rtol=1e-4, atol=1e-4)


# quantile loss


@pytest.mark.parametrize(
    ("kappa", "expected"),
    [
        # quantiles 0 and 4 at 1/4 and 3/4; errors to the sample 1 are 1 and -3: weights 1/4 and 1/4
        (0.0, 0.25 * 1 + 0.25 * 3),
        (1.0, 0.25 * 0.5 + 0.25 * 2.5),
        (2.0, 0.25 * 0.25 + 0.25 * 2.0),
    ],
)
def test_quantile_loss_by_hand(kappa, expected):
    assert quantile_loss(tensor([0.0, 4.0]), tensor([1.0]), kappa).item() == pytest.approx(expected)
    twice = quantile_loss(tensor([0.0, 4.0]), tensor([1.0, 1.0]), kappa)  # a mean over the samples
    assert twice.item() == pytest.approx(expected)


def test_quantile_loss_is_least_at_the_quantiles_of_the_samples():
    samples = torch.arange(1000.0).unsqueeze(0)
    quantiles = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.SGD([quantiles], lr=500.0)
    for _ in range(200):
        optimizer.zero_grad()
        quantile_loss(quantiles, samples, 0.0).sum().backward()
        optimizer.step()
    np.testing.assert_allclose(quantiles.detach()[0], [125, 375, 625, 875], atol=2)


# losses


def loss_of(agent, net, target, rows):
    net = torch.tensor(net, requires_grad=True)
    target = torch.tensor(target)
    loss, info = agent.algorithm.loss(lambda obs: net[obs], lambda obs: target[obs], rows, None)
    loss.backward()
    return loss.item(), info["errors"].tolist(), net.grad


@pytest.mark.parametrize(("double", "following"), [(False, [6.0, 10.0]), (True, [2.0, 4.0])])
def test_qrdqn_by_hand(lab, double, following):
    """The target net likes action 1 of state 1, the net action 0."""
    agent = lab.agent("QRDQN", algorithm_={**SETTINGS["QRDQN"], "kappa": 0.0, "double": double})
    net = [[0.0, 0.0, 1.0, 3.0], [9.0, 9.0, 0.0, 0.0]]
    target = [[0.0, 0.0, 0.0, 0.0], [2.0, 4.0, 6.0, 10.0]]
    loss, errors, grad = loss_of(agent, net, target, batch(weight=(3.0, 1.0)))
    wanted = [1 + value / 2 for value in following]
    on = sum(abs(slope - (w < q)) * abs(w - q) for q, slope in ((1, 0.25), (3, 0.75)) for w in wanted) / 2
    over = 0.25 * 1 + 0.25 * 1  # quantiles 1 and 3 to the reward 2
    assert loss == pytest.approx((3 * on + over) / 2)
    assert errors == pytest.approx([sum(wanted) / 2 - 2, 0])
    assert not grad[1].any()  # nothing flows through the next state
    assert not grad[0, :2].any()  # nor into the action that was not taken


@pytest.mark.parametrize(("double", "following"), [(False, 1), (True, 0)])
def test_c51_by_hand(lab, double, following):
    agent = lab.agent("C51", algorithm_={**SETTINGS["C51"], "double": double})
    sure = math.log(1e30)
    # state 0, action 1: probabilities 1/4, 1/2, 1/4. State 1: sure returns 2 and 4 by the target, 4 and 2 by the net
    here = [0.0, 0.0, 0.0, 0.0, math.log(2.0), 0.0]
    low_high, high_low = [0.0, sure, 0.0, 0.0, 0.0, sure], [0.0, 0.0, sure, 0.0, sure, 0.0]
    loss, errors, grad = loss_of(agent, [here, high_low], [here, low_high], batch(weight=(3.0, 1.0)))
    # wanted: 1 + 4/2 = 3, half of it each for 2 and 4; or 1 + 2/2 = 2; and the terminated row's reward 2
    on = [math.log(2), (math.log(2) + math.log(4)) / 2][following]
    assert loss == pytest.approx((3 * on + math.log(2)) / 2)
    assert errors == pytest.approx([[math.log(2), on - math.log(2)][following], math.log(2)], abs=1e-6)
    chances = torch.tensor([0.25, 0.5, 0.25])
    wanted = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]][following])
    expected = (3 * (chances - wanted) + chances - torch.tensor([0.0, 1.0, 0.0])) / 2
    torch.testing.assert_close(grad[0, 3:], expected)
    assert not grad[1].any()


# acting


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("net", ["MLPNet", "DuelingMLPNet"])
def test_acting_is_on_the_mean(lab, name, net):
    agent = lab.agent(name, algorithm_=SETTINGS[name], net_={"type": net}, action_space=spaces.Discrete(2, start=3))
    obs = lab.Life(32).obs
    with torch.no_grad():
        spread = agent.algorithm.spread(agent.algorithm.learner.net(torch.from_numpy(obs)))
    mean = spread.mean(-1) if name == "QRDQN" else spread.softmax(-1) @ ATOMS
    np.testing.assert_allclose(agent.algorithm.values(obs), mean.numpy(), rtol=1e-4, atol=1e-5)
    assert (agent.act(obs, 0, explore=False) == mean.argmax(-1).numpy() + 3).all()


def test_a_dueling_net_has_a_value_for_each_part(lab):
    agent = lab.agent("QRDQN", algorithm_=SETTINGS["QRDQN"], net_={"type": "DuelingMLPNet"})
    net = agent.algorithm.learner.net
    assert isinstance(net, DuelingMLPNet)
    assert (net.heads["q"].value.out_features, net.heads["q"].advantage.out_features) == (2, 4)


def test_atoms_in_the_wrong_order_are_refused(lab):
    with pytest.raises(ValueError, match=r"v_min 5\.0 must lie below v_max 5\.0"):
        lab.spec("C51", algorithm_={"v_min": 5.0, "v_max": 5.0})


@pytest.mark.parametrize("name", ["DQN", "DoubleDQN", *SETTINGS])
def test_prioritized_n_step_and_dueling_go_together(lab, name):
    keys = {"algorithm_": SETTINGS.get(name, {}), "net_": {"type": "DuelingMLPNet"}}
    agent = lab.agent(name, memory="PrioritizedReplay", memory_={"n_step": 3}, **keys)
    lab.Life().go_on(agent, 40)
    assert agent.algorithm.opt_step > 0
    assert np.isfinite(agent.algorithm.report(80)["loss"])
    rows = agent.memory.sample(64)
    assert rows.steps.max() == 3
    assert len(rows.weight.unique()) > 2  # priorities follow the errors
