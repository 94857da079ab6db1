"""Acting by plans: what is carried from step to step, what is random, what is saved."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.agent import check_agent
from slm_lab.agent.algorithm.recurrent import Carried
from slm_lab.env import VectorEnv
from slm_lab.errors import SpecError
from slm_lab.spec.schema import EnvSpec
from slm_lab.types import Step

PLANE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
PUSH = spaces.Box(-2, 2, (1,), np.float32)
OBS = np.zeros((2, 2), np.float32)


def agent_of(lab, **keys):
    return lab.agent("MPC", action_space=PUSH, algorithm_=keys)


def play(agent, steps, seed=0):
    """From an env whose state 0 moves by the action, and whose reward is minus its distance to 3."""
    obs = np.zeros((2, 2), np.float32)
    obs[:, 1] = np.random.default_rng(seed).normal(size=2)
    carried = agent.first_carried(2)
    for frame in range(0, 2 * steps, 2):
        action = agent.act(obs, frame, carried=carried)
        ends = np.full(2, frame % 20 == 18)
        next_obs = (obs + np.pad(action, ((0, 0), (0, 1)))).astype(np.float32)
        step = Step(next_obs, next_obs, -np.abs(next_obs[:, 0] - 3), np.zeros(2, bool), ends)
        agent.remember(obs, action, step, carried)
        agent.learn(frame + 2)
        obs = np.where(ends[:, None], np.float32(0), next_obs)
    return obs, carried


# acting


def test_the_rest_of_the_plan_is_carried_and_forgotten_where_an_episode_ended(lab):
    agent = agent_of(lab)
    plan = torch.tensor([[[0.1], [0.2], [0.3]], [[0.4], [0.5], [0.6]]])
    agent.algorithm.plan = lambda returns, start, settings, rng: plan
    carried = agent.first_carried(2)
    action = agent.act(OBS, 0, explore=False, carried=carried)
    assert action.tolist() == [[pytest.approx(0.2)], [pytest.approx(0.8)]]  # of bounds of 2
    np.testing.assert_allclose(carried.values, [[0.2, 0.3, 0], [0.5, 0.6, 0]])
    carried.begin_anew(np.array([False, True]))
    np.testing.assert_allclose(carried.values, [[0.2, 0.3, 0], [0, 0, 0]])
    starts = []
    agent.algorithm.plan = lambda returns, start, settings, rng: starts.append(start) or plan
    agent.act(OBS, 0, explore=False, carried=carried)
    assert starts[0].flatten().tolist() == pytest.approx([0.2, 0.3, 0, 0, 0, 0])


def test_random_shooting_carries_nothing(lab):
    assert agent_of(lab, planner="random_shooting").first_carried(2) is None
    assert agent_of(lab).first_carried(2).values.shape == (2, 3)


def test_evaluation_leaves_training_as_it_would_be_without_it(lab):
    agents = [agent_of(lab) for _ in range(2)]
    played = [play(agent, 20) for agent in agents]
    agents[1].act(np.ones((5, 2), np.float32), 40, explore=False, carried=agents[1].first_carried(5))
    actions = [agent.act(obs, 40, carried=carried) for agent, (obs, carried) in zip(agents, played, strict=True)]
    assert (actions[0] == actions[1]).all()


def test_training_acts_at_random_until_the_model_is_fitted(lab, monkeypatch):
    agent = agent_of(lab, training_start_step=30, training_frequency=20)
    agent.algorithm.plan = None  # would fail
    play(agent, 14)
    assert not agent.algorithm.dynamics.fitted
    agent.algorithm.plan = lambda returns, start, settings, rng: start
    play(agent, 15)
    assert agent.algorithm.dynamics.fitted


def test_returns_are_means_over_members_and_particles(lab, monkeypatch):
    agent = lab.agent("MPC", algorithm_={"particles": 3}, action_space=PUSH)
    shapes = []

    def told(net, obs, action, noise, gamma):
        shapes.append([tuple(part.shape) for part in (obs, action, noise)])
        assert torch.equal(noise.view(3, 2, 2, 3, 5, 2)[..., :1, :].expand(-1, -1, -1, -1, 5, -1).flatten(2, 4), noise)
        first = action.sum((0, 2))  # of each row
        return torch.stack([first, 3 * first])

    monkeypatch.setattr("slm_lab.agent.algorithm.mpc.rollout", told)
    candidates = torch.rand(2, 5, 3, 1)
    found = agent.algorithm.returns(torch.zeros(2, 2), candidates, np.random.default_rng(0))
    assert shapes == [[(30, 2), (3, 30, 1), (3, 2, 30, 2)]]
    torch.testing.assert_close(found, 2 * 2 * candidates.sum((2, 3)))  # bounds of 2; a mean of one and three times


def test_a_goal_in_a_simple_env_is_found_and_kept(lab):
    """Each step moves by at most 2, so that 3 is reached in two."""
    keys = {"horizon": 4, "candidates": 50, "elites": 5, "training_start_step": 60, "training_frequency": 60}
    net = {"members": 2, "hid_layers": [32], "optim_spec": {"name": "Adam", "lr": 0.01}}
    memory = {"epochs": 60, "batch_size": 32, "max_size": None}
    agent = lab.agent("MPC", action_space=PUSH, algorithm_={**keys, "model": net}, memory_=memory)
    play(agent, 60)
    obs, carried = np.zeros((2, 2), np.float32), agent.first_carried(2)
    for _ in range(4):
        obs[:, :1] += agent.act(obs, 120, explore=False, carried=carried)
    assert obs[:, 0] == pytest.approx([3, 3], abs=1.2)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_evaluation_plans_for_all_envs_in_one_call(lab, name):
    env = VectorEnv(EnvSpec(name=name, num_envs=5, max_frame=10), 0)
    agent = lab.agent("MPC", obs_space=env.observation_space, action_space=env.action_space)
    action = agent.act(env.reset(), 0, explore=False, carried=agent.first_carried(5))
    assert len(action) == 5
    assert all(env.action_space.contains(one) for one in action.astype(env.action_space.dtype))


# resuming


@pytest.mark.parametrize("planner", ["cem", "random_shooting"])
def test_a_resumed_agent_goes_on_exactly(lab, planner):
    agent = agent_of(lab, planner=planner)
    obs, carried = play(agent, 25)
    tree = copy.deepcopy(agent.state_dict())
    other = lab.agent("MPC", action_space=PUSH, algorithm_={"planner": planner}, seed=3)
    other.load_state_dict(tree)
    again = other.first_carried(2)
    if carried is not None:
        assert carried.values.any()
        again.load_state_dict(copy.deepcopy(carried.state_dict()))
    for one, rest in ((agent, carried), (other, again)):
        one.actions = [one.act(obs, 50, carried=rest), one.act(obs + 1, 52, carried=rest)]
        one.learn(80)
    assert np.array_equal(agent.actions, other.actions)
    assert torch.equal(agent.algorithm.learner.groups[0].flat, other.algorithm.learner.groups[0].flat)
    assert np.isfinite(agent.actions).all()


def test_the_policy_state_is_enough_to_act(lab):
    agent = agent_of(lab)
    play(agent, 25)
    other = lab.agent("MPC", action_space=PUSH, seed=0)
    other.algorithm.load_policy_state(agent.algorithm.policy_state())
    first, second = (one.act(OBS, 50, explore=False, carried=Carried(2, 3)) for one in (agent, other))
    assert (first == second).all()


# what fits


def mistakes(lab, obs_space=PLANE, action_space=PUSH, **blocks):
    return {mistake.path for mistake in check_agent(lab.spec("MPC", **blocks), obs_space, action_space)}


def test_what_does_not_fit_is_told_by_its_path(lab):
    assert mistakes(lab) == set()
    assert mistakes(lab, memory_={"members": 3}) == {"agent.memory.members"}
    assert mistakes(lab, action_space=spaces.MultiBinary(2)) == {"agent.algorithm.name"}
    assert mistakes(lab, action_space=spaces.Box(-np.inf, np.inf, (1,))) == {"agent.algorithm.name"}
    assert mistakes(lab, obs_space=spaces.Box(0, 255, (8, 8, 3), np.uint8)) == {"agent.algorithm.name"}
    assert mistakes(lab, memory="Replay") == {"agent.memory.name"}


def test_more_elites_than_candidates_are_refused(lab):
    with pytest.raises(SpecError, match="elites 9 are more than candidates 6"):
        agent_of(lab, elites=9)
