import numpy as np
import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError

from slm_lab.agent.net.hydra import HydraMLPNet

PARTS = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3), "c": spaces.Box(-1, 1, (1,))})


def net(hid_layers, space=PARTS, heads=None, **given):
    settings = HydraMLPNet.Settings(hid_layers=hid_layers, **given)
    assert HydraMLPNet.check(settings, space) == []
    return HydraMLPNet(settings, space, heads or {"policy": 2, "value": 1})


def sizes(layers):
    return [(layer.in_features, layer.out_features) for layer in layers]


def obs(rows=5):
    rng = np.random.default_rng(0)
    parts = {"a": rng.normal(size=(rows, 2)), "b": rng.integers(0, 3, rows), "c": rng.normal(size=(rows, 1))}
    return {name: part.astype(np.float32) if name != "b" else part for name, part in parts.items()}


def test_each_part_and_each_head_has_its_own_layers():
    ours = net([[[4], [5, 6], []], [7], {"value": [8]}])
    assert [sizes(encoder.hidden.layers) for encoder in ours.encoder.encoders] == [[(2, 4)], [(3, 5), (5, 6)], []]
    assert sizes(ours.body.layers) == [(4 + 6 + 1, 7)]
    assert sizes(ours.heads["policy"].hidden.layers) == []
    assert sizes(ours.heads["value"].hidden.layers) == [(7, 8)]
    assert sizes([ours.heads["policy"].last, ours.heads["value"].last]) == [(7, 2), (8, 1)]


def test_one_list_stands_for_all_and_none_for_no_layers():
    ours = net([[[4]], [], [[3]]])
    assert [sizes(encoder.hidden.layers) for encoder in ours.encoder.encoders] == [[(2, 4)], [(3, 4)], [(1, 4)]]
    assert all(sizes(tail.hidden.layers) == [(12, 3)] for tail in ours.heads.values())
    ours = net([[], [6], []])
    assert sizes(ours.body.layers) == [(2 + 3 + 1, 6)]


def test_an_observation_without_parts_is_one():
    ours = net([[[4]], [6], []], spaces.Box(-1, 1, (2,)))
    assert sizes(ours.encoder.hidden.layers) == [(2, 4)]


def test_numpy_and_torch_agree():
    ours = net([[[4]], [5], [[3]]], init_fn="orthogonal_")
    given = obs()
    with torch.no_grad():
        by_torch = ours({name: torch.from_numpy(part) for name, part in given.items()})
    for head, expected in zip(("policy", "value"), by_torch, strict=True):
        np.testing.assert_allclose(ours.numpy_forward(head)(given), expected, rtol=1e-5, atol=1e-6)


def test_tails_start_as_hidden_layers_and_heads_as_heads():
    ours = net([[], [4], [[4]]], heads={"policy": 2}, init_fn="orthogonal_")
    tail = ours.heads["policy"]
    torch.testing.assert_close(tail.hidden.layers[0].weight @ tail.hidden.layers[0].weight.T, 2 * torch.eye(4))
    torch.testing.assert_close(tail.last.weight @ tail.last.weight.T, 1e-4 * torch.eye(2))


def test_layers_for_another_number_of_parts_are_a_mistake():
    settings = HydraMLPNet.Settings(hid_layers=[[[4], [4]], [], []])
    (mistake,) = HydraMLPNet.check(settings, PARTS)
    assert str(mistake).startswith("agent.net.hid_layers: layers for 2 parts of the observation, which has 3")


@pytest.mark.parametrize(
    ("layers", "told"), [([[], [8], [[4], [4]]], "name the head of each"), ([[[0]], [8], []], "at least 1 unit")]
)
def test_what_a_net_cannot_be_is_refused_when_the_spec_is_read(layers, told):
    with pytest.raises(ValidationError) as caught:
        HydraMLPNet.Settings(hid_layers=layers)
    assert told in str(caught.value)
