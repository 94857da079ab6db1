import copy

import pytest
import torch
from gymnasium import spaces
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
def test_where_an_episode_starts_nothing_of_the_one_before_is_left(cell):
    ours = net(cell)
    starts = torch.zeros(2, 6, dtype=torch.bool)
    starts[0, 4] = True
    out, _ = ours(WINDOW, None, starts)
    torch.testing.assert_close(out[0, 4:], ours(WINDOW[:1, 4:])[0][0])
    torch.testing.assert_close(out[0, :4], ours(WINDOW[:1, :4])[0][0])
    torch.testing.assert_close(out[1], ours(WINDOW[1:])[0][0])


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
