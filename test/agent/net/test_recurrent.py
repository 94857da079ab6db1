import copy

import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError
from torch.func import functional_call, grad

from slm_lab.agent.group import flatten
from slm_lab.agent.net.recurrent import RecurrentNet

ROW = spaces.Box(-1, 1, (3,))
WINDOW = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))  # B, T, ...
CELLS = ["RNN", "GRU", "LSTM"]


def net(cell="GRU", space=ROW, heads=None, **given):
    torch.manual_seed(0)
    keys = {"cell_type": cell, "rnn_hidden_size": 4, "rnn_num_layers": 2, **given}
    return RecurrentNet(RecurrentNet.Settings(**keys), space, heads or {"q": 2})


@pytest.mark.parametrize("cell", CELLS)
def test_the_cells_are_torchs(cell):
    ours = net(cell)
    out, state = ours(WINDOW)
    theirs, after = ours.cell(WINDOW)
    torch.testing.assert_close(out, ours.heads["q"](theirs))
    after = torch.stack(after) if cell == "LSTM" else after[None]  # tensors, layers, B, units
    assert state.shape == (2, ours.state_size)
    torch.testing.assert_close(state, after.permute(2, 0, 1, 3).flatten(1))


@pytest.mark.parametrize("cell", CELLS)
def test_a_window_in_two_pieces_is_the_window_if_the_state_goes_along(cell):
    ours = net(cell)
    whole, last = ours(WINDOW)
    first, state = ours(WINDOW[:, :2])
    second, end = ours(WINDOW[:, 2:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(end, last)
    assert not torch.allclose(ours(WINDOW[:, 2:])[0], second)  # without it, it is another


@pytest.mark.parametrize("cell", CELLS)
def test_burning_in_is_going_over_the_earlier_steps_without_gradient(cell):
    ours = net(cell)
    start = torch.randn(2, ours.state_size, generator=torch.Generator().manual_seed(1)).requires_grad_()
    counts = torch.tensor([3, 1])
    out, _ = ours(WINDOW[:, 3:], start, WINDOW[:, :3], counts)
    for row, count in enumerate(counts):
        _, state = ours(WINDOW[row : row + 1, :count], start[row : row + 1])
        expected, _ = ours(WINDOW[row : row + 1, 3:], state)
        torch.testing.assert_close(out[row], expected[0])
    out.sum().backward()
    assert start.grad is None
    gradient = [parameter.grad.clone() for parameter in ours.parameters()]
    ours.zero_grad()
    with torch.no_grad():
        states = torch.cat([ours(WINDOW[row, :count][None], start[row][None])[1] for row, count in enumerate(counts)])
    ours(WINDOW[:, 3:], states)[0].sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in ours.parameters()], gradient)


def test_no_step_to_burn_in_with_leaves_the_state_as_it_is():
    ours = net()
    out, _ = ours(WINDOW[:, 3:], None, WINDOW[:, :3], torch.tensor([0, 0]))
    torch.testing.assert_close(out, ours(WINDOW[:, 3:])[0])


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ({"bidirectional": True}, "not known while acting: use false"),
        ({"batch_norm": True}, "use layer_norm with RecurrentNet"),
        ({"fc_hid_layers": [0]}, "at least 1 unit"),
        ({"cell_type": "gru"}, "'RNN', 'GRU' or 'LSTM'"),
    ],
)
def test_keys_that_cannot_be_are_refused_with_a_remedy(key, remedy):
    with pytest.raises(ValidationError, match=remedy):
        RecurrentNet.Settings(**key)


def test_slm_labs_keys_are_read():
    keys = {
        "cell_type": "LSTM",
        "fc_hid_layers": [5],
        "hid_layers_activation": "tanh",
        "rnn_hidden_size": 6,
        "rnn_num_layers": 2,
        "bidirectional": False,
        "seq_len": 3,
    }
    settings = RecurrentNet.Settings(**keys)
    assert {key: getattr(settings, key) for key in keys} == keys
    ours = RecurrentNet(settings, ROW, {"q": 2})
    assert ours.state_size == 2 * 2 * 6  # the LSTM's two tensors, two layers
    assert ours.body.activation is torch.tanh


def test_layers_before_the_cells_and_parts_of_observations():
    space = spaces.Dict({"a": ROW, "b": spaces.Discrete(2)})
    ours = net(space=space, fc_hid_layers=[7], heads={"policy": 2, "value": 1})
    assert ours.body.layers[0].weight.shape == (7, 5)
    assert ours.cell.input_size == 7
    (policy, value), state = ours({"a": WINDOW, "b": torch.ones(2, 6, dtype=torch.int64)}, ours.first_state(2))
    assert (policy.shape, value.shape, state.shape) == ((2, 6, 2), (2, 6, 1), (2, 8))


@pytest.mark.parametrize("cell", CELLS)
def test_flat_parameters_copies_and_functional_calls_give_the_same(cell):
    ours = net(cell)
    expected, _ = ours(WINDOW)
    other = copy.deepcopy(ours)
    flat = flatten(ours, trained=True)
    torch.testing.assert_close(ours(WINDOW)[0], expected)
    ours(WINDOW)[0].square().sum().backward()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    values = {name: parameter.detach() for name, parameter in ours.named_parameters()}
    torch.testing.assert_close(functional_call(other, values, (WINDOW,))[0], expected)
    grads = grad(lambda values: functional_call(other, values, (WINDOW,))[0].square().sum())(values)
    torch.testing.assert_close(torch.cat([grads[name].flatten() for name in values]), flat.grad, rtol=1e-4, atol=1e-5)
