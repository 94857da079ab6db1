import copy
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.agent import Agent, check_agent, compile_pays
from slm_lab.env import VectorEnv
from slm_lab.experiment import checkpoint
from slm_lab.spec import registry
from slm_lab.spec.schema import EnvSpec

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
LEARNING = [name for name in registry.names("algorithm") if registry.find("algorithm", name).needs_learning]
TWO = spaces.Discrete(2)
FITTING = [
    (algorithm, memory, net)
    for algorithm in LEARNING
    for memory in registry.names("memory")
    for net in registry.names("net")
    if registry.find("algorithm", algorithm).on_policy == registry.find("memory", memory).on_policy
    and registry.find("algorithm", algorithm).learns_from == registry.find("memory", memory).gives
    and registry.find("net", net).needs_head in (None, *registry.find("algorithm", algorithm).heads)
    and not registry.find("net", net).carries_state
    and not registry.find("net", net).check(registry.find("net", net).Settings(), BOX)  # nets for images: test_nets.py
] + [
    (algorithm, memory, "RecurrentNet")
    for algorithm in LEARNING
    for memory in ("SequenceReplay", "OnPolicyReplay", "OnPolicyBatchReplay")
    if registry.find("algorithm", algorithm).on_policy == registry.find("memory", memory).on_policy
    and registry.find("algorithm", algorithm).lacks_order is None
]


def parameters(agent):
    return [group.flat.tolist() for learner in agent.algorithm.learners for group in learner.groups]


# all that the registry knows


@pytest.mark.parametrize("env_name", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(("algorithm", "memory", "net"), FITTING)
def test_every_fitting_combination_learns_and_stays_finite(lab, algorithm, memory, net, env_name):
    small = {"time_horizon": 2, "minibatch_size": 32} if "PPO" in algorithm else {"training_frequency": 1}
    spec = lab.spec(algorithm, memory, algorithm_=small, net_={"type": net, "clip_grad_val": 1.0})
    env = VectorEnv(EnvSpec(name=env_name, num_envs=2, max_t=16, max_frame=100), seed=0)
    if check_agent(spec, env.observation_space, env.action_space):
        of_values = "q" in registry.find("algorithm", algorithm).heads  # of actions, which need discrete ones
        assert env_name == ("Pendulum-v1" if of_values else "CartPole-v1")
        assert of_values or isinstance(lab.action_space(algorithm), spaces.Box)
        return
    agent = Agent(spec, env.observation_space, env.action_space, seed=0)
    before = parameters(agent)
    obs, carried = env.reset(), agent.first_carried(2)
    for frame in range(0, 100, 2):
        action = agent.act(obs, frame, carried=carried)
        step = env.step(action)
        agent.remember(obs, action, step, carried)
        agent.learn(frame + 2)
        obs = step.obs
    assert agent.algorithm.opt_step > 0
    assert parameters(agent) != before
    assert np.isfinite(np.concatenate(parameters(agent))).all()
    report = agent.algorithm.report(100)
    assert {"loss", "lr", "grad_norm", *agent.algorithm.reports} == set(report)
    assert np.isfinite(list(report.values())).all()


@pytest.mark.parametrize("action_space", [spaces.Discrete(3, start=2), spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)])
def test_random_acts_and_has_nothing_to_learn(lab, action_space):
    agent = lab.agent("Random", action_space=action_space)
    actions = lab.Life().go_on(agent, 20)
    assert all(action in action_space for step in actions for action in step.astype(action_space.dtype))
    assert agent.algorithm.opt_step == 0
    assert agent.algorithm.report(40) == {}
    agent.load_state_dict(agent.state_dict())


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3], start=[5, -5]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(0, 255, (2,), np.uint8),
        spaces.Box(np.array([0, -np.inf, -np.inf, -3], np.float32), np.array([np.inf, 0, np.inf, -2], np.float32)),
        spaces.Box(-1, 1, (2, 2), np.float64),
    ],
)
def test_random_actions_lie_in_the_space(lab, space):
    agent = lab.agent("Random", action_space=space)
    actions = agent.act(np.zeros((500, 2)), 0)
    assert actions.dtype == space.dtype
    assert all(space.contains(action) for action in actions)
    assert len(np.unique(actions.reshape(500, -1), axis=0)) > 1


