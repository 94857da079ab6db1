"""The net of hand-computed numbers adds up what it sees: its state is the sum, and it puts out [sum, -sum]."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn.functional import mse_loss

from slm_lab.agent.agent import check_agent, compile_pays
from slm_lab.agent.algorithm.recurrent import (
    Carried,
    errors_of_windows,
    flattened,
    from_windows,
    in_sequences,
    mean,
    minibatches,
    next_outputs,
    outputs,
)
from slm_lab.agent.memory import make_memory
from slm_lab.types import Batch, Step

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)
TWO = spaces.Discrete(2)
NET = {"type": "RecurrentNet", "rnn_hidden_size": 4, "seq_len": 3}
POLICIES = ["Reinforce", "ActorCritic", "PPO"]


def adder(obs, state=None, earlier=None, counts=None):
    state = torch.zeros(len(obs), 1) if state is None else state
    if earlier is not None:
        state = state + (earlier[..., 0] * (torch.arange(earlier.shape[1]) < counts[:, None])).sum(1, keepdim=True)
    sums = state + obs[..., 0].cumsum(1)
    return torch.stack([sums, -sums], -1), sums[:, -1:]


def policy_and_value(obs, state=None):
    out, after = adder(obs, state)
    return (out, out[..., 0]), after


# acting


@pytest.mark.parametrize("algorithm", ["DQN", "SARSA", *POLICIES])
def test_acting_step_by_step_is_what_the_net_makes_of_the_whole_episode(lab, algorithm):
    agent = lab.agent(algorithm, net_={**NET, "cell_type": "LSTM", "shared": False}, memory="OnPolicyReplay")
    forward = agent.algorithm._values if algorithm in ("DQN", "SARSA") else agent.algorithm.policy.forward
    obs = np.random.default_rng(0).standard_normal((7, 2, 2)).astype(np.float32)  # steps, sub-envs, numbers
    carried = agent.first_carried(2)
    stepped = np.stack([forward(step, carried) for step in obs], 1)
    with torch.no_grad():
        out, state = agent.algorithm.learner.net(torch.from_numpy(obs).transpose(0, 1))
    out = out[0] if algorithm in ("ActorCritic", "PPO") else out
    np.testing.assert_allclose(stepped, out.numpy(), atol=1e-6)
    np.testing.assert_allclose(carried.values, state.numpy(), atol=1e-6)


def test_what_is_carried_begins_anew_where_an_episode_ended(lab):
    agent = lab.agent("PPO", num_envs=3, net_=NET)
    carried, obs = agent.first_carried(3), lab.Life(3).obs
    action = agent.act(obs, 0, carried=carried)
    after = carried.values.copy()
    ends = np.array([True, False, False]), np.array([False, False, True])
    agent.remember(obs, action, Step(obs, obs, np.ones(3), *ends), carried)
    assert np.abs(after).min() > 0
    assert carried.values.tolist() == [[0] * 4, after[1].tolist(), [0] * 4]
    assert agent.memory.all().extras["hidden"].tolist() == [[0] * 4] * 3  # before the action
    agent.act(obs, 3, carried=carried)
    agent.remember(obs, action, Step(obs, obs, np.ones(3), ~ends[0], ~ends[0]), carried)
    assert agent.memory.all().extras["hidden"][3].tolist() == after[1].tolist()  # the second env's second row


def test_two_that_act_in_turns_do_not_disturb_each_other(lab):
    agent = lab.agent("DQN", memory="SequenceReplay", net_=NET)
    obs = np.random.default_rng(0).standard_normal((2, 5, 1, 2)).astype(np.float32)
    alone = []
    for episode in obs:
        carried = agent.first_carried(1)
        alone.append([agent.algorithm.values(step, carried) for step in episode])
    both = agent.first_carried(1), agent.first_carried(1)
    in_turns = [[agent.algorithm.values(obs[place, t], both[place]) for place in (0, 1)] for t in range(5)]
    np.testing.assert_array_equal(alone, np.swapaxes(in_turns, 0, 1))


def test_a_net_without_a_state_carries_nothing(lab):
    assert lab.agent("PPO").first_carried(2) is None


def test_carried_goes_on_from_its_state():
    first, second = Carried(2, 3), Carried(2, 3)
    first.advance(np.arange(6, dtype=np.float32).reshape(2, 3))
    second.load_state_dict(first.state_dict())
    assert second.values.tolist() == first.values.tolist()


# on-policy


def rows():
    """Six rows: an episode of four, a truncated one's first, and one of another env."""
    number = torch.arange(6.0)
    extras = {"hidden": 10 * number[:, None], "advantage": number}
    end = torch.tensor([False, False, False, True, True, True])
    return Batch(number[:, None], torch.arange(6), number, number[:, None], number, end=end, extras=extras)


