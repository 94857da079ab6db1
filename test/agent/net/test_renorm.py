import torch
from gymnasium import spaces

from slm_lab.agent.net.hidden import BatchNorm
from slm_lab.agent.net.mlp import MLPNet, MLPNetSettings
from slm_lab.agent.net.renorm import BatchRenorm, renormalise

VALUES = torch.tensor([[1.0], [3.0]])  # mean 2, deviation 1


def make(warmup=0, mean=0.0, var=4.0, **keys):
    layer = BatchRenorm(1, eps=0.0, warmup=warmup, **keys)
    layer.running_mean, layer.running_var = torch.tensor([mean]), torch.tensor([var])
    return layer


def test_a_batch_comes_out_as_the_running_statistics_would_have_it():
    assert make()(VALUES).flatten().tolist() == [0.5, 1.5]
    assert make().eval()(VALUES).flatten().tolist() == [0.5, 1.5]


def test_gradients_go_through_the_batchs_own_statistics():
    values = VALUES.clone().requires_grad_()
    out = make()(values)
    out.square().sum().backward()
    # scale 1/2 and shift 1 are constants: out = (values - mean) / deviation / 2 + 1; a common shift changes nothing
    assert abs(values.grad.sum().item()) < 1e-6


def test_the_correction_is_bounded():
    far = make(mean=-98.0, var=100.0**2)  # deviation 1/100 of the running one, mean one running deviation off
    torch.testing.assert_close(far(VALUES).flatten(), torch.tensor([-1 / 3 + 1, 1 / 3 + 1]))
    off = make(mean=-98.0, var=1.0)
    assert off(VALUES).flatten().tolist() == [4, 6]


def test_before_it_is_warm_it_is_a_batch_norm():
    layer = make(warmup=1)
    assert layer(VALUES).flatten().tolist() == [-1, 1]
    assert layer.calls == 1
    torch.testing.assert_close(layer.running_mean, torch.tensor([0.02]))
    torch.testing.assert_close(layer.running_var, torch.tensor([3.97]))
    torch.testing.assert_close(layer(VALUES).mean(), (2 - torch.tensor(0.02)) / 3.97**0.5)


def test_acting_changes_nothing():
    layer = make().eval()
    layer(VALUES)
    assert (layer.running_mean, layer.running_var, layer.calls) == (0, 4, 0)


def test_renormalise_replaces_each_batch_norm():
    settings = MLPNetSettings(hid_layers=[4, 5], batch_norm=True)
    net = renormalise(MLPNet(settings, spaces.Box(-1, 1, (2,)), {"value": 1}))
    norms = [part for part in net.modules() if isinstance(part, BatchNorm)]
    assert [type(norm) for norm in norms] == [BatchRenorm, BatchRenorm]
    assert [len(norm.running_mean) for norm in norms] == [4, 5]
