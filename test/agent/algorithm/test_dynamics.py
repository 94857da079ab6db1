"""The model: its loss by hand, what it learns of envs whose laws are known, its rollouts."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.agent import has_compiler
from slm_lab.agent.algorithm.algorithm import Site
from slm_lab.agent.algorithm.dynamics import (
    Dynamics,
    DynamicsNet,
    ModelSettings,
    gaussian_nll,
    losses,
    rollout,
    stacked,
)
from slm_lab.agent.memory import make_memory
from slm_lab.agent.memory.model_based import ModelBatch

PLANE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
PUSH = spaces.Box(-2, 2, (1,), np.float32)


def linear_memory(rows=600, terminates=lambda obs: np.zeros(len(obs), bool), **keys):
    """s' = s + (0.5 s2, a) and reward s1 - a, of random states and actions."""
    block = {"name": "ModelBasedReplay", "validation": 0.2, "split_by": "transition", "members": 3, "batch_size": 64}
    memory = make_memory({**block, **keys}, PLANE, PUSH)
    rng = np.random.default_rng(0)
    obs = rng.uniform(-3, 3, (rows, 2)).astype(np.float32)
    action = rng.uniform(-2, 2, (rows, 1)).astype(np.float32)
    told = {
        "obs": obs,
        "action": action,
        "reward": obs[:, 0] - action[:, 0],
        "terminated": terminates(obs),
        "truncated": np.zeros(rows, bool),
        "next_obs": obs + np.stack([0.5 * obs[:, 1], action[:, 0]], 1),
    }
    memory.add_rows(told, ordered=False)
    return memory


def make(compiled=False, **keys):
    keys = {"members": 3, "hid_layers": [16], "optim_spec": {"name": "Adam", "lr": 0.01}, **keys}
    return Dynamics(ModelSettings(**keys), Site(PLANE, PUSH, 0, compiled=compiled))


def constant_net(mean, members=2, termination=None):
    """A model that tells the same of everything: `mean` by member, (M, D + 1)."""
    net = DynamicsNet(ModelSettings(members=members, hid_layers=[], learned_termination=termination is not None), 2, 1)
    for head in net.ensemble.heads.values():
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    net.ensemble.heads["model"].bias.data[:, 0, :3] = torch.tensor(mean)
    net.ensemble.heads["model"].bias.data[:, 0, 3:] = -30.0  # no noise to speak of
    net.min_log_var.data.fill_(-30.0)
    if termination is not None:
        net.ensemble.heads["termination"].bias.data.fill_(termination)
    return net


# loss


def test_the_loss_is_minus_the_log_of_a_gaussians_density():
    found = gaussian_nll(torch.tensor(1.0), torch.tensor(math.log(4.0)), torch.tensor(3.0))
    assert found.item() == pytest.approx(0.5 * (1 + math.log(4) + math.log(2 * math.pi)))
    density = torch.distributions.Normal(1.0, 2.0)
    assert found.item() == pytest.approx(-density.log_prob(torch.tensor(3.0)).item())


def test_each_member_is_measured_on_its_own_rows():
    def rows(target):
        ones = torch.ones(4)
        return ModelBatch(torch.zeros(4, 2), torch.zeros(4, 1), torch.full((4, 2), target), ones, 0 * ones, ones)

    def net(obs, action):
        return torch.ones(2, 4, 3), torch.zeros(2, 4, 3), None, torch.tensor(0.0)

    each, info = losses(net, stacked([rows(1.0), rows(4.0)]))
    nothing = 0.5 * math.log(2 * math.pi)
    assert each.tolist() == pytest.approx([nothing, nothing + 0.5 * 9 * 2 / 3])  # two of three outputs are off by 3
    assert info["mse"].item() == pytest.approx(9 * 2 / 3 / 2)


def test_learned_termination_adds_its_cross_entropy():
    ones = torch.ones(4)
    rows = ModelBatch(torch.zeros(4, 2), torch.zeros(4, 1), torch.zeros(4, 2), 0 * ones, ones, ones)

    def net(obs, action):
        return torch.zeros(1, 4, 3), torch.zeros(1, 4, 3), torch.full((1, 4), math.log(3)), torch.tensor(0.0)

    each, _ = losses(net, stacked([rows]))
    assert each.item() == pytest.approx(0.5 * math.log(2 * math.pi) - math.log(0.75), rel=1e-5)


def test_log_variances_stay_within_their_bounds():
    net = DynamicsNet(ModelSettings(members=2, hid_layers=[4]), 2, 1)
    for wild in (-1e4, 1e4):
        net.ensemble.heads["model"].bias.data.fill_(wild)
        _, log_var, _, apart = net(torch.zeros(3, 2), torch.zeros(3, 1))
        assert log_var.min() >= -10.1
        assert log_var.max() <= 0.6
        assert apart.item() == pytest.approx(3 * 10.5)


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on the PATH, which torch.compile needs")
def test_the_compiled_step_is_the_eager_one():
    told = []
    for compiled in (False, True):
        model = make(compiled, hid_layers=[4], learned_termination=True)
        model.fit(linear_memory(160, epochs=2, validation=0.0, batch_size=80), 0)
        told.append(model.learner.groups[0].flat.detach().clone())
    torch.testing.assert_close(*told, rtol=1e-4, atol=1e-5)