def test_random_reaches_both_ends_of_an_integer_box(lab):
    agent = lab.agent("Random", action_space=spaces.Box(0, 3, (1,), np.int64))
    assert set(agent.act(np.zeros((200, 2)), 0)[:, 0].tolist()) == {0, 1, 2, 3}


# seeds and acting


@pytest.mark.parametrize("algorithm", LEARNING)
def test_the_same_seed_is_the_same_agent_whatever_torchs_own_generator(lab, algorithm):
    torch.manual_seed(1)
    first = lab.agent(algorithm, seed=7)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = lab.agent(algorithm, seed=7)
    torch.rand(3)
    assert parameters(first) == parameters(second)
    assert parameters(first) != parameters(lab.agent(algorithm, seed=8))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())  # building drew nothing from it
    assert (lab.Life().go_on(first, 30) == lab.Life().go_on(second, 30)).all()
    assert parameters(first) == parameters(second)


@pytest.mark.parametrize("algorithm", registry.names("algorithm"))
@pytest.mark.parametrize("policy", [{}, {"action_policy": "boltzmann"}])
def test_acting_without_exploration_draws_nothing_and_is_always_the_same(lab, algorithm, policy):
    keys = policy if "DQN" in algorithm else {}
    agent = lab.agent(algorithm, algorithm_=keys)
    obs = lab.Life(16).obs
    before = agent.algorithm.state_dict()["rng"]
    best = agent.act(obs, 0, explore=False)
    if algorithm != "Random":
        assert (agent.act(obs, 999, explore=False) == best).all()
    assert agent.algorithm.state_dict()["rng"] == before
    agent.act(obs, 0)
    assert agent.algorithm.state_dict()["rng"] != before


@pytest.mark.parametrize("algorithm", LEARNING)
@pytest.mark.parametrize("net", ["MLPNet", "DuelingMLPNet"])
def test_a_net_that_only_torch_can_compute_acts_as_numpy_does(lab, algorithm, net, monkeypatch):
    fast = lab.agent(algorithm, net_={"type": net})
    monkeypatch.setattr(registry.find("net", net), "numpy_forward", lambda self, head: None)
    slow = lab.agent(algorithm, net_={"type": net})
    lives = lab.Life(), lab.Life()
    np.testing.assert_allclose(lives[0].go_on(fast, 40), lives[1].go_on(slow, 40), atol=1e-4)
    obs = lab.Life(32).obs
    np.testing.assert_allclose(fast.act(obs, 80, explore=False), slow.act(obs, 80, explore=False), atol=1e-4)


def test_acting_follows_every_update_and_loaded_parameters(lab):
    agent = lab.agent("DQN")
    obs = lab.Life(64, seed=5).obs
    before = agent.algorithm._values(obs)
    lab.Life().go_on(agent, 30)
    with torch.no_grad():
        expected = agent.algorithm.learner.net(torch.from_numpy(obs)).numpy()
    assert np.abs(agent.algorithm._values(obs) - before).max() > 1e-3
    np.testing.assert_allclose(agent.algorithm._values(obs), expected, rtol=1e-5, atol=1e-6)
    other = lab.agent("DQN", seed=3)
    other.algorithm.load_policy_state(agent.algorithm.policy_state())
    assert (other.act(obs, 0, explore=False) == agent.act(obs, 0, explore=False)).all()


# state


