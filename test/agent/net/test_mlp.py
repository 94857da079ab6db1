import numpy as np
import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError

from slm_lab.agent.net.dueling import DuelingMLPNet
from slm_lab.agent.net.encoder import Flat
from slm_lab.agent.net.hidden import ACTIVATIONS, NUMPY_ACTIVATIONS
from slm_lab.agent.net.mlp import MLPNet

PLANE = spaces.Box(-10, 10, (2,), np.float32)


def net(observation_space=PLANE, heads=None, net_class=MLPNet, **given):
    return net_class(net_class.Settings(**given), observation_space, heads or {"q": 3})


def fill(layer, weight, bias):
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))


def test_one_head_gives_its_tensor_and_several_a_tuple_in_their_order():
    obs = torch.zeros(5, 2)
    assert net()(obs).shape == (5, 3)
    policy, value = net(heads={"policy": 4, "value": 1})(obs)
    assert (policy.shape, value.shape) == ((5, 4), (5, 1))


def test_hidden_layers_are_those_of_the_spec():
    layers = net(hid_layers=[8, 4]).body.layers
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(2, 8), (8, 4)]
    assert len(net(hid_layers=[]).body.layers) == 0


def test_forward_by_hand():
    ours = net(hid_layers=[2], heads={"q": 1})
    fill(ours.body.layers[0], [[1.0, 2.0], [-1.0, 0.0]], [0.5, 0.0])
    fill(ours.heads["q"], [[2.0, 10.0]], [-1.0])
    # hidden: relu(1 + 2 + 0.5) = 3.5 and relu(-1) = 0; out: 2 * 3.5 - 1
    assert ours(torch.tensor([[1.0, 1.0]])).tolist() == [[6.0]]


def test_dueling_by_hand():
    ours = net(net_class=DuelingMLPNet, hid_layers=[])
    fill(ours.heads["q"].value, [[1.0, 1.0]], [4.0])
    fill(ours.heads["q"].advantage, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [0.0, 0.0, 0.0])
    # value 3 + 6 + 4 = 13; advantages 3, 6, 0 with mean 3
    obs = np.array([[3.0, 6.0]], np.float32)
    assert ours(torch.tensor(obs)).tolist() == [[13.0, 16.0, 10.0]]
    assert ours.numpy_forward("q")(obs).tolist() == [[13.0, 16.0, 10.0]]


def test_only_the_q_head_is_dueling():
    ours = net(net_class=DuelingMLPNet, heads={"policy": 2})
    assert isinstance(ours.heads["policy"], torch.nn.Linear)
    assert ours.numpy_forward("policy")(np.zeros((1, 2), np.float32)).shape == (1, 2)


@pytest.mark.parametrize("activation", NUMPY_ACTIVATIONS)
@pytest.mark.parametrize("net_class", [MLPNet, DuelingMLPNet])
def test_numpy_and_torch_agree(activation, net_class):
    torch.manual_seed(0)
    ours = net(net_class=net_class, hid_layers_activation=activation, init_fn="normal_", heads={"q": 3, "value": 1})
    obs = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    with torch.no_grad():
        by_torch = dict(zip(("q", "value"), ours(torch.from_numpy(obs)), strict=True))
    for head, expected in by_torch.items():
        np.testing.assert_allclose(ours.numpy_forward(head)(obs), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("given", [{"layer_norm": True}, {"hid_layers_activation": "gelu"}])
def test_where_only_torch_can_compute_the_net_numpy_forward_is_none(given):
    assert net(**given).numpy_forward("q") is None


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_activation_makes_a_net_that_can_be_trained(activation, layer_norm):
    ours = net(hid_layers_activation=activation, layer_norm=layer_norm, init_fn="orthogonal_")
    ours(torch.ones(4, 2)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in ours.parameters())


def test_numpy_forward_follows_updates_in_place_and_leaves_the_observation_alone():
    ours = net(hid_layers=[4])
    act = ours.numpy_forward("q")
    obs = -np.ones((1, 2), np.float32)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(-3).add_(1)
        np.testing.assert_allclose(act(obs), ours(torch.from_numpy(obs)), rtol=1e-5)
    assert (obs == -1).all()


def test_discrete_observations_are_one_hot_from_the_spaces_first_class():
    ours = net(spaces.Discrete(3, start=5), hid_layers=[])
    fill(ours.heads["q"], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], [0.0, 0.0, 0.0])
    classes = np.array([5, 7])
    assert ours(torch.from_numpy(classes)).tolist() == [[1, 4, 7], [3, 6, 9]]
    assert ours.numpy_forward("q")(classes).tolist() == [[1, 4, 7], [3, 6, 9]]


