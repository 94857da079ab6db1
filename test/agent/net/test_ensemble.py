import copy

import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError
from torch.func import functional_call

from slm_lab.agent.group import flatten
from slm_lab.agent.net.ensemble import EnsembleMLP
from slm_lab.agent.net.mlp import MLPNet

ROW = spaces.Box(-1, 1, (3,))
OBS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def net(space=ROW, heads=None, **given):
    torch.manual_seed(0)
    keys = {"hid_layers": [4, 6], "members": 3, "hid_layers_activation": "silu", **given}
    return EnsembleMLP(EnsembleMLP.Settings(**keys), space, heads or {"model": 2})


def member(ours, place):
    """The same net as an MLPNet."""
    alone = MLPNet(MLPNet.Settings(hid_layers=[4, 6], hid_layers_activation="silu"), ROW, {"model": 2})
    layers = [*alone.body.layers, alone.heads["model"]]
    with torch.no_grad():
        for layer, stacked in zip(layers, [*ours.body, ours.heads["model"]], strict=True):
            layer.weight.copy_(stacked.weight[place].T)
            layer.bias.copy_(stacked.bias[place, 0])
    return alone


def test_each_member_is_the_net_of_its_own_parameters():
    ours = net()
    out = ours(OBS)
    assert out.shape == (3, 5, 2)
    for place in range(3):
        torch.testing.assert_close(out[place], member(ours, place)(OBS))
    assert not torch.allclose(out[0], out[1])


def test_members_can_have_rows_of_their_own():
    ours = net()
    rows = torch.stack([OBS, 2 * OBS, -OBS])
    for place, out in enumerate(ours(rows)):
        torch.testing.assert_close(out, member(ours, place)(rows[place]))


def test_members_learn_apart():
    ours = net(layer_norm=True)
    ours(OBS)[1].sum().backward()
    assert all(not parameter.grad[[0, 2]].any() and parameter.grad[1].any() for parameter in ours.heads.parameters())


def test_several_heads_give_a_tuple_and_classes_are_one_hot():
    ours = net(spaces.Discrete(4, start=1), {"mean": 2, "log_std": (2, 3)})
    mean, log_std = ours(torch.tensor([1, 4]))
    assert (mean.shape, log_std.shape) == ((3, 2, 2), (3, 2, 6))


def test_init_fn_fills_each_member_by_itself():
    for weight in net(init_fn="orthogonal_", hid_layers_activation="relu").heads["model"].weight:
        torch.testing.assert_close(weight.T @ weight, torch.eye(2))


def test_flat_parameters_copies_and_functional_calls_give_the_same():
    ours = net(layer_norm=True)
    expected = ours(OBS)
    other = copy.deepcopy(ours)
    flatten(ours, trained=True)
    torch.testing.assert_close(ours(OBS), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    torch.testing.assert_close(functional_call(other, dict(ours.named_parameters()), (OBS,)), expected)


def test_what_does_not_fit_is_told():
    (mistake,) = EnsembleMLP.check(EnsembleMLP.Settings(), spaces.Dict({"a": ROW}))
    assert "takes one array" in mistake.problem
    assert EnsembleMLP.check(EnsembleMLP.Settings(), ROW) == []
    with pytest.raises(ValidationError, match="use layer_norm"):
        EnsembleMLP.Settings(batch_norm=True)