@pytest.mark.parametrize(("algorithm", "memory", "net"), FITTING)
def test_an_agent_goes_on_from_its_file_exactly(lab, algorithm, memory, net, tmp_path):
    optimizer = {"DQN": {"name": "RMSprop"}, "PPO": {"name": "Lookahead"}}.get(algorithm, {"name": "Adam"})
    keys = {"memory": memory, "net_": {"type": net, "shared": False, "optim_spec": optimizer}}
    if "PPO" in algorithm:
        keys["algorithm_"] = {"time_horizon": 8, "minibatch_size": 8}
    first, second = lab.agent(algorithm, **keys), lab.agent(algorithm, **keys)
    life, again = lab.Life(), lab.Life()
    life.go_on(first, 37)
    checkpoint.write(tmp_path / "agent", first.state_dict())
    again.go_on(lab.agent("Random"), 37)
    second.load_state_dict(checkpoint.read(tmp_path / "agent"))
    again.obs, again.carried = life.obs, copy.deepcopy(life.carried)
    again.rng.bit_generator.state = life.rng.bit_generator.state
    assert (life.go_on(first, 40) == again.go_on(second, 40)).all()
    assert parameters(first) == parameters(second)
    assert first.algorithm.opt_step == second.algorithm.opt_step > 0
    assert first.algorithm.report(life.frame) == second.algorithm.report(again.frame)


# cadence


def learn_steps(agent, life, steps):
    """Optimizer steps at each vector step."""
    counts = []
    for _ in range(steps):
        before = agent.algorithm.opt_step
        life.go_on(agent, 1)
        counts.append(agent.algorithm.opt_step - before)
    return counts


def test_replay_learns_every_so_many_frames(lab):
    for num_envs, frequency, expected in ((16, 4, [4, 4, 4, 4]), (1, 4, [0, 0, 0, 1]), (4, 8, [0, 1, 0, 1])):
        memory = {"batch_size": 1}
        agent = lab.agent("DQN", num_envs=num_envs, algorithm_={"training_frequency": frequency}, memory_=memory)
        assert learn_steps(agent, lab.Life(num_envs), 4) == expected


def test_replay_waits_for_its_first_frame_and_its_first_batch(lab):
    keys = {"algorithm_": {"training_start_step": 6}, "memory_": {"batch_size": 1}}
    assert learn_steps(lab.agent("DQN", **keys), lab.Life(), 5) == [0, 0, 0, 2, 2]
    assert learn_steps(lab.agent("DQN", memory_={"batch_size": 5}), lab.Life(), 4)[:2] == [0, 0]


def test_on_policy_batches_count_vector_steps(lab):
    for num_envs in (1, 5):
        agent = lab.agent("ActorCritic", num_envs=num_envs, algorithm_={"training_frequency": 3})
        assert learn_steps(agent, lab.Life(num_envs), 7) == [0, 0, 1, 0, 0, 1, 0]


def test_ppo_counts_by_its_time_horizon(lab):
    keys = {"time_horizon": 2, "training_frequency": 1, "training_epoch": 3, "minibatch_size": 100}
    assert learn_steps(lab.agent("PPO", algorithm_=keys), lab.Life(), 5) == [0, 3, 0, 3, 0]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_on_policy_replay_counts_complete_episodes_of_all_envs(lab, num_envs):
    agent = lab.agent("Reinforce", num_envs=num_envs, algorithm_={"training_frequency": 4})
    obs = np.zeros((num_envs, 2), np.float32)
    ended = learned = 0
    ends_of = np.random.default_rng(0).random((60, num_envs)) < 0.2
    for frame, ends in enumerate(ends_of):
        agent.memory.add(obs, [0] * num_envs, [1.0] * num_envs, ends, [False] * num_envs, obs)
        agent.learn(frame)
        ended += ends.sum()
        if ended >= 4:
            ended, learned = 0, learned + 1
        assert agent.algorithm.opt_step == learned
    assert learned > 1


# what does not fit


def told(spec, observation_space=BOX, action_space=TWO):
    return [str(mistake) for mistake in check_agent(spec, observation_space, action_space)]


