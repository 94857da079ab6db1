import numpy as np
import torch
from gymnasium import spaces

from slm_lab.agent.net.dueling import DuelingMLPNet


def test_parts_of_an_actions_value_are_dueling_part_by_part():
    """Two actions of two parts each; the part's number is what the observation is multiplied with."""
    space = spaces.Box(-1, 1, (1,), np.float32)
    net = DuelingMLPNet(DuelingMLPNet.Settings(hid_layers=[]), space, {"q": (2, 2)})
    head = net.heads["q"]
    with torch.no_grad():
        for layer, weight in ((head.value, [10.0, 20.0]), (head.advantage, [1.0, 2.0, 3.0, 6.0])):
            layer.weight.copy_(torch.tensor(weight).unsqueeze(-1))
            layer.bias.zero_()
    # advantages 1 and 3 in the first part, mean 2; 2 and 6 in the second, mean 4
    obs = np.ones((1, 1), np.float32)
    assert net(torch.tensor(obs)).tolist() == [[9.0, 18.0, 11.0, 22.0]]
    assert net.numpy_forward("q")(obs).tolist() == [[9.0, 18.0, 11.0, 22.0]]
