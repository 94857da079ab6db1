import copy
import math
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from slm_lab.agent.net.optim import (
    OPTIMIZERS,
    SCHEDULERS,
    Lookahead,
    LRSchedule,
    LRSchedulerSpec,
    OptimSpec,
    adam_state,
    arithmetic,
    bare_step,
    make_optimizer,
)


def flat(*values):
    return torch.nn.Parameter(torch.tensor(values))


def take_steps(optimizer, parameter, count):
    """`count` steps down the bowl |x|^2 / 2, whose gradient is x."""
    for _ in range(count):
        parameter.grad = parameter.detach().clone()
        optimizer.step()


@pytest.mark.parametrize("name", [*OPTIMIZERS, "Lookahead"])
def test_every_optimizer_goes_downhill_on_one_flat_parameter(name):
    parameter = flat(1.0, -2.0, 3.0)
    take_steps(make_optimizer(OptimSpec(name=name, lr=0.1), parameter), parameter, 10)
    assert parameter.abs().sum() < 6
    assert parameter.isfinite().all()


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_the_fused_kernel_is_used_where_torch_has_one(name):
    assert make_optimizer(OptimSpec(name=name), flat(1.0)).param_groups[0]["fused"]
    assert not make_optimizer(OptimSpec(name=name, fused=False), flat(1.0)).param_groups[0]["fused"]


def test_keywords_reach_the_optimizer():
    group = make_optimizer(OptimSpec(name="Adam", lr=0.5, betas=[0.8, 0.9], eps=1e-5), flat(1.0)).param_groups[0]
    assert (group["lr"], tuple(group["betas"]), group["eps"]) == (0.5, (0.8, 0.9), 1e-5)


def test_radam_takes_a_plain_momentum_step_until_its_variance_can_be_told():
    parameter = flat(1.0)
    take_steps(make_optimizer(OptimSpec(name="RAdam", lr=0.1), parameter), parameter, 1)
    assert parameter.item() == pytest.approx(0.9)  # Liu 2020, algorithm 2: rho_1 <= 5, so x - lr * m / (1 - beta)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "adam"}, "no optimizer named 'adam'; did you mean 'Adam'?"),
        ({"name": "Adam", "weight_deca": 0.1}, "optimizer Adam has no key 'weight_deca'; did you mean 'weight_decay'?"),
        ({"name": "Adam", "xyz": 1}, "optimizer Adam has no key 'xyz'; known: ['betas'"),
        ({"name": "Adam", "params": []}, "optimizer Adam has no key 'params'"),
        ({"name": "Adam", "betas": [0.9, 1.5]}, "optimizer Adam: Invalid beta parameter"),
        ({"name": "Adam", "betas": [0.9]}, "optimizer Adam: "),
        ({"name": "LBFGS"}, "optimizer LBFGS cannot be used here: it calls the loss several times a step"),
        ({"name": "Adam", "k": 5}, "optimizer Adam has no key 'k'"),
        ({"name": "Adam", "optimizer": "SGD"}, "'optimizer' is a key of Lookahead only"),
        ({"name": "Lookahead", "optimizer": "Adan"}, "no optimizer named 'Adan'; did you mean 'Adam'?"),
        ({"name": "Lookahead", "alpha": 0}, "alpha in (0, 1], not 5 and 0"),
        ({"name": "Adam", "lr": -1}, "greater than or equal to 0"),
    ],
)
def test_what_an_optimizer_cannot_take_is_refused_when_the_spec_is_read(given, told):
    with pytest.raises(ValidationError) as caught:
        OptimSpec(**given)
    assert told in str(caught.value)


def test_lookahead_by_hand():
    parameter = flat(1.0)
    optimizer = make_optimizer(OptimSpec(name="Lookahead", optimizer="SGD", lr=0.5, k=2, alpha=0.5), parameter)
    path = []
    for _ in range(4):
        take_steps(optimizer, parameter, 1)
        path.append(parameter.item())
    # SGD halves; every second step goes half way from the slow value (1, then 0.625) to the fast one
    assert path == [0.5, 0.625, 0.3125, 0.390625]