@pytest.mark.parametrize(("algorithm", "memory", "net"), FITTING)
def test_what_fits_is_no_mistake(lab, algorithm, memory, net):
    spec = lab.spec(algorithm, memory, net_={"type": net})
    assert told(spec, action_space=lab.action_space(algorithm)) == []


@pytest.mark.parametrize("memory", ["OnPolicyReplay", "OnPolicyBatchReplay"])
@pytest.mark.parametrize("algorithm", ["VanillaDQN", "DQN", "DoubleDQN"])
def test_an_off_policy_algorithm_with_an_on_policy_memory_is_one_mistake(lab, algorithm, memory):
    assert told(lab.spec(algorithm, memory)) == [
        f"agent.memory.name: {algorithm} learns off-policy, from rows drawn again and again: '{memory}' does not fit; "
        "use Replay or PrioritizedReplay or NStepReplay or HindsightReplay"
    ]


@pytest.mark.parametrize("memory", ["Replay", "PrioritizedReplay"])
@pytest.mark.parametrize("algorithm", ["Reinforce", "ActorCritic", "PPO"])
def test_an_on_policy_algorithm_with_a_replay_memory_is_one_mistake(lab, algorithm, memory):
    assert told(lab.spec(algorithm, memory)) == [
        f"agent.memory.name: {algorithm} learns on-policy, from its newest rows: '{memory}' does not fit; "
        "use OnPolicyReplay or OnPolicyBatchReplay or OnPolicyCrossEntropy"
    ]


def test_everything_that_does_not_fit_is_told_at_once(lab):
    image = spaces.Box(0, 255, (84, 84), np.uint8)
    spec = lab.spec("DQN", "OnPolicyReplay", meta_={"distributed": "shared", "device": "cuda:99"})
    places = [mistake.path for mistake in check_agent(spec, image, spaces.Box(-1, 1))]
    assert places == ["agent.algorithm.name", "agent.memory.name", "agent.net.type", "meta.device", "meta.device"]


def test_a_dueling_net_without_values_of_actions_is_one_mistake(lab):
    (mistake,) = told(lab.spec("PPO", net_={"type": "DuelingMLPNet"}))
    assert mistake == ("agent.net.type: DuelingMLPNet shapes the 'q' head; PPO asks for policy and value: use MLPNet")


@pytest.mark.parametrize("algorithm", ["MPC", "MBPO"])
def test_an_agent_that_keeps_the_best_of_its_fits_cannot_be_distributed(lab, algorithm):
    spec = lab.spec(algorithm, "ModelBasedReplay", meta_={"distributed": "shared"})
    (mistake,) = told(spec, action_space=lab.action_space(algorithm))
    assert mistake.startswith(f"meta.distributed: {algorithm} goes back to the best of each fit")


def test_differences_of_classes_are_refused_before_anything_is_built(lab):
    (mistake,) = told(lab.spec("MPC", "ModelBasedReplay"), spaces.Discrete(3))
    assert mistake.startswith("agent.memory.target: the difference of two classes means nothing")


@pytest.mark.parametrize("algorithm", ["PPO", "PPOSIL"])
def test_a_ratio_of_policies_takes_no_statistics_of_batches(lab, algorithm):
    (mistake,) = told(lab.spec(algorithm, net_={"batch_norm": True}))
    assert mistake.startswith("agent.net.batch_norm: the ratio of new to old policy")


def test_a_tail_for_a_head_that_is_not_there_is_a_mistake(lab):
    layers = [[], [4], {"polcy": [3]}]
    (mistake,) = told(lab.spec("PPO", net_={"type": "HydraMLPNet", "hid_layers": layers}))
    assert mistake == "agent.net.hid_layers: 'polcy' is no head of PPO, which has policy and value"


def test_an_ensemble_is_no_net_of_a_policy(lab):
    (mistake,) = told(lab.spec("PPO", net_={"type": "EnsembleMLP", "hid_layers": [4]}))
    assert mistake == "agent.net.type: EnsembleMLP shapes the 'model' head; PPO asks for policy and value: use MLPNet"


