import numpy as np
import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError

from slm_lab.agent.net.conv import ConvNet
from slm_lab.agent.net.dueling import DuelingConvNet, DuelingHead
from slm_lab.agent.net.encoder import channels_of, sizes_after

ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
SMALL = spaces.Box(0, 255, (2, 6, 5), np.uint8)


def net(space=SMALL, heads=None, net_class=ConvNet, **given):
    keys = {"conv_hid_layers": [[3, 2]], "fc_hid_layers": [4], **given}
    return net_class(net_class.Settings(**keys), space, heads or {"q": 3})


def images(space, rows=3, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (rows, *space.shape)).astype(space.dtype))


def test_the_layers_are_those_of_the_spec():
    layers = [[32, 8, 4, 0, 1], [64, 4, 2, 0, 1], [64, 3, 1, 0, 1]]
    ours = net(ATARI, conv_hid_layers=layers, fc_hid_layers=[512])
    assert [tuple(layer.weight.shape) for layer in ours.encoder.convolutions] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]
    assert ours.body.layers[0].weight.shape == (512, 3136)  # 64 x 7 x 7, as Mnih 2015 has it
    assert ours(images(ATARI)).shape == (3, 3)


def test_what_is_left_out_of_a_layer_is_torchs_default():
    whole, shorter = net(conv_hid_layers=[[3, 2, 1, 0, 1]]), net(conv_hid_layers=[[3, 2]])
    shorter.load_state_dict(whole.state_dict())
    assert shorter(images(SMALL)).equal(whole(images(SMALL)))


@pytest.mark.parametrize("layer", [[3, 2], [3, 3, 2], [3, 3, 1, 1], [3, 2, 1, 2, 2], [3, 2, 3, 1, 3]])
def test_the_size_after_a_convolution_is_the_one_that_torch_makes(layer):
    made = torch.nn.Conv2d(2, *layer)(torch.zeros(1, 2, 6, 5)).shape[1:]
    assert sizes_after((2, 6, 5), [layer])[-1] == tuple(made)


def test_forward_by_hand():
    ours = net(spaces.Box(0, 255, (1, 2, 2), np.uint8), {"q": 1}, conv_hid_layers=[[1, 2]], fc_hid_layers=[])
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.fill_(1.0)
    # the convolution: (51 + 51 + 0 + 0) / 255 + 1 = 1.4; the head: 1.4 + 1
    obs = torch.tensor([[[[51, 51], [0, 0]]]], dtype=torch.uint8)
    assert ours(obs).item() == pytest.approx(2.4)
    assert net(SMALL, normalize=False).encoder.scale == 1.0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84), ((1, 84, 84), False)),
        ((4, 84, 84), ((4, 84, 84), False)),
        ((84, 84, 3), ((3, 84, 84), True)),
        ((3, 3, 3), ((3, 3, 3), False)),
        ((4, 3, 84, 64), ((12, 84, 64), False)),
        ((4, 84, 64, 3), ((12, 84, 64), True)),
    ],
)
def test_channels_are_found_first_or_last_and_stacks_join_them(shape, expected):
    assert channels_of(shape) == expected


def test_images_with_channels_last_are_turned():
    first, last = spaces.Box(0, 255, (3, 6, 5), np.uint8), spaces.Box(0, 255, (6, 5, 3), np.uint8)
    torch.manual_seed(0)
    ours = net(first)
    torch.manual_seed(0)
    turned = net(last)
    obs = images(first)
    torch.testing.assert_close(turned(obs.permute(0, 2, 3, 1)), ours(obs))


def test_stacked_pictures_become_channels_picture_by_picture():
    stack = spaces.Box(0, 255, (2, 6, 5, 3), np.uint8)
    torch.manual_seed(0)
    ours = net(stack)
    torch.manual_seed(0)
    flat = net(spaces.Box(0, 255, (6, 6, 7), np.uint8))  # of other sides: only the channels matter
    assert ours.encoder.convolutions[0].weight.equal(flat.encoder.convolutions[0].weight)
    obs = images(stack)
    by_hand = torch.cat([obs[:, 0].permute(0, 3, 1, 2), obs[:, 1].permute(0, 3, 1, 2)], 1).float() / 255
    expected = torch.relu(ours.encoder.convolutions[0](by_hand)).flatten(1)
    torch.testing.assert_close(ours.encoder(obs), expected)


@pytest.mark.parametrize("norm", [{}, {"layer_norm": True}, {"batch_norm": True}])
@pytest.mark.parametrize("init_fn", [None, "orthogonal_", "eye_", "xavier_uniform_", "kaiming_normal_"])
def test_every_norm_and_initialiser_makes_a_net_that_can_be_trained(norm, init_fn):
    ours = net(init_fn=init_fn, **norm)
    ours(images(SMALL)).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in ours.parameters())


def test_init_fn_reaches_the_convolutions():
    layer = net(conv_hid_layers=[[4, 2]], init_fn="orthogonal_").encoder.convolutions[0]
    rows = layer.weight.flatten(1)
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(4))  # relu: gain sqrt(2)
    assert not layer.bias.any()


def test_only_the_q_head_of_a_dueling_net_is_dueling():
    ours = net(net_class=DuelingConvNet, heads={"q": (3, 2), "value": 1})
    assert isinstance(ours.heads["q"], DuelingHead)
    q, value = ours(images(SMALL))
    assert (q.shape, value.shape) == ((3, 6), (3, 1))


def told(space, **given):
    keys = {"conv_hid_layers": [[3, 4, 2], [3, 3]], **given}
    return [str(mistake) for mistake in ConvNet.check(ConvNet.Settings(**keys), space)]


def test_an_image_that_fits_is_no_mistake_and_what_does_not_is_one():
    assert told(ATARI) == []
    assert told(spaces.Dict({"eye": ATARI, "speed": spaces.Box(0, 1, (2,))})) == []
    assert told(spaces.Box(0, 1, (2,))) == [
        "agent.net.type: ConvNet takes images; the env's observations are Box(0.0, 1.0, (2,), float32)"
    ]
    assert told(SMALL) == [
        "agent.net.conv_hid_layers: the kernel of [3, 3] is larger than what is left of the image there, 2 x 1"
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"conv_hid_layers": [[32]]}, "[32] is not [channels, kernel, stride, padding, dilation]"),
        ({"conv_hid_layers": [[32, 8, 4, 0, 1, 1]]}, "is not [channels"),
        ({"conv_hid_layers": [[32, 8, 0]]}, "padding is at least 0, all other numbers at least 1"),
        ({"conv_hid_layers": [[0, 8]]}, "all other numbers at least 1"),
        ({"fc_hid_layers": [0]}, "at least 1 unit"),
        ({"hid_layers": [64]}, "hid_layers"),
        ({"layer_norm": True, "batch_norm": True}, "set one of them to false"),
    ],
)
def test_what_a_net_cannot_be_is_refused_when_the_spec_is_read(given, told):
    with pytest.raises(ValidationError) as caught:
        ConvNet.Settings(**given)
    assert told in str(caught.value)