def test_lookahead_wraps_radam_unless_told_otherwise():
    assert isinstance(make_optimizer(OptimSpec(name="Lookahead"), flat(1.0)).inner, torch.optim.RAdam)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "Lookahead"])
def test_an_optimizer_goes_on_from_its_saved_state(name):
    spec = OptimSpec(name=name, lr=0.1)
    parameter = flat(1.0, -2.0)
    optimizer = make_optimizer(spec, parameter)
    take_steps(optimizer, parameter, 7)
    other = flat(*parameter.tolist())
    restored = make_optimizer(spec, other)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # as a file holds it
    take_steps(optimizer, parameter, 7)
    take_steps(restored, other, 7)
    assert other.tolist() == parameter.tolist()


def test_the_learning_rate_of_a_restored_lookahead_can_be_set():
    parameter = flat(1.0)
    optimizer = Lookahead(torch.optim.SGD([parameter], lr=0.5))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 0.0
    take_steps(optimizer, parameter, 1)
    assert parameter.item() == 1


SCHEDULES = [
    # keywords, {frame: rate where the rate at the start is 1}
    ({"name": "StepLR", "step_size": 100, "gamma": 0.5}, {0: 1, 99: 1, 100: 0.5, 250: 0.25}),
    ({"name": "StepLR", "step_size": 1e2, "gamma": 0.5}, {99: 1, 100: 0.5}),
    ({"name": "MultiStepLR", "milestones": [10, 40], "gamma": 0.1}, {9: 1, 10: 0.1, 39: 0.1, 40: 0.01, 900: 0.01}),
    ({"name": "ConstantLR", "factor": 0.25, "total_iters": 10}, {0: 0.25, 9: 0.25, 10: 1, 99: 1}),
    (
        {"name": "LinearLR", "start_factor": 1.0, "end_factor": 0.5, "total_iters": 100},
        {0: 1, 50: 0.75, 100: 0.5, 101: 0.5},
    ),
    ({"name": "ExponentialLR", "gamma": 0.5}, {0: 1, 1: 0.5, 4: 0.0625}),
    ({"name": "PolynomialLR", "total_iters": 100, "power": 2}, {0: 1, 50: 0.25, 75: 0.0625, 100: 0, 200: 0}),
    ({"name": "CosineAnnealingLR", "T_max": 100, "eta_min": 0.5}, {0: 1, 50: 0.75, 100: 0.5}),
    (
        {"name": "CosineAnnealingWarmRestarts", "T_0": 10, "T_mult": 2},
        {0: 1, 5: 0.5, 10: 1, 15: (1 + math.cos(math.pi / 4)) / 2, 20: 0.5, 30: 1},
    ),
    (
        {"name": "CyclicLR", "base_lr": 0.1, "max_lr": 0.9, "step_size_up": 10},
        {0: 0.1, 5: 0.5, 10: 0.9, 15: 0.5, 20: 0.1},
    ),
    (
        {"name": "OneCycleLR", "max_lr": 2.0, "total_steps": 101, "pct_start": 0.5, "anneal_strategy": "linear"},
        {0: 0.08, 49.5: 2, 100: 0.08 / 1e4, 101: 0.08 / 1e4, 9999: 0.08 / 1e4},
    ),
    ({"name": "LinearToZero", "frame": 1000}, {0: 1, 250: 0.75, 1000: 0, 5000: 0}),
]


@pytest.mark.parametrize(("given", "rates"), SCHEDULES, ids=[given["name"] for given, _ in SCHEDULES])
def test_a_schedule_by_hand_in_any_order_of_frames(given, rates):
    schedule = LRSchedule(LRSchedulerSpec(**given), base_lr=1.0)
    for frame in [*rates, *reversed(rates), *rates]:
        assert schedule.at(frame) == pytest.approx(rates[frame], abs=1e-12), frame


def test_checking_a_spec_does_not_import_torchs_compiler():
    code = (
        "import sys; from slm_lab.agent.net.optim import LRSchedulerSpec as S, OptimSpec as O;"
        "O(name='Adam', betas=[0.8, 0.9]); O(name='Lookahead'); S(name='CosineAnnealingLR', T_max=9);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", [*OPTIMIZERS, "Lookahead"])
