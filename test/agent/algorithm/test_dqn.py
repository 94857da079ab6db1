"""Q values from a table instead of a net: row s holds the values of state s."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn.functional import mse_loss, smooth_l1_loss

from slm_lab.types import Batch

NET = torch.tensor([[1.0, 2.0], [4.0, 3.0]])
TARGET = torch.tensor([[0.0, 0.0], [6.0, 10.0]])


def batch(action=(0, 1, 0)):
    """A row that goes on, one that terminated, and one over two steps that weighs double; gamma is one half."""
    return Batch(
        obs=torch.tensor([0, 0, 0]),
        action=torch.tensor(action),
        reward=torch.tensor([1.0, 2.0, 4.0]),
        next_obs=torch.tensor([1, 1, 1]),
        discount=torch.tensor([0.5, 0.0, 0.25]),
        weight=torch.tensor([1.0, 1.0, 2.0]),
    )


def loss_of(agent, rows, target=TARGET, loss_function=mse_loss):
    net = NET.clone().requires_grad_()
    loss, info = agent.algorithm.loss(lambda obs: net[obs], lambda obs: target[obs], rows, loss_function)
    loss.backward()
    return loss.item(), info["errors"].tolist(), net.grad.tolist()


# Q(s, a) is 1, 2 and 1. What is wanted: r + discount * V(next state).
NEXT_VALUE = [
    ("VanillaDQN", NET, 4),  # the learner hands it the net itself: max(4, 3)
    ("DQN", TARGET, 10),  # max(6, 10)
    ("DoubleDQN", TARGET, 6),  # the net likes action 0, for which the target net says 6
]


@pytest.mark.parametrize(("name", "target", "value"), NEXT_VALUE)
def test_errors_loss_and_gradient_by_hand(lab, name, target, value):
    loss, errors, grad = loss_of(lab.agent(name), batch(), target)
    first, last = 1 + value / 2 - 1, 4 + value / 4 - 1  # what is wanted less Q; the terminated row has no error
    assert errors == [first, 0, last]
    assert loss == (first**2 + 2 * last**2) / 3
    # only Q(0, 0) is pulled, by -2 * error of both rows; nothing flows through the next state
    assert grad == [[pytest.approx(-2 * (first + 2 * last) / 3), 0], [0, 0]]


def test_errors_are_absolute(lab):
    rows = batch()
    rows.reward = torch.tensor([-9.0, -9.0, -9.0])
    assert loss_of(lab.agent("DQN"), rows)[1] == [5, 11, 7.5]


def test_the_loss_is_the_one_that_the_spec_names(lab):
    loss, errors, _ = loss_of(lab.agent("DQN"), batch(), loss_function=smooth_l1_loss)
    assert loss == pytest.approx((errors[0] - 0.5 + 2 * (errors[2] - 0.5)) / 3)
    agent = lab.agent("DQN", net_={"loss_spec": {"name": "L1Loss"}, "hid_layers": []})
    rows = batch()
    rows.obs = rows.next_obs = torch.zeros(3, 2)
    agent.learn_one = agent.algorithm.learner.step(rows, 0)
    report = agent.algorithm.learner.report()
    assert report["loss"] == pytest.approx((agent.learn_one * rows.weight).mean().item())


def test_actions_count_from_the_start_of_the_space(lab):
    space = spaces.Discrete(2, start=5)
    shifted = lab.agent("DQN", action_space=space)
    plain = lab.agent("DQN")
    assert loss_of(shifted, batch(action=(5, 6, 5))) == loss_of(plain, batch())
    obs = lab.Life(16).obs
    for explore in (True, False):
        actions = [agent.act(obs, 5000, explore) for agent in (shifted, plain)]
        assert (actions[0] - 5).tolist() == actions[1].tolist()


def test_a_truncated_row_is_bootstrapped_and_a_terminated_one_is_not(lab):
    agent = lab.agent("DQN", num_envs=1, algorithm_={"gamma": 0.5, "training_start_step": 100})
    obs = np.zeros((1, 2), np.float32)
    for terminated, truncated in ((True, False), (False, True), (False, False)):
        agent.memory.add(obs, [0], [1.0], [terminated], [truncated], obs)
    discounts = agent.memory.all().discount.tolist()
    assert discounts == [0.0, 0.5, 0.5]


def test_batches_and_updates_of_a_round_are_counted_as_told(lab):
    agent = lab.agent("DQN", algorithm_={"training_iter": 3, "training_batch_iter": 2})
    drawn, told = [], []
    sample, update = agent.memory.sample, agent.memory.update_priorities
    agent.memory.sample = lambda: drawn.append(1) or sample()
    agent.memory.update_priorities = lambda ids, errors: told.append(len(errors)) or update(ids, errors)
    lab.Life().go_on(agent, 4)  # eight rows: a batch, and so the first two rounds
    assert (len(drawn), told, agent.algorithm.opt_step) == (6, [8] * 6, 12)


def test_exploration_follows_its_schedule(lab):
    spec = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "end_step": 1000}
    agent = lab.agent("DQN", algorithm_={"explore_var_spec": spec})
    obs = np.repeat(lab.Life(1).obs, 1000, 0)
    best = agent.act(obs[:1], 0, explore=False)[0]
    assert 420 < (agent.act(obs, 0) == best).sum() < 580  # at random: a half, five deviations
    assert 670 < (agent.act(obs, 500) == best).sum() < 830
    assert (agent.act(obs, 1000) == best).all()
    assert agent.algorithm.report(500) == {"lr": 0.001, "explore_var": 0.5}


def test_without_a_target_net_the_next_value_is_that_of_the_net_after_each_step(lab):
    agent = lab.agent("VanillaDQN")
    assert agent.algorithm.learner.target is agent.algorithm.learner.net
    assert agent.algorithm.state_dict()["learner"]["targets"] == []


def test_continuous_actions_are_refused(lab):
    agent = lab.agent("DoubleDQN").algorithm
    mistakes = agent.check(agent.settings, spaces.Box(-1, 1))
    assert [str(mistake) for mistake in mistakes] == [
        "agent.algorithm.name: DoubleDQN needs Discrete actions; the env's are Box"
    ]
