import numpy as np
import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError

from slm_lab.agent.net.encoder import parts_of
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.errors import SpecError
from slm_lab.spec.schema import read_block

IMAGE = spaces.Box(0, 255, (6, 6), np.uint8)
ROBOT = spaces.Dict({"eye": IMAGE, "arm": spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(2)})})
EYE = {"type": "ConvNet", "conv_hid_layers": [[2, 3, 3]], "fc_hid_layers": [5]}


def settings(**encoders):
    return MLPNet.Settings(hid_layers=[4], encoders=encoders)


def draw(space, rows=4):
    stacked = {name: [] for name in parts_of(space)}
    space.seed(0)
    for _ in range(rows):
        for name, part in parts_of(space).items():
            stacked[name].append(part.sample())
    return {name: np.array(values) for name, values in stacked.items()}


def test_parts_have_dotted_names():
    assert list(parts_of(ROBOT)) == ["arm.grip", "arm.place", "eye"]
    assert list(parts_of(spaces.Tuple([IMAGE, ROBOT]))) == ["0", "1.arm.grip", "1.arm.place", "1.eye"]
    assert parts_of(IMAGE) == {"": IMAGE}


def test_parts_are_encoded_each_in_its_way_and_put_side_by_side():
    ours = MLPNet(settings(eye=EYE, **{"arm.place": {"hid_layers": [7]}}), ROBOT, {"q": 3})
    assert [encoder.width for encoder in ours.encoder.encoders] == [2, 7, 5]
    assert ours.body.layers[0].in_features == 14
    obs = draw(ROBOT)
    features = ours.encoder({name: torch.from_numpy(part) for name, part in obs.items()})
    assert features[:, :2].tolist() == np.eye(2)[obs["arm.grip"]].tolist()
    assert features.shape == (4, 14)
    assert ours.numpy_forward("q") is None


def test_flat_parts_need_no_encoder_and_act_in_numpy():
    space = spaces.Tuple([spaces.Box(-1, 1, (2, 2)), spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3], start=[1, 0])])
    assert MLPNet.check(settings(), space) == []
    ours = MLPNet(settings(), space, {"q": 3})
    obs = draw(space)
    features = ours.encoder({name: torch.from_numpy(part) for name, part in obs.items()})
    assert features.shape == (4, 4 + 3 + 2 + 3)
    assert features[:, 7:].tolist() == np.hstack([np.eye(2)[obs["2"][:, 0] - 1], np.eye(3)[obs["2"][:, 1]]]).tolist()
    with torch.no_grad():
        np.testing.assert_allclose(
            ours.numpy_forward("q")(obs),
            ours.body(features) @ ours.heads["q"].weight.T + ours.heads["q"].bias,
            rtol=1e-5,
            atol=1e-6,
        )


def told(space, **encoders):
    return [str(mistake) for mistake in MLPNet.check(settings(**encoders), space)]


def test_encoders_that_do_not_fit_are_mistakes():
    assert told(ROBOT, eye=EYE) == []
    assert told(ROBOT) == [
        "agent.net.type: MLPNet takes flat observations; the part 'eye' is images of (6, 6): use ConvNet, "
        "or give it an encoder"
    ]
    assert told(ROBOT, eye=EYE, leg=EYE) == [
        "agent.net.encoders: the env's observations have no part 'leg'; there are arm.grip, arm.place, eye"
    ]
    assert told(ROBOT, eye={**EYE, "conv_hid_layers": [[2, 7]]}) == [
        "agent.net.encoders.eye.conv_hid_layers: the kernel of [2, 7] is larger than what is left of the image there, "
        "6 x 6"
    ]
    assert told(spaces.Dict({"grip": spaces.Discrete(2)}), grip=EYE) == [
        "agent.net.encoders.grip.type: ConvNet takes images; the part 'grip' is Discrete(2): use MLPNet"
    ]


@pytest.mark.parametrize(
    ("encoder", "told"), [({"type": "LSTM"}, "LSTM"), ({"type": "ConvNet", "hid_layers": []}, "hid_layers")]
)
def test_an_encoder_that_cannot_be_is_refused_when_the_spec_is_read(encoder, told):
    with pytest.raises(ValidationError) as caught:
        settings(eye=encoder)
    assert told in str(caught.value)


def test_an_encoder_of_no_such_type_is_told_by_its_type():
    with pytest.raises(SpecError) as caught:
        read_block("net", {"type": "MLPNet", "encoders": {"eye": {"type": "RecurrentNet"}}})
    (mistake,) = caught.value.mistakes
    assert mistake.path == "encoders.eye.type"
    assert mistake.problem == "got 'RecurrentNet'; must be 'MLPNet' or 'ConvNet'"
