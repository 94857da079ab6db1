"""Agents with each kind of net: on images, on observations of several parts, and with running statistics."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.agent import check_agent, has_compiler
from slm_lab.agent.algorithm.algorithm import acting_forward
from slm_lab.agent.net.encoder import parts_of
from slm_lab.experiment import checkpoint
from slm_lab.spec import registry

IMAGE = spaces.Box(0, 255, (2, 6, 6), np.uint8)
PICTURE = spaces.Box(0, 255, (6, 6, 3), np.uint8)
ROBOT = spaces.Dict(
    {"eye": PICTURE, "arm": spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(2)})}
)
ARM = ROBOT["arm"]
EYE = {"type": "ConvNet", "conv_hid_layers": [[2, 3, 3]]}
NETS = {
    "images": (IMAGE, {"type": "ConvNet"}),
    "pictures": (PICTURE, {"type": "ConvNet", "init_fn": "orthogonal_"}),
    "images, batch norm": (IMAGE, {"type": "ConvNet", "batch_norm": True}),
    "dueling images": (IMAGE, {"type": "DuelingConvNet"}),
    "parts, one of them an image": (ROBOT, {"type": "ConvNet"}),
    "encoders": (ROBOT, {"type": "MLPNet", "encoders": {"eye": EYE, "arm.place": {"hid_layers": [3]}}}),
    "flat parts": (ARM, {"type": "MLPNet"}),
    "hydra": (ARM, {"type": "HydraMLPNet", "hid_layers": [[[3]], [4], [[3]]]}),
    "layer norm": (ARM, {"type": "MLPNet", "layer_norm": True}),
    "batch norm": (ARM, {"type": "MLPNet", "batch_norm": True}),
}
ALGORITHMS = ["Reinforce", "ActorCritic", "PPO", "DQN", "DoubleDQN", "SAC", "TD3", "CrossQ"]
FITTING = [
    (algorithm, kind)
    for algorithm in ALGORITHMS
    for kind, (_, net) in NETS.items()
    if registry.find("net", net["type"]).needs_head in (None, *registry.find("algorithm", algorithm).heads)
    and not (algorithm == "PPO" and "batch_norm" in net)  # refused: its ratio would be of two batches' statistics
]


def make_life(lab, space, **keys):
    class Sights(lab.Life):
        """A life of observations from a space."""

        def observe(self):
            seeds = self.rng.integers(2**31, size=self.num_envs)
            drawn = []
            for seed in seeds:
                space.seed(int(seed))
                drawn.append(space.sample())
            return gather(space, drawn)

    return Sights(**keys)


def gather(space, drawn):
    if not isinstance(space, spaces.Dict):
        return np.stack(drawn)

    def leaf(tree, name):
        for key in name.split("."):
            tree = tree[key]
        return tree

    return {name: np.stack([leaf(one, name) for one in drawn]) for name in parts_of(space)}


def make(lab, algorithm, kind, **keys):
    space, net = NETS[kind]
    small = {"time_horizon": 4, "minibatch_size": 8} if algorithm == "PPO" else {"training_frequency": 2}
    own = {"net_": {**net, **keys.pop("net_", {})}, "algorithm_": {**small, **keys.pop("algorithm_", {})}}
    return lab.agent(algorithm, obs_space=space, **own, **keys)


def state(agent):
    trees = [learner.state_dict() for learner in agent.algorithm.learners]
    names = ("parameters", "targets", "buffers", "target_buffers")
    return [values.tolist() for tree in trees for key in names for values in tree[key]]


@pytest.mark.parametrize(("algorithm", "kind"), FITTING)
def test_every_net_learns_stays_finite_and_goes_on_from_its_file_exactly(lab, algorithm, kind, tmp_path):
    space = NETS[kind][0]
    first, second = (make(lab, algorithm, kind, net_={"shared": False}) for _ in range(2))
    assert check_agent(lab.spec(algorithm, net_=NETS[kind][1]), space, lab.action_space(algorithm)) == []
    life, again = (make_life(lab, space) for _ in range(2))
    before = state(first)
    life.go_on(first, 31)
    assert first.algorithm.opt_step > 0
    assert state(first) != before
    checkpoint.write(tmp_path / "agent", first.state_dict())
    second.load_state_dict(checkpoint.read(tmp_path / "agent"))
    again.rng.bit_generator.state = life.rng.bit_generator.state
    again.obs, again.frame = life.obs, life.frame
    assert (life.go_on(first, 20) == again.go_on(second, 20)).all()
    assert state(first) == state(second)
    assert np.isfinite(np.concatenate([np.ravel(values) for values in state(first)])).all()
    assert first.algorithm.report(life.frame) == second.algorithm.report(again.frame)


@pytest.mark.parametrize("kind", ["batch norm", "images, batch norm"])
@pytest.mark.parametrize("algorithm", ["ActorCritic", "DQN"])
def test_running_means_are_part_of_what_acting_needs(lab, algorithm, kind, tmp_path):
    first, second = make(lab, algorithm, kind), make(lab, algorithm, kind, seed=5)
    life = make_life(lab, NETS[kind][0])
    life.go_on(first, 30)
    checkpoint.write(tmp_path / "policy", first.algorithm.policy_state())
    second.algorithm.load_policy_state(checkpoint.read(tmp_path / "policy"))
    names = ("parameters", "buffers")
    ours, theirs = (agent.algorithm.learner.state_dict() for agent in (first, second))
    assert all(torch.equal(a, b) for name in names for a, b in zip(ours[name], theirs[name], strict=True))
    assert any(buffer.any() for buffer in ours["buffers"])


def test_acting_and_valuing_leave_the_running_means_alone(lab):
    agent = make(lab, "ActorCritic", "batch norm", algorithm_={"training_frequency": 1000})
    before = state(agent)
    obs = make_life(lab, ARM, num_envs=8).obs
    assert agent.act(obs, 0, explore=False).shape == (8,)
    one_by_one = [agent.act({name: part[k : k + 1] for name, part in obs.items()}, 0, explore=False) for k in range(8)]
    assert np.concatenate(one_by_one).tolist() == agent.act(obs, 0, explore=False).tolist()
    assert state(agent) == before


@pytest.mark.parametrize(("keys", "share"), [({"update_type": "replace"}, 1.0), ({"polyak_coef": 0.25}, 0.25)])
def test_the_target_nets_running_means_follow_as_its_parameters_do(lab, keys, share):
    agent = make(lab, "DQN", "batch norm", net_=keys)
    learner, life = agent.algorithm.learner, make_life(lab, ARM)
    while learner.opt_step == 0:
        life.go_on(agent, 1)
    assert learner.opt_step == 1
    for target, now, begin in zip(learner.target.buffers(), learner.net.buffers(), (0.0, 1.0), strict=True):
        torch.testing.assert_close(target, begin + share * (now - begin))


def test_running_means_stay_where_they_are_for_those_that_share_them(lab):
    agent = make(lab, "DQN", "batch norm")
    places = [buffer.data_ptr() for buffer in agent.algorithm.learner.net.buffers()]
    make_life(lab, ARM).go_on(agent, 20)
    assert [buffer.data_ptr() for buffer in agent.algorithm.learner.net.buffers()] == places


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on the PATH, which torch.compile needs")
def test_a_compiled_step_is_the_eager_step_running_means_included(lab):
    kind = "images, batch norm"
    eager, compiled = (make(lab, "DoubleDQN", kind, meta_={"compile": flag}) for flag in (False, True))
    for agent in (eager, compiled):
        make_life(lab, NETS[kind][0]).go_on(agent, 16)
    assert compiled.algorithm.opt_step == eager.algorithm.opt_step > 3
    for one, other in zip(state(compiled), state(eager), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_acting_through_torch_takes_parts():
    forward = acting_forward(None, lambda obs: obs["a"] + obs["b"], torch.device("cpu"))
    assert forward({"a": np.ones(2), "b": np.ones(2)}).tolist() == [2, 2]
