"""Q values from a table instead of a net: row s holds the values of state s. Gamma is one half."""

import numpy as np
import pytest
import torch

from slm_lab.agent.algorithm.policy import VALUE_POLICIES
from slm_lab.agent.algorithm.sarsa import PROBABILITIES
from slm_lab.types import Batch

Q = torch.tensor([[8.0, 16.0], [32.0, 64.0], [4.0, 12.0]])
HALF = {"name": "no_decay", "start_val": 0.5}


def make(lab, **keys):
    agent = lab.agent("SARSA", algorithm_={"gamma": 0.5, "explore_var_spec": HALF, **keys}, num_envs=1)
    agent.algorithm.learner.net = lambda obs: Q[obs.long().squeeze(-1)]
    return agent.algorithm


def rows(states, actions, rewards, next_states, discount, end):
    def column(values):
        return torch.tensor(values, dtype=torch.float32)

    return Batch(
        obs=column(states).unsqueeze(-1),
        action=torch.tensor(actions),
        reward=column(rewards),
        next_obs=column(next_states).unsqueeze(-1),
        discount=column(discount),
        end=torch.tensor(end),
    )


def targets(algorithm, batch, frame=0):
    return algorithm.add_targets(batch, frame).extras["target"].tolist()


def test_the_target_is_the_value_of_the_action_taken_next(lab):
    """Not of the best one: in state 1 action 0 was taken, worth 32."""
    batch = rows([0, 1, 2], [1, 0, 1], [1, 2, 4], [1, 2, 0], [0.5, 0.5, 0.0], [False, False, True])
    assert targets(make(lab), batch) == [1 + 32 / 2, 2 + 12 / 2, 4]


def test_nothing_follows_a_terminated_row_even_where_rows_of_another_episode_do(lab):
    batch = rows([0, 1], [0, 0], [1, 2], [1, 2], [0.0, 0.0], [True, True])
    assert targets(make(lab), batch) == [1, 2]


def test_a_truncated_row_is_followed_by_the_expected_value_of_its_own_next_obs(lab):
    """State 2 with epsilon one half: 3/4 of 12 and 1/4 of 4. The next row begins another episode."""
    batch = rows([0, 1], [0, 0], [1, 2], [2, 2], [0.5, 0.0], [True, True])
    assert targets(make(lab), batch) == [1 + 10 / 2, 2]


def test_the_last_row_held_is_followed_by_the_expected_value_at_that_frame(lab):
    batch = rows([0, 0], [0, 1], [1, 2], [0, 1], [0.5, 0.5], [False, True])
    down = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "end_step": 100}
    algorithm = make(lab, explore_var_spec=down)
    for frame, value in ((0, 48), (50, 56), (100, 64)):  # the mean of 32 and 64, a half of each, the best
        assert targets(algorithm, batch, frame) == [1 + 16 / 2, 2 + value / 2]


def test_with_lambda_targets_are_mixed_over_the_rows_to_the_end(lab):
    batch = rows([0, 0, 1], [1, 1, 1], [1, 2, 4], [0, 1, 2], [0.5, 0.5, 0.0], [False, False, True])
    assert targets(make(lab, lam=1.0), batch) == [1 + 2 / 2 + 4 / 4, 2 + 4 / 2, 4]
    # lambda one half: r + discount * (half of the next value and half of the next target)
    assert targets(make(lab, lam=0.5), batch) == [1 + (16 + 19) / 4, 2 + (64 + 4) / 4, 4]


def test_targets_follow_the_ends_that_the_memory_tells(lab):
    """All is state 1. Env 0 terminates with its second row, env 1 is truncated with its third; both then go on."""
    agent = lab.agent("SARSA", num_envs=2, algorithm_={"gamma": 0.5, "explore_var_spec": HALF})
    agent.algorithm.learner.net = lambda obs: Q[obs[:, 0].long()]
    obs = np.ones((2, 2), np.float32)
    for terminated, truncated in (([0, 0], [0, 0]), ([1, 0], [0, 0]), ([0, 0], [0, 1]), ([0, 0], [0, 0])):
        agent.memory.add(obs, [0, 1], [1.0, 2.0], np.array(terminated, bool), np.array(truncated, bool), obs)
    # 32 and 64 follow env by env; where none is known: 3/4 of 64 and 1/4 of 32
    assert targets(agent.algorithm, agent.memory.drain()) == [17, 1, 17, 1 + 28, 34, 34, 2 + 28, 2 + 28]


def test_the_loss_pulls_only_the_value_of_the_action_taken(lab):
    algorithm = make(lab)
    batch = rows([0, 1], [1, 0], [0, 0], [0, 0], [0, 0], [True, True])
    batch.extras["target"] = torch.tensor([14.0, 38.0])
    table = Q.clone().requires_grad_()
    loss, _ = algorithm.loss(lambda obs: table[obs.long().squeeze(-1)], None, batch, torch.nn.functional.mse_loss)
    loss.backward()
    assert loss.item() == (2**2 + 6**2) / 2
    assert table.grad.tolist() == [[0, 2], [-6, 0], [0, 0]]


@pytest.mark.parametrize("policy", PROBABILITIES)
def test_expected_values_count_actions_as_often_as_they_are_drawn(policy):
    values, draws = np.array([[1.0, 2.0, 0.0]], np.float32), 20_000
    chances = PROBABILITIES[policy](values, 0.6)[0]
    drawn = VALUE_POLICIES[policy](values.repeat(draws, 0), 0.6, np.random.default_rng(0))
    assert chances.sum() == pytest.approx(1)
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / draws, chances, atol=0.02)


def test_a_temperature_of_zero_is_greedy():
    assert PROBABILITIES["boltzmann"](np.array([[1.0, 2.0]], np.float32), 0.0).tolist() == [[0, 1]]
