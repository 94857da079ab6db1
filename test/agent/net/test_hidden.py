import pytest
import torch
from torch.func import functional_call

from slm_lab.agent.net.hidden import BatchNorm, HiddenLayers
from slm_lab.agent.net.mlp import MLPNetSettings

ROWS = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 40.0], [7.0, 40.0]])


@pytest.mark.parametrize("shape", [(4, 2), (4, 2, 3, 5)])
def test_a_batch_norm_is_torchs_in_training_and_out_of_it(shape):
    torch.manual_seed(0)
    ours, theirs = BatchNorm(2), torch.nn.BatchNorm1d(2) if len(shape) == 2 else torch.nn.BatchNorm2d(2)
    with torch.no_grad():
        for norm in (ours, theirs):
            norm.weight.copy_(torch.tensor([2.0, -1.0]))
            norm.bias.copy_(torch.tensor([0.5, 3.0]))
    for training in (True, True, False):
        ours.train(training)
        theirs.train(training)
        values = torch.randn(shape)
        torch.testing.assert_close(ours(values), theirs(values), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_a_batch_norm_by_hand():
    ours = BatchNorm(2, eps=0.0)
    # means 4 and 25; deviations sqrt(5) and 15; unbiased variances 20/3 and 300
    expected = (ROWS - torch.tensor([4.0, 25.0])) / torch.tensor([5.0**0.5, 15.0])
    torch.testing.assert_close(ours(ROWS), expected)
    torch.testing.assert_close(ours.running_mean, torch.tensor([0.4, 2.5]))
    torch.testing.assert_close(ours.running_var, torch.tensor([0.9 + 2 / 3, 0.9 + 30]))


def test_a_batch_of_one_row_is_normalised_to_the_bias():
    ours = BatchNorm(2)
    assert ours(ROWS[:1]).tolist() == [[0.0, 0.0]]
    assert ours.running_var.isfinite().all()


def test_running_means_are_handed_out_by_a_functional_call():
    ours = BatchNorm(2)
    handed = dict(ours.named_buffers())
    functional_call(ours, handed, (ROWS,))
    assert handed["running_mean"].tolist() == pytest.approx([0.4, 2.5])
    assert ours.running_mean.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("given", "norm", "biased"),
    [
        ({}, None, True),
        ({"layer_norm": True}, torch.nn.LayerNorm, True),
        ({"batch_norm": True}, BatchNorm, False),  # the norm would take the bias out again
    ],
)
def test_each_layer_has_the_norm_that_was_asked_for(given, norm, biased):
    ours = HiddenLayers(2, [3, 4], MLPNetSettings(**given))
    assert [type(one) for one in ours.norms] == ([norm] * 2 if norm else [])
    assert all((layer.bias is not None) == biased for layer in ours.layers)
    assert ours(ROWS).shape == (4, 4)
    assert (ours.numpy_forward() is None) == bool(given)