# fitting


@pytest.mark.parametrize("target", ["delta", "next_obs"])
def test_a_linear_env_is_learned(target):
    memory, model = linear_memory(epochs=40, patience=10, target=target), make()
    model.fit(memory, 0)
    obs, action = torch.tensor([[1.0, -2.0], [0.0, 1.0]]), torch.tensor([[0.5], [-1.5]])
    rng = np.random.default_rng(0)
    drawn = [model.draw(obs, action, rng) for _ in range(50)]
    next_obs, reward = (torch.stack([each[place] for each in drawn]).mean(0) for place in (0, 1))
    torch.testing.assert_close(next_obs, torch.tensor([[0.0, -1.5], [0.5, -0.5]]), atol=0.15, rtol=0)
    torch.testing.assert_close(reward, torch.tensor([0.5, 1.5]), atol=0.15, rtol=0)
    assert not any(each[2].any() for each in drawn)


def test_where_episodes_terminate_is_learned():
    memory = linear_memory(epochs=30, terminates=lambda obs: obs[:, 0] > 1)
    model = make(learned_termination=True)
    model.fit(memory, 0)
    obs = torch.tensor([[2.5, 0.0], [-1.0, 0.0]]).repeat_interleave(50, 0)
    ended = model.draw(obs, torch.zeros(100, 1), np.random.default_rng(0))[2].float()
    assert ended[:50].mean() > 0.9
    assert ended[50:].mean() < 0.1


def measuring(monkeypatch, model, told):
    """Let validation tell these losses; the parameters at each of them."""
    seen = []

    def measure(memory, part):
        seen.append(model.learner.groups[0].flat.detach().clone())
        return told[len(seen) - 1]

    monkeypatch.setattr(model, "measure", measure)
    return seen


def test_fitting_stops_out_of_patience_and_keeps_the_best(monkeypatch):
    model = make()
    seen = measuring(monkeypatch, model, [5.0, 3.0, 4.0, 3.5, 1.0])
    model.fit(linear_memory(epochs=10, patience=2), 0)
    assert len(seen) == 4
    assert torch.equal(model.learner.groups[0].flat, seen[1])
    assert not torch.equal(model.learner.groups[0].flat, seen[3])
    assert model.validation_loss == 3.0


def test_a_fit_that_never_comes_to_a_number_leaves_the_model_as_it_was(monkeypatch):
    model = make()
    before = model.learner.groups[0].flat.detach().clone()
    measuring(monkeypatch, model, [math.nan] * 3)
    model.fit(linear_memory(epochs=3), 0)
    assert torch.equal(model.learner.groups[0].flat, before)
    assert model.report() == {}


def test_members_learn_from_rows_of_their_own():
    model = make()
    model.fit(linear_memory(epochs=1), 0)
    before = make().net.ensemble.body[0].weight
    moved = model.net.ensemble.body[0].weight - before
    assert all(not torch.allclose(moved[0], moved[other]) for other in (1, 2))


# rollouts


def test_rewards_are_summed_with_discount_and_each_rollout_stays_with_its_member():
    net = constant_net([[1.0, 0.0, 2.0], [-1.0, 0.0, 4.0]])
    seen, forward = [], net.forward

    def spy(obs, action):
        seen.append(obs[..., 0].clone())
        return forward(obs, action)

    net.forward = spy
    with torch.no_grad():
        total = rollout(net, torch.zeros(5, 2), torch.zeros(3, 5, 1), torch.randn(3, 2, 5, 2), 0.5)
    torch.testing.assert_close(total, torch.tensor([[3.5], [7.0]]).expand(2, 5))  # 2 (1 + 1/2 + 1/4), and twice that
    torch.testing.assert_close(seen[2], torch.tensor([[2.0], [-2.0]]).expand(2, 5), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("logit", "total"), [(50.0, 2.0), (-50.0, 6.0), (0.0, 2 * (1 + 0.5 + 0.25))])
def test_what_comes_after_a_termination_does_not_count(logit, total):
    net = constant_net([[0.0, 0.0, 2.0]] * 2, termination=logit)
    with torch.no_grad():
        found = rollout(net, torch.zeros(1, 2), torch.zeros(3, 1, 1), torch.zeros(3, 2, 1, 2), 1.0)
    assert found.flatten().tolist() == pytest.approx([total, total])


def test_a_rollout_goes_by_scaled_observations_and_tells_true_rewards():
    """Delta 1 in units of 10 is 2 in units of 5; rewards are 3 * 2 + 1."""
    net = constant_net([[1.0, 0.0, 2.0]] * 2)
    for name, value in (("obs_std", 5.0), ("target_std", 10.0), ("reward_std", 3.0), ("reward_mean", 1.0)):
        net.get_buffer(name).fill_(value)
    assert net.steps()(torch.ones(1, 2), torch.ones(1, 2)).tolist() == [[3, 3]]
    with torch.no_grad():
        found = rollout(net, torch.zeros(1, 2), torch.zeros(1, 1, 1), torch.zeros(1, 2, 1, 2), 1.0)
    assert found.flatten().tolist() == [7, 7]
