"""One weight that starts at 2 and sees 1 and 3: the mean of w * obs has the gradient 2."""

import pytest
import torch
from gymnasium import spaces
from torch import nn

from slm_lab.agent.agent import has_compiler
from slm_lab.agent.learner import Learner, map_tensors
from slm_lab.agent.net.mlp import MLPNetSettings
from slm_lab.agent.net.optim import OptimSpec
from slm_lab.experiment import checkpoint
from slm_lab.types import Batch

BOX = spaces.Box(-2, 2, (1,))
BATCH = Batch(torch.tensor([[1.0], [3.0]]), None, torch.zeros(2), None, None)


def weight(value=2.0):
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, value)
    return net


def mean_loss(net, target, batch, scalars):
    return net(batch.obs).mean(), {}


def make(net=None, loss=mean_loss, *, has_target=False, optim_specs=None, **keys):
    settings = {"optim_spec": {"name": "SGD", "lr": 0.5}, **keys}
    return Learner(net or weight(), loss, MLPNetSettings(**settings), has_target=has_target, optim_specs=optim_specs)


def test_a_step_goes_down_the_gradient():
    learner = make()
    learner.step(BATCH, 1)
    assert learner.net.weight.item() == 2 - 0.5 * 2
    assert learner.opt_step == 1
    assert learner.report() == {"loss": 4, "grad_norm": 2}


def test_gradients_do_not_pile_up():
    learner = make()
    for _ in range(3):
        learner.step(BATCH, 1)
    assert learner.net.weight.item() == 2 - 3


@pytest.mark.parametrize(("clip", "moved"), [(None, 2), (4.0, 2), (2.0, 2), (1.0, 1), (0.5, 0.5)])
def test_a_long_gradient_is_scaled_down_to_the_clipping_norm_and_reported_as_it_was(clip, moved):
    learner = make(clip_grad_val=clip)
    learner.step(BATCH, 1)
    assert learner.net.weight.item() == 2 - 0.5 * moved
    assert learner.report()["grad_norm"] == 2


def test_a_gradient_of_zero_stays_zero_when_clipped():
    learner = make(loss=lambda net, *_: (0 * net(BATCH.obs).mean(), {}), clip_grad_val=1.0)
    learner.step(BATCH, 1)
    assert learner.net.weight.item() == 2


def test_the_norm_is_that_of_all_parameters_together():
    net = nn.Linear(1, 1)
    learner = make(net, clip_grad_val=1.0, optim_spec={"name": "SGD", "lr": 1.0})
    before = net.weight.item(), net.bias.item()
    learner.step(Batch(torch.tensor([[0.75]]), None, torch.zeros(1), None, None), 1)
    assert learner.report()["grad_norm"] == 1.25  # gradients 3/4 and 1
    assert before[0] - net.weight.item() == pytest.approx(0.6)
    assert before[1] - net.bias.item() == pytest.approx(0.8)