@pytest.mark.parametrize("algorithm", ["SAC", "TD3", "DDPG", "CrossQ"])
def test_actions_without_an_axis_are_learned(lab, algorithm):
    agent = lab.agent(algorithm, action_space=spaces.Box(-2, 2, ()))
    assert lab.Life().go_on(agent, 20).shape == (20, 2)
    assert agent.algorithm.opt_step > 0


def test_a_device_that_is_not_here_is_a_mistake(lab):
    (mistake,) = told(lab.spec("DQN", meta_={"device": "cuda:99"}))
    assert mistake.startswith("meta.device: 'cuda:99' cannot be used here (")
    assert "\n" not in mistake


def test_random_takes_any_action_of_one_part(lab):
    spec = lab.spec("Random")
    assert told(spec, action_space=spaces.MultiDiscrete([2, 3])) == []
    parts = spaces.Dict({"a": spaces.Discrete(2)})
    assert told(spec, action_space=parts) == [
        "agent.algorithm.name: Random draws one array; the env's actions have several parts"
    ]


# compiling


def test_compiling_pays_only_in_a_long_run(lab, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert not compile_pays(lab.spec("DQN", max_frame=49_999))
    assert compile_pays(lab.spec("DQN", max_frame=50_000))
    assert not compile_pays(lab.spec("DQN", max_frame=50_000, algorithm_={"training_frequency": 2}))
    assert compile_pays(lab.spec("DQN", max_frame=25_000, algorithm_={"training_iter": 2}))
    assert not compile_pays(lab.spec("ActorCritic", max_frame=50_000))  # two envs
    ppo = {"time_horizon": 16, "minibatch_size": 8, "training_epoch": 4}
    assert compile_pays(lab.spec("PPO", max_frame=100_000, algorithm_=ppo))
    assert not compile_pays(lab.spec("PPO", max_frame=99_999, algorithm_=ppo))
    assert not compile_pays(lab.spec("Random", max_frame=10**9))


def test_the_spec_has_the_last_word_on_compiling(lab):
    assert not compile_pays(lab.spec("DQN", max_frame=10**9, meta_={"compile": False}))
    assert compile_pays(lab.spec("DQN", max_frame=10, meta_={"compile": True}))


def test_compiling_without_a_compiler_is_a_mistake_only_where_it_was_asked_for(lab, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not compile_pays(lab.spec("DQN", max_frame=10**9))
    assert told(lab.spec("DQN", meta_={"compile": True})) == [
        "meta.compile: true needs a C++ compiler on the PATH, and there is none; use false"
    ]
    assert told(lab.spec("DQN")) == []


def test_learning_gives_no_warning(lab):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for algorithm in LEARNING:
            lab.Life().go_on(lab.agent(algorithm, net_={"lr_scheduler_spec": {"name": "StepLR", "step_size": 9}}), 30)


def test_a_memory_of_sequences_is_refused_where_an_algorithm_learns_from_transitions(lab):
    assert told(lab.spec("DQN", "SequenceReplay")) == [
        "agent.memory.name: 'SequenceReplay' gives sequences; DQN learns from transitions: "
        "use Replay or PrioritizedReplay or NStepReplay or HindsightReplay"
    ]


def test_a_memory_of_goals_is_refused_where_the_env_has_none(lab):
    goals = {"achieved": "achieved_goal", "desired": "desired_goal"}
    assert told(lab.spec("DQN", "HindsightReplay", memory_=goals)) == [
        "agent.memory.achieved: achieved_goal is not there; the observation is flat: "
        "give [start, stop] or {'indices': […]}"
    ]
    assert told(lab.spec("DQN", "HindsightReplay", memory_={"reward_fn": "env"})) == [
        "agent.memory.reward_fn: 'env' was given, but this env has no compute_reward; use 'sparse' or 'module:function'"
    ]