def test_a_million_classes_take_no_more_room_than_a_row_of_them():
    flat = Flat(spaces.Discrete(1_000_000, start=-3))
    classes = np.array([-3, 999_996])
    for rows in (flat(torch.from_numpy(classes)).numpy(), flat.numpy_forward()(classes)):
        assert (rows.shape, rows.dtype) == ((2, 1_000_000), np.float32)
        assert [row.nonzero()[0].tolist() for row in rows] == [[0], [999_999]]


@pytest.mark.parametrize(
    ("space", "width"),
    [
        (spaces.Box(0, 1, (3, 4)), 12),
        (spaces.Box(0, 1, ()), 1),
        (spaces.Box(0, 255, (6,), np.uint8), 6),
        (spaces.Box(-1, 1, (2,), np.float64), 2),
    ],
)
def test_observations_are_flattened_and_made_floats(space, width):
    ours = net(space)
    assert MLPNet.check(MLPNet.Settings(), space) == []
    assert ours.body.layers[0].in_features == width
    obs = np.stack([space.sample() for _ in range(5)])
    with torch.no_grad():
        expected = ours(torch.from_numpy(obs))
    assert expected.dtype == torch.float32
    np.testing.assert_allclose(ours.numpy_forward("q")(obs), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "images of (84, 84, 3)"),
        (spaces.Dict({"a": PLANE, "b": spaces.Text(3)}), "the part 'b' is Text"),
        (spaces.Text(3), "the env's are Text"),
    ],
)
def test_observations_that_do_not_fit_are_told(space, told):
    (mistake,) = MLPNet.check(MLPNet.Settings(), space)
    assert mistake.path == "agent.net.type"
    assert told in mistake.problem


def test_init_fn_fills_the_weights_and_zeroes_the_biases():
    ours = net(init_fn="orthogonal_", hid_layers=[2], heads={"policy": 2, "value": 1})
    hidden, policy, value = ours.body.layers[0], ours.heads["policy"], ours.heads["value"]
    eye = torch.eye(2)
    torch.testing.assert_close(hidden.weight @ hidden.weight.T, 2 * eye)  # relu: gain sqrt(2)
    torch.testing.assert_close(policy.weight @ policy.weight.T, 1e-4 * eye)
    torch.testing.assert_close(value.weight @ value.weight.T, torch.ones(1, 1))
    assert not any(layer.bias.any() for layer in (hidden, policy, value))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"init_fn": "orthogonal"}, "did you mean 'orthogonal_'?"),
        ({"init_fn": "constant_"}, "no init_fn named 'constant_'"),
        ({"hid_layers_activation": "rellu"}, "did you mean 'relu'?"),
        ({"hid_layers": [64, 0]}, "at least 1 unit"),
        ({"hid_layer": [64]}, "hid_layer"),
    ],
)
def test_what_a_net_cannot_take_is_refused_when_the_spec_is_read(given, told):
    with pytest.raises(ValidationError) as caught:
        MLPNet.Settings(**given)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "init_fn",
    [
        "orthogonal_",
        "xavier_uniform_",
        "xavier_normal_",
        "kaiming_uniform_",
        "kaiming_normal_",
        "trunc_normal_",
        "eye_",
    ],
)
def test_every_initialiser_can_fill_a_net(init_fn):
    assert all(parameter.isfinite().all() for parameter in net(init_fn=init_fn).parameters())