def test_rows_are_cut_into_sequences_at_ends_and_after_their_length():
    batch = in_sequences(rows(), 3)
    assert batch.reward.tolist() == [[0, 1, 2], [3, 3, 3], [4, 4, 4], [5, 5, 5]]
    assert batch.mask.tolist() == [[True] * 3] + [[True, False, False]] * 3
    assert batch.extras["hidden"].tolist() == [[0], [30], [40], [50]]
    flat = flattened(batch)
    assert flat.obs.shape == (4, 3, 1)
    assert flat.extras["advantage"].tolist() == [0, 1, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert mean(flat.reward, flat).item() == 15 / 6


@pytest.mark.parametrize(("size", "sequences"), [(6, 2), (1, 1), (100, 4)])
def test_minibatches_are_whole_sequences_and_have_each_row_once_an_epoch(size, sequences):
    memory = make_memory({"name": "OnPolicyBatchReplay"}, NUMBER, TWO)
    settings = type("Settings", (), {"seq_len": 3})
    found = list(minibatches(memory, rows(), size, 2, settings))
    assert {len(batch.obs) for batch in found} == {sequences}
    half = len(found) // 2
    for epoch in (found[:half], found[half:]):
        taken = torch.cat([batch.reward[batch.mask] for batch in epoch])
        assert sorted(taken.tolist()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_the_first_minibatch_of_sequences_finds_the_policy_that_acted(lab, shared, cell):
    agent = lab.agent("PPO", algorithm_={"time_horizon": 30}, net_={**NET, "shared": shared, "cell_type": cell})
    acted, policy = [], agent.algorithm.policy
    forward = policy.forward

    def noted(*arguments):
        acted.append(forward(*arguments))
        return acted[-1]

    policy.forward = noted
    lab.Life().go_on(agent, 29)
    batch = agent.algorithm.add_estimates(agent.memory.drain())
    out = torch.from_numpy(np.stack(acted, 1)).flatten(0, 1)  # as the memory gives rows, env by env
    log_prob = agent.algorithm.distribution.log_prob(out, batch.action)
    torch.testing.assert_close(batch.extras["log_prob"], log_prob)
    sequences = flattened(in_sequences(batch, 5))
    out, value = outputs(agent.algorithm.learner.net, sequences)
    new, old = agent.algorithm.distribution.log_prob(out, sequences.action), sequences.extras
    assert ((new - old["log_prob"])[sequences.mask].abs() < 1e-5).all()
    torch.testing.assert_close(value[sequences.mask], old["value"][sequences.mask])
    assert not torch.allclose(new[~sequences.mask], old["log_prob"][~sequences.mask])  # what pads them is another step


def test_what_follows_a_row_is_valued_by_its_next_obs_after_all_that_came_before(lab):
    agent = lab.agent("ActorCritic", num_envs=1, net_=NET, obs_space=NUMBER, algorithm_={"gamma": 0.5, "lam": 0.0})
    agent.algorithm.learner.net = policy_and_value
    carried = Carried(1, 1)
    observed = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    for t, obs in enumerate(observed[:-1]):  # truncated after the second row, terminated after the fourth
        carried.advance(carried.values + np.float32(obs))
        final = 100.0 if t == 1 else observed[t + 1]
        ends = np.array([t == 3]), np.array([t == 1])
        now, then = (np.array([[number]], np.float32) for number in (obs, final))
        agent.remember(now, np.array([0]), Step(then, then, np.zeros(1), *ends), carried)
    extras = agent.algorithm.add_estimates(agent.memory.drain()).extras
    assert extras["value"].tolist() == [1, 3, 4, 12, 16]
    assert extras["target"].tolist() == [3 / 2, 103 / 2, 12 / 2, 0, 48 / 2]


@pytest.mark.parametrize("algorithm", POLICIES)
def test_what_pads_sequences_has_no_part_in_the_loss(lab, algorithm):
    agent = lab.agent(algorithm, net_=NET, memory="OnPolicyBatchReplay")
    agent.learn = lambda frame: None
    lab.Life().go_on(agent, 20)
    batch = agent.memory.drain()
    if algorithm == "Reinforce":
        batch.extras["return"] = batch.reward
    else:
        batch = agent.algorithm.add_estimates(batch)
    found = []
    for spoiled in (False, True):
        sequences = flattened(in_sequences(batch, 8))
        if spoiled:
            pads = ~sequences.mask
            assert pads.any()
            sequences.obs[pads.view(-1, 8)] = 50.0
            for name in ("return", "advantage", "target", "value"):
                if name in sequences.extras:
                    sequences.extras[name][pads] = 1e6
        scalars = {"entropy_coef": torch.tensor(0.1), "clip_eps": torch.tensor(0.2)}
        agent.algorithm.learner.net.zero_grad()
        loss, info = agent.algorithm.loss(agent.algorithm.learner.net, None, sequences, scalars)
        loss.backward()
        found.append([loss.item(), *info.values(), *agent.algorithm.learner.state_dict()["parameters"]])
        found[-1].append(agent.algorithm.learner.groups[0].flat.grad.clone())
    torch.testing.assert_close(found[0], found[1])


# off-policy


def windows(count=6, ends=None, **keys):
    """A memory of rows whose obs are 1, 2, 4, ... and rewards their numbers; the episode ends after row `ends`."""
    keys = {"sequence_length": 3, "batch_size": 1, "max_size": 50, **keys}
    memory = make_memory({"name": "SequenceReplay", **keys}, NUMBER, TWO, gamma=0.5)
    for t in range(count):
        obs, next_obs = (np.array([[2.0**k]], np.float32) for k in (t, t + 1))
        extras = {"hidden": np.array([[0.25]])} if keys.get("store_hidden") else {}
        memory.add(obs, [t % 2], [t], [t == ends], [False], next_obs, **extras)
    return memory


def window_of(memory, t):
    """The window of row t as a sequence."""
    keys = memory.settings
    drawn = memory.windows.read(np.array([t]), keys.sequence_length, keys.n_step)
    return from_windows(drawn, keys.burn_in, keys.n_step, state_size=1)


@pytest.mark.parametrize(
    ("t", "n_step", "ends", "q", "after"),
    [
        (0, 1, None, [1, 3, 7], [3, 7, 15]),
        (2, 1, None, [4, 12, 28], [12, 28, 60]),  # what was before the window is forgotten
        (0, 2, None, [1, 3, 7], [7, 15, 31]),  # the last row's horizon leaves the window, and it is remembered
        (0, 3, None, [1, 3, 7], [15, 31, 63]),
        (4, 1, 5, [16, 48], [48, 112]),  # the episode ends with row 5, after which there was 64
        (3, 3, 5, [8, 24, 56], [120, 120, 120]),  # as in the last row the horizon is cut short
        (4, 3, None, [16, 48], [112, 112]),  # and by the newest row
    ],
)
def test_next_obs_is_valued_after_all_of_the_window_and_the_horizon(t, n_step, ends, q, after):
    batch = window_of(windows(ends=ends, n_step=n_step), t)
    assert outputs(adder, batch)[batch.mask][:, 0].tolist() == q
    assert next_outputs(adder, batch)[batch.mask][:, 0].tolist() == after


@pytest.mark.parametrize(("t", "counts", "q"), [(3, 2, [14, 30, 62]), (1, 1, [3, 7, 15]), (0, 0, [1, 3, 7])])
def test_a_window_is_burnt_in_with_the_rows_before_it_as_far_as_there_are_any(t, counts, q):
    batch = window_of(windows(burn_in=2, n_step=2), t)
    assert batch.extras["burn_in"].tolist() == [counts]
    assert outputs(adder, batch)[:, 0].tolist() == q
    assert batch.reward.tolist() == [t + k + 0.5 * (t + k + 1) if t + k < 5 else 5 for k in range(3)]
    assert batch.action.tolist() == [(t + k) % 2 for k in range(3)]


def test_a_stored_state_is_where_a_window_begins():
    batch = window_of(windows(burn_in=2, store_hidden=True), 3)
    assert outputs(adder, batch)[:, 0].tolist() == [14.25, 30.25, 62.25]


def test_the_loss_of_windows_by_hand(lab):
    agent = lab.agent("DQN", memory="SequenceReplay", net_=NET, obs_space=NUMBER)
    batch = window_of(windows(ends=5), 4)
    loss, info = agent.algorithm.loss(adder, adder, batch, mse_loss)
    # rows 4 and 5, actions 0 and 1: q 16 and -48, targets 4 + 48 / 2 and 5
    assert loss.item() == ((28 - 16) ** 2 + (5 + 48) ** 2) / 2
    assert errors_of_windows(info["errors"], batch).item() == pytest.approx(0.9 * 53 + 0.1 * (12 + 53) / 2)


@pytest.mark.parametrize("algorithm", ["VanillaDQN", "DQN", "DoubleDQN", "QRDQN", "C51"])
def test_with_stored_states_rows_are_valued_as_when_acting_whatever_the_window(lab, algorithm):
    keys = {"store_hidden": True, "burn_in": 3, "sequence_length": 4, "n_step": 3, "batch_size": 64}
    agent = lab.agent(algorithm, memory="SequenceReplay", memory_=keys, net_=NET, num_envs=1)
    agent.learn = lambda frame: None
    life, acted = lab.Life(1), []
    forward = agent.algorithm._values

    def noted(*arguments):
        acted.append(forward(*arguments)[0])
        return acted[-1][None]

    agent.algorithm._values = noted
    life.go_on(agent, 40)
    batch = agent.algorithm.draw(agent.memory)
    first = batch.ids.repeat_interleave(4)
    row = (first + torch.arange(4).repeat(64))[batch.mask]
    acted = torch.from_numpy(np.stack(acted))
    net = agent.algorithm.learner.net
    with torch.no_grad():
        out, following = outputs(net, batch)[batch.mask], next_outputs(net, batch)[batch.mask]
    torch.testing.assert_close(out, acted[row])
    whole = agent.memory.all()
    steps = agent.memory.view.read(row.numpy(), 3).steps
    goes_on = (row + steps < 40) & ~torch.from_numpy(agent.memory.ring.ends((row + steps - 1).numpy()))
    assert goes_on.any()
    assert not goes_on.all()
    torch.testing.assert_close(following[goes_on], acted[(row + steps)[goes_on]])
    last = (row + steps - 1)[~goes_on]  # then the final or newest observation, in the state after that row
    with torch.no_grad():
        _, state = net(whole.obs[last][:, None], whole.extras["hidden"][last] if "hidden" in whole.extras else None)
        expected = net(whole.next_obs[last][:, None], state)[0][:, 0]
    torch.testing.assert_close(following[~goes_on], expected)


def test_neither_burn_in_nor_padding_is_in_the_loss(lab):
    agent = lab.agent("DoubleDQN", memory="SequenceReplay", net_=NET, obs_space=NUMBER)
    found = []
    for spoiled in (False, True):
        drawn = windows(ends=5, burn_in=2).windows.read(np.array([4]), 3)
        if spoiled:
            drawn.reward[:, :2] = drawn.obs[:, 4] = drawn.next_obs[:, 4] = 1e6
        batch = from_windows(drawn, 2, 1, 4)
        agent.algorithm.learner.net.zero_grad()
        loss, _ = agent.algorithm.loss(agent.algorithm.learner.net, agent.algorithm.learner.target, batch, mse_loss)
        loss.backward()
        found.append([loss.detach(), agent.algorithm.learner.groups[0].flat.grad.clone()])
    torch.testing.assert_close(found[0], found[1])


def test_priorities_are_one_for_each_window():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    batch = Batch(None, None, None, None, None, mask=mask.flatten(), ids=torch.tensor([5, 9]))
    errors = torch.tensor([1.0, 3.0, 100.0, 2.0, 2.0, 5.0])
    torch.testing.assert_close(errors_of_windows(errors, batch), torch.tensor([0.9 * 3 + 0.1 * 2, 0.9 * 5 + 0.1 * 3]))


# what does not fit


@pytest.mark.parametrize(
    ("algorithm", "memory", "keys", "told"),
    [
        ("DQN", "Replay", {}, "'Replay' gives transitions; DQN with RecurrentNet learns from sequences: use Sequence"),
        ("SAC", "Replay", {}, "RecurrentNet carries a state from step to step; SAC learns from rows one by one: use"),
        ("CrossQ", "Replay", {}, "carries a state from step to step; CrossQ learns from rows one by one: use MLPNet"),
        ("SIL", "OnPolicyReplay", {}, "from step to step; SIL imitates single rows out of all episodes: use MLPNet"),
        ("PPOSIL", "OnPolicyReplay", {}, "step; PPOSIL imitates single rows out of all episodes: use MLPNet"),
        ("DQN", "SequenceReplay", {"n_step": 5}, "5 is more than sequence_length 4: what lies between would be in no"),
    ],
)
def test_what_cannot_remember_is_refused_with_the_reason(lab, algorithm, memory, keys, told):
    spec = lab.spec(algorithm, memory, memory_=keys, net_=NET)
    space = TWO if algorithm in ("DQN", "SIL", "PPOSIL") else spaces.Box(-1, 1, (1,), np.float32)
    (mistake,) = check_agent(spec, NUMBER, space)
    assert told in str(mistake)


def test_it_is_never_compiled(lab, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert not compile_pays(lab.spec("PPO", net_=NET, max_frame=10**9))
    told = check_agent(lab.spec("PPO", net_=NET, meta_={"compile": True}), NUMBER, TWO)
    assert [str(mistake) for mistake in told] == [
        "meta.compile: true: torch does not compile the cells of RecurrentNet; use 'auto' or false"
    ]
