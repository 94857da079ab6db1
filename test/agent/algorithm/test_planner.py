"""Plans found where the best one is known."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.algorithm.planner import PLANNERS, best, cross_entropy, make_plans, shifted

REACH = spaces.Box(np.array([0, -4], np.float32), np.array([2, 4], np.float32))
THREE = spaces.Discrete(3, start=5)
KEYS = SimpleNamespace(candidates=200, elites=20, iterations=5)


def rng(seed=0):
    return np.random.default_rng(seed)


def nothing(plans, envs=2, horizon=3):
    return torch.zeros(envs, horizon, plans.units)


@pytest.mark.parametrize(("planner", "near"), [("cem", 0.1), ("random_shooting", 0.5)])
def test_a_double_integrator_is_pushed_to_where_it_should_be(planner, near):
    """From rest, two pushes u0, u1 in [-1, 1] lead to 2 u0 + u1 with speed u0 + u1: 1/2 and 0 need 1/2, -1/2."""
    plans = make_plans(spaces.Box(-1, 1, (1,), np.float32))

    def returns(candidates):
        first, second = candidates[..., 0].unbind(-1)
        return -((2 * first + second - 0.5) ** 2) - (first + second) ** 2

    plan = PLANNERS[planner](plans, returns, nothing(plans, 1, 2), KEYS, rng())
    assert plan.flatten().tolist() == pytest.approx([0.5, -0.5], abs=near)


@pytest.mark.parametrize("planner", PLANNERS)
def test_each_env_gets_its_own_best_sequence_of_discrete_actions(planner):
    plans, wanted = make_plans(THREE), torch.tensor([[0, 2, 1], [1, 1, 0]])

    def returns(candidates):
        return (candidates.argmax(-1) == wanted.unsqueeze(1)).float().sum(-1)

    plan = PLANNERS[planner](plans, returns, nothing(plans), KEYS, rng())
    assert plan.argmax(-1).tolist() == wanted.tolist()
    assert plans.action(plan[:, 0].numpy()).tolist() == [5, 6]


@pytest.mark.parametrize("space", [REACH, THREE])
def test_candidates_are_of_the_space_and_not_all_alike(space):
    plans = make_plans(space)
    drawn = plans.draw(nothing(plans), plans.first_spread(nothing(plans)), 50, rng())
    evenly = plans.draw_evenly(nothing(plans), 50, rng())
    for candidates in (drawn, evenly):
        assert candidates.shape == (2, 50, 3, plans.units)
        actions = plans.action(candidates[0, :, 0].numpy())
        assert all(space.contains(action) for action in actions)
        assert len(np.unique(actions, axis=0)) > 1


def test_box_actions_are_scaled_to_their_bounds():
    plans = make_plans(REACH)
    assert plans.action(np.array([[-1, 0.5]], np.float32)).tolist() == [[0, 2]]
    assert plans.encode(torch.tensor([0.0, -1.0])).tolist() == [1, -4]


def test_an_action_that_no_elite_has_is_still_drawn_now_and_then():
    plans = make_plans(THREE)
    plan, spread = plans.fit(torch.eye(3)[:1].expand(1, 5, 4, 3))  # all elites: the first action
    drawn = plans.draw(plan, spread, 2000, rng()).mean((0, 1, 2))
    assert drawn.tolist() == pytest.approx([0.95 + 0.05 / 3, 0.05 / 3, 0.05 / 3], abs=0.01)


def test_a_plan_is_the_mean_of_the_elites_and_their_deviation_has_a_floor():
    plans = make_plans(REACH)
    elite = torch.tensor([[[[0.0, 0.5]], [[1.0, 0.5]]]])  # one env, two elites, one step
    mean, spread = plans.fit(elite)
    assert mean.tolist() == [[[0.5, 0.5]]]
    assert spread.flatten().tolist() == pytest.approx([0.5, 0.05])


def test_what_has_no_finite_return_is_never_among_the_best():
    candidates = torch.arange(4.0).view(1, 4, 1, 1)
    returns = torch.tensor([[torch.nan, 1.0, torch.inf, -1.0]])
    assert best(candidates, returns, 2).flatten().tolist() == [1, 3]


def test_a_warm_start_is_shifted_by_one_step():
    plan = torch.tensor([[[1.0], [2.0], [3.0]]])
    assert shifted(plan).flatten().tolist() == [2, 3, 0]


def test_candidates_begin_around_the_plan_that_is_given():
    plans = make_plans(spaces.Box(-1, 1, (1,), np.float32))
    seen = []

    def returns(candidates):
        seen.append(candidates.mean().item())
        return candidates.sum((2, 3))

    cross_entropy(plans, returns, torch.full((1, 3, 1), -0.8), KEYS, rng())
    assert seen[0] == pytest.approx(-0.7, abs=0.1)  # cut off at -1
    assert seen[-1] > 0.5