def test_the_parameters_are_views_of_one_flat_tensor():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = [parameter.detach().clone() for parameter in net.parameters()]
    learner = make(net)
    for parameter, value in zip(net.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    flat = learner.groups[0].flat
    assert flat.shape == (3 * 4 + 4 + 4 * 2 + 2,)
    with torch.no_grad():
        flat.zero_()
    assert all(not parameter.any() for parameter in net.parameters())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = weight(), weight()

    def forward(self, obs):
        return self.actor(obs) + self.critic(obs)


def test_each_child_has_its_own_optimizer_rate_and_clipping():
    specs = {"actor": OptimSpec(name="SGD", lr=0.5), "critic": OptimSpec(name="SGD", lr=0.25)}
    learner = make(
        Pair(), optim_specs=specs, clip_grad_val=1.0, lr_scheduler_spec={"name": "LinearToZero", "frame": 10}
    )
    learner.step(BATCH, 5)  # half of each rate
    assert learner.net.actor.weight.item() == 2 - 0.25
    assert learner.net.critic.weight.item() == 2 - 0.125
    assert learner.learning_rate(5) == 0.25
    assert learner.report()["grad_norm"] == pytest.approx(8**0.5)


@pytest.mark.parametrize(
    ("keys", "rates"),
    [
        ({"shared": True, "critic_optim_spec": {"lr": 0.3}}, [0.1]),
        ({"shared": True, "actor_optim_spec": {"lr": 0.3}}, [0.3]),
        ({"shared": False}, [0.1, 0.1]),
        ({"shared": False, "actor_optim_spec": {"lr": 0.3}}, [0.3, 0.1]),
        ({"shared": False, "critic_optim_spec": {"lr": 0.3}}, [0.1, 0.3]),
        ({"shared": False, "use_same_optim": True}, [0.1]),
        ({"shared": False, "use_same_optim": True, "actor_optim_spec": {"lr": 0.3}}, [0.3]),
    ],
)
def test_actor_and_critic_have_the_optimizers_that_the_spec_gives_them(lab, keys, rates):
    learner = lab.agent("ActorCritic", net_={"optim_spec": {"lr": 0.1}, **keys}).algorithm.learner
    assert [group.optimizer.param_groups[0]["lr"] for group in learner.groups] == rates
    total = sum(parameter.numel() for parameter in learner.net.parameters())
    assert sum(group.flat.numel() for group in learner.groups) == total


@pytest.mark.parametrize("name", ["SGD", "Lookahead"])
def test_the_learning_rate_schedule_reaches_the_optimizer_at_every_frame(name):
    spec = {"name": name, "lr": 0.5} | ({"optimizer": "SGD"} if name == "Lookahead" else {})
    learner = make(optim_spec=spec, lr_scheduler_spec={"name": "StepLR", "step_size": 10, "gamma": 0.5})
    weights = []
    for frame in (9, 10, 25):
        learner.step(BATCH, frame)
        weights.append(learner.net.weight.item())
    assert weights == [2 - 1, 2 - 1 - 0.5, 2 - 1 - 0.5 - 0.25]
    assert learner.learning_rate(25) == 0.125


def test_a_report_is_the_means_since_the_one_before():
    def loss(net, target, batch, scalars):
        return net(batch.obs).mean(), {"weight": net.weight.detach().sum(), "coefficient": scalars["coefficient"]}

    learner = make(loss=loss)
    assert learner.report() == {}
    for coefficient in (1, 2, 6):  # the weight goes 2, 1, 0
        learner.step(BATCH, 1, coefficient=float(coefficient))
    assert learner.report() == pytest.approx({"loss": 2, "grad_norm": 2, "weight": 1, "coefficient": 3})
    assert learner.report() == {}
    learner.step(BATCH, 1, coefficient=8.0)
    assert learner.report() == {"loss": -2, "grad_norm": 2, "weight": -1, "coefficient": 8}


def test_errors_come_back_a_row_each_and_are_not_reported():
    learner = make(loss=lambda net, *_: (net(BATCH.obs).mean(), {"errors": net(BATCH.obs)[:, 0]}))
    assert learner.step(BATCH, 1).tolist() == [2, 6]
    assert set(learner.report()) == {"loss", "grad_norm"}
    assert make().step(BATCH, 1) is None


def test_a_batch_is_moved_with_all_that_it_carries():
    one = torch.tensor([1.0])
    batch = Batch({"eye": one}, one, one, {"eye": one}, one, weight=one, extras={"return": one})
    doubled = map_tensors(batch, lambda tensor: 2 * tensor)
    two = torch.tensor([2.0])
    assert doubled == Batch({"eye": two}, two, two, {"eye": two}, two, weight=two, extras={"return": two})
    assert doubled.mask is None


# target updates; the weight goes 2, 1, 0, -1 ...


def targets(frames, **keys):
    """The target net's weight after a step at each of these frames."""
    learner = make(has_target=True, **keys)
    seen = []
    for frame in frames:
        learner.step(BATCH, frame)
        seen.append(learner.target.weight.item())
    return seen


def test_the_polyak_coefficient_is_the_weight_of_the_net():
    assert targets([1, 2], update_type="polyak", polyak_coef=0.25) == [2 + 0.25 * (1 - 2), 1.75 + 0.25 * (0 - 1.75)]
    assert targets([1, 2], update_type="polyak", polyak_coef=1.0) == [1, 0]
    assert targets([1, 2], update_type="polyak", polyak_coef=0.0) == [2, 2]


def test_the_target_is_replaced_every_so_many_frames():
    replace = {"update_type": "replace"}
    assert targets([1, 2, 3], **replace, update_frequency=1) == [1, 0, -1]
    assert targets([1, 2, 3, 4, 5, 6], **replace, update_frequency=3) == [2, 2, -1, -1, -1, -4]
    # 16 envs: the frames go by sixteens, and pass 40 and 80 on the way
    assert targets([16, 32, 48, 64, 80], **replace, update_frequency=40) == [2, 2, -1, -1, -3]
    # more frames a step than between updates
    assert targets([16, 32], **replace, update_frequency=4) == [1, 0]
    # four learn steps at one frame: one update
    assert targets([16, 16, 16, 32], **replace, update_frequency=4) == [1, 1, 1, -2]


def test_a_polyak_update_waits_for_its_frames_too():
    assert targets([1, 2, 3, 4], update_type="polyak", polyak_coef=0.5, update_frequency=2) == [2, 1, 1, -0.5]


def test_the_loss_sees_the_target_net_or_without_one_the_net():
    seen = []

    def loss(net, target, batch, scalars):
        seen.append(target(batch.obs)[0].item())
        return net(batch.obs).mean(), {}

    for has_target in (True, False):
        learner = make(loss=loss, has_target=has_target, update_type="replace", update_frequency=100)
        learner.step(BATCH, 1)
        learner.step(BATCH, 2)
    assert seen == [2, 2, 2, 1]


def test_the_target_net_takes_no_gradient():
    learner = make(has_target=True)
    assert not any(parameter.requires_grad for parameter in learner.target.parameters())
    assert learner.groups[0].target.grad is None


# state


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "RAdam", "Adagrad", "Rprop", "Lookahead"])
def test_a_learner_goes_on_from_its_state_as_if_nothing_had_happened(name, tmp_path):
    def loss(net, target, batch, scalars):
        return (net(batch.obs) - target(batch.obs)).square().mean() + net(batch.obs).mean(), {}

    def fresh():
        return make(
            loss=loss,
            has_target=True,
            optim_spec={"name": name, "lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})},
            lr_scheduler_spec={"name": "CosineAnnealingLR", "T_max": 30},
            polyak_coef=0.1,
            update_frequency=3,
        )

    first, second = fresh(), fresh()
    for frame in range(7):
        first.step(BATCH, frame)
    checkpoint.write(tmp_path / "state", first.state_dict())
    second.load_state_dict(checkpoint.read(tmp_path / "state"))
    for frame in range(7, 14):
        first.step(BATCH, frame)
        second.step(BATCH, frame)
    assert second.net.weight.item() == first.net.weight.item()
    assert second.target.weight.item() == first.target.weight.item()
    assert second.opt_step == first.opt_step == 14
    assert second.report() == first.report()


def test_a_loaded_learner_shares_nothing_with_the_one_it_came_from():
    first, second = (make(has_target=True, optim_spec={"name": "Adam", "lr": 0.1}) for _ in range(2))
    first.step(BATCH, 1)
    second.load_state_dict(first.state_dict())
    before = checkpoint_of(second)
    first.step(BATCH, 2)
    assert checkpoint_of(second) == before


def checkpoint_of(learner):
    return repr(learner.state_dict())


def test_a_new_learner_can_be_saved_before_its_first_step(tmp_path):
    for name in ("SGD", "Adam", "Adagrad", "Lookahead"):
        first, second = (make(optim_spec={"name": name}) for _ in range(2))
        checkpoint.write(tmp_path / "state", first.state_dict())
        second.load_state_dict(checkpoint.read(tmp_path / "state"))
        first.step(BATCH, 1)
        second.step(BATCH, 1)
        assert first.net.weight.item() == second.net.weight.item()


# compiled


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on the PATH, which torch.compile needs")
def groups_of(agent):
    return [group for learner in agent.algorithm.learners for group in learner.groups]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        # 10 rows in minibatches of 4, 4 and 2: the odd one is not compiled for
        ("PPO", {"algorithm_": {"time_horizon": 5, "minibatch_size": 4}, "net_": {"shared": False}}),
        ("DoubleDQN", {"net_": {"type": "DuelingMLPNet", "clip_grad_val": 0.1}}),
        # torch takes the step of its own optimizer
        ("DQN", {"net_": {"optim_spec": {"name": "SGD", "lr": 0.01, "momentum": 0.9}}}),
        # two learners that see each other's nets
        ("TD3", {}),
        ("CrossQ", {"action_space": BOX, "algorithm_": {"policy_delay": 1}, "net_": {"batch_norm": True}}),
    ],
)
def test_a_compiled_step_is_the_eager_step(lab, name, keys):
    eager, compiled = (lab.agent(name, meta_={"compile": flag}, **keys) for flag in (False, True))
    for agent in (eager, compiled):
        lab.Life().go_on(agent, 10)
    assert compiled.algorithm.opt_step == eager.algorithm.opt_step > 10
    for one, other in zip(groups_of(compiled), groups_of(eager), strict=True):
        torch.testing.assert_close(one.flat, other.flat, rtol=1e-4, atol=1e-5)
    assert compiled.algorithm.report(20) == pytest.approx(eager.algorithm.report(20), rel=1e-3, abs=1e-5)


def test_a_second_loss_trains_the_same_parameters_with_counts_and_a_report_of_its_own():
    learner = make()
    other = learner.sharing(lambda net, target, batch, scalars: ((0.5 * net(batch.obs)).mean(), {}))
    learner.step(BATCH, 1)
    other.step(BATCH, 1)
    assert learner.net.weight.item() == 2 - 0.5 * 2 - 0.5 * 1
    assert (learner.opt_step, other.opt_step) == (1, 1)
    assert learner.report() == {"loss": 4, "grad_norm": 2}
    assert other.report() == {"loss": 1, "grad_norm": 1}  # half of 1 * (1 + 3) / 2