def test_a_bare_step_is_the_step(name):
    whole, bare = flat(1.0, -2.0), flat(1.0, -2.0)
    optimizers = [make_optimizer(OptimSpec(name=name, lr=0.1), parameter) for parameter in (whole, bare)]
    for _ in range(7):
        for parameter, step in ((whole, optimizers[0].step), (bare, bare_step(optimizers[1]))):
            parameter.grad = parameter.detach().clone()
            step()
    assert whole.tolist() == bare.tolist()


def test_every_schedule_has_its_numbers_here():
    assert {given["name"] for given, _ in SCHEDULES} == {*SCHEDULERS, "LinearToZero"}


def test_a_schedule_scales_with_the_first_rate():
    assert LRSchedule(LRSchedulerSpec(name="LinearToZero", frame=10), base_lr=0.004).at(5) == 0.002
    assert LRSchedule(LRSchedulerSpec(name="StepLR", step_size=10, gamma=0.5), base_lr=0.004).at(10) == 0.002


def test_without_a_schedule_the_rate_is_constant():
    schedule = LRSchedule(None, base_lr=0.003)
    assert schedule.constant
    assert {schedule.at(frame) for frame in (0, 1, 10**9)} == {0.003}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "StepLr", "step_size": 3}, "no lr scheduler named 'StepLr'; did you mean 'StepLR'?"),
        ({"name": "StepLR"}, "missing 1 required positional argument: 'step_size'"),
        ({"name": "StepLR", "step_siz": 3}, "StepLR has no key 'step_siz'; did you mean 'step_size'?"),
        ({"name": "StepLR", "step_size": 0}, "StepLR: integer division or modulo by zero"),
        ({"name": "StepLR", "step_size": 3, "last_epoch": 4}, "StepLR has no key 'last_epoch'"),
        ({"name": "StepLR", "step_size": 3, "frame": 4}, "'frame' is a key of LinearToZero only"),
        ({"name": "LinearToZero"}, "LinearToZero needs 'frame'"),
        ({"name": "LinearToZero", "frame": 10, "frames": 20}, "did you mean 'frame'?"),
        ({"name": "LinearToZero", "frame": 0}, "greater than 0"),
        ({"name": "OneCycleLR", "max_lr": 1.0}, "OneCycleLR: You must define either total_steps"),
    ],
)
def test_what_a_schedule_cannot_take_is_refused_when_the_spec_is_read(given, told):
    with pytest.raises(ValidationError) as caught:
        LRSchedulerSpec(**given)
    assert told in str(caught.value)


# as arithmetic


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "Adam", "lr": 0.1},
        {"name": "Adam", "lr": 0.1, "betas": [0.5, 0.75], "eps": 0.1, "weight_decay": 0.3},
        {"name": "AdamW", "lr": 0.1},
        {"name": "AdamW", "lr": 0.1, "weight_decay": 0.3},
    ],
)
def test_the_arithmetic_of_an_optimizer_is_what_torch_does(spec):
    spec = OptimSpec.model_validate(spec)
    theirs, ours = (torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0])) for _ in range(2))
    torchs, state_keeper = make_optimizer(spec, theirs), make_optimizer(spec, ours)
    for step in range(5):
        grad = torch.tensor([1.0, 10.0, -0.5]) * (step - 1)
        theirs.grad = grad.clone()
        torchs.step()
        arithmetic(spec)(ours.data, grad, adam_state(state_keeper, ours), torch.tensor(0.1))
    torch.testing.assert_close(ours, theirs)
    for key, value in adam_state(torchs, theirs).items():
        torch.testing.assert_close(state_keeper.state[ours][key], value)


@pytest.mark.parametrize("spec", [{"name": "SGD"}, {"name": "Adam", "amsgrad": True}, {"name": "Lookahead"}])
def test_other_optimizers_have_no_arithmetic(spec):
    assert arithmetic(OptimSpec.model_validate(spec)) is None
