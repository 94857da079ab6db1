"""What a row reads as: boundaries, horizons, fields, refusals. Gamma is one half."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.memory import make_memory
from slm_lab.agent.memory.keys import KEYS
from slm_lab.errors import EmptyMemory, InvalidMemorySpec, InvalidRow, SpecError
from slm_lab.spec import registry
from slm_lab.spec.schema import read_block


def test_a_row_leads_to_the_following_row_and_the_newest_to_its_pending_observation(lab):
    memory = lab.make(max_size=10)
    for obs in (0, 1, 2):
        lab.add(memory, obs, reward=obs)
    assert lab.read(memory) == [(0, 0, 1, 0.5, 1), (1, 1, 2, 0.5, 1), (2, 2, 3, 0.5, 1)]


def test_terminated_row_keeps_its_final_observation_and_has_no_discount(lab):
    memory = lab.make(max_size=10)
    lab.add(memory, 0, next_obs=99, terminated=True)
    lab.add(memory, 50)  # the env was reset within the step
    assert lab.read(memory) == [(0, 0, 99, 0.0, 1), (50, 0, 51, 0.5, 1)]


def test_truncated_row_keeps_its_final_observation_and_its_discount(lab):
    memory = lab.make(max_size=10)
    lab.add(memory, 0, next_obs=99, truncated=True)
    lab.add(memory, 50)
    assert lab.read(memory) == [(0, 0, 99, 0.5, 1), (50, 0, 51, 0.5, 1)]


def test_row_both_terminated_and_truncated_does_not_bootstrap(lab):
    memory = lab.make(max_size=10)
    lab.add(memory, 0, next_obs=99, terminated=True, truncated=True)
    assert lab.read(memory) == [(0, 0, 99, 0.0, 1)]


def test_add_that_begins_elsewhere_cuts_and_no_horizon_crosses_the_cut(lab):
    memory = lab.make(max_size=10)
    lab.add(memory, 0, reward=1)
    lab.add(memory, 70, reward=2)
    assert lab.read(memory, n_step=3) == [(0, 1, 1, 0.5, 1), (70, 2, 71, 0.5, 1)]
    assert memory.all().end.tolist() == [True, True]


def test_n_step_sums_discounted_rewards_and_stops_at_the_newest_row(lab):
    memory = lab.make(max_size=10)
    for obs, reward in enumerate((1, 2, 4, 8)):
        lab.add(memory, obs, reward=reward)
    assert lab.read(memory, n_step=3) == [
        (0, 1 + 1 + 1, 3, 0.125, 3),
        (1, 2 + 2 + 2, 4, 0.125, 3),
        (2, 4 + 4, 4, 0.25, 2),
        (3, 8, 4, 0.5, 1),
    ]


@pytest.mark.parametrize(("end", "discount"), [("terminated", 0.0), ("truncated", 0.25)])
def test_n_step_stops_at_the_end_of_the_episode(lab, end, discount):
    memory = lab.make(max_size=10)
    lab.add(memory, 0, reward=1)
    lab.add(memory, 1, next_obs=99, reward=2, **{end: True})
    lab.add(memory, 0, reward=4)
    assert lab.read(memory, n_step=5)[0] == (0, 1 + 1, 99, discount, 2)


def test_overwriting_keeps_the_newest_rows_and_reads_across_the_wrap(lab):
    memory = lab.make(max_size=3)
    for obs, reward in enumerate((1, 2, 4, 8, 16)):
        lab.add(memory, obs, reward=reward)
    assert lab.read(memory, n_step=2) == [(2, 4 + 4, 4, 0.25, 2), (3, 8 + 8, 5, 0.25, 2), (4, 16, 5, 0.5, 1)]
    assert (memory.size, memory.max_size, memory.seen) == (3, 3, 5)


def test_final_observations_survive_the_wrap_and_go_with_their_rows(lab):
    memory = lab.make(max_size=2)
    for episode in range(40):
        lab.add(memory, episode, next_obs=1000 + episode, terminated=True)
    assert lab.read(memory) == [(38, 0, 1038, 0, 1), (39, 0, 1039, 0, 1)]
    assert len(memory.ring.finals) <= 32


def test_envs_end_each_at_its_own_time(lab):
    memory = lab.make(max_size=20, num_envs=2)
    lab.add(memory, [0, 100], next_obs=[1, 999], reward=[1, 2], terminated=[False, True])
    lab.add(memory, [1, 500], reward=[4, 8])
    assert lab.read(memory, n_step=2) == [
        (0, 3, 2, 0.25, 2),
        (1, 4, 2, 0.5, 1),
        (100, 2, 999, 0.0, 1),
        (500, 8, 501, 0.5, 1),
    ]
    assert memory.ring.ids().tolist() == [0, 2, 1, 3]


def test_max_size_is_rounded_down_to_the_envs_but_holds_a_row_of_each(lab):
    assert lab.make(max_size=11, num_envs=4).max_size == 8
    assert lab.make(max_size=2, num_envs=4).max_size == 4


def test_rows_of_one_env_read_as_if_added_one_by_one_even_beyond_capacity(lab):
    one, many = lab.make(max_size=4), lab.make(max_size=4)
    rewards = np.arange(10.0)
    ends = np.arange(10) == 7
    obs = np.arange(10, dtype=np.float32)[:, None]
    for t in range(10):
        lab.add(one, t, reward=rewards[t], terminated=ends[t])
    many.add_rows(
        {
            "obs": obs,
            "action": np.arange(10) % 2,
            "reward": rewards,
            "terminated": ends,
            "truncated": np.zeros(10, bool),
            "next_obs": obs + 1,
        }
    )
    assert lab.read(one, 2) == lab.read(many, 2)
    assert one.ring.ids().tolist() == many.ring.ids().tolist() == [6, 7, 8, 9]


def test_uniform_draw_reaches_every_row_evenly_also_where_envs_hold_different_numbers(lab):
    memory = lab.make(max_size=40, num_envs=2)
    rows = {"obs": np.zeros((3, 1), np.float32), "action": np.zeros(3, int), "reward": np.zeros(3)}
    rows |= {"terminated": np.zeros(3, bool), "truncated": np.ones(3, bool), "next_obs": rows["obs"]}
    lab.add(memory, 0)
    memory.add_rows(rows, env=1)
    counts = np.bincount(memory.sample(5000).ids.numpy(), minlength=8)
    assert np.flatnonzero(counts).tolist() == [0, 1, 3, 5, 7]
    chi_square = ((counts[counts > 0] - 1000) ** 2 / 1000).sum()
    assert chi_square < 18.5  # 4 degrees of freedom, p = 0.001


def test_dict_tuple_image_and_multidiscrete_fields_keep_their_dtypes():
    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (2, 2), np.uint8),
        pose=spaces.Tuple([spaces.Box(-1, 1, (3,), np.float64), spaces.Discrete(5)]),
    )
    memory = make_memory({"name": "Replay"}, observation_space, spaces.MultiDiscrete([3, 4]))

    def observation(number):
        return {
            "image": np.full((1, 2, 2), number, np.uint8),
            "pose": (np.full((1, 3), number / 8), np.array([number])),
        }

    memory.add(observation(1), np.array([[2, 3]]), [1.0], [False], [False], observation(2))
    flat = {"image": observation(2)["image"], "pose.0": observation(2)["pose"][0], "pose.1": np.array([2])}
    memory.add(flat, np.array([[0, 1]]), [1.0], [True], [False], observation(3))
    batch = memory.all()
    assert batch.action.tolist() == [[2, 3], [0, 1]]
    assert batch.action.dtype == batch.obs["pose.1"].dtype == torch.int64
    assert batch.obs["image"].dtype == torch.uint8
    assert batch.obs["pose.0"].dtype == torch.float32
    assert batch.obs["image"][:, 0, 0].tolist() == [1, 2]
    assert batch.next_obs["image"][:, 0, 0].tolist() == [2, 3]
    assert batch.next_obs["pose.0"][:, 0].tolist() == [2 / 8, 3 / 8]
    assert batch.next_obs["pose.1"].tolist() == [2, 3]
    assert memory.ring.layout.row["obs.pose.0"].base == np.float64


def test_extras_become_fields_with_the_first_row_and_are_needed_ever_after(lab):
    memory = lab.make(max_size=4)
    lab.add(memory, 0, log_prob=-0.5, value=2)
    assert memory.all().extras["log_prob"].tolist() == [-0.5]
    for wrong in ({}, {"log_prob": 1}, {"log_prob": 1, "value": 1, "entropy": 1}):
        with pytest.raises(InvalidRow, match="extras"):
            lab.add(memory, 1, **wrong)
    assert memory.size == 1


ROW = {"obs": [[0.0]], "action": [1], "reward": [0.0], "terminated": [False], "truncated": [False], "next_obs": [[1.0]]}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("obs", [0.0], r"obs: shape \(1,\) was given, \(1, 1\) is needed"),
        ("action", [0.5], "action: float64 values were given that int64 cannot hold"),
        ("reward", [np.nan], "reward: nan in row 0"),
        ("reward", [[1.0]], "reward: shape"),
        ("next_obs", None, "next_obs: missing"),
        ("terminated", [0.5], "terminated"),
        ("obs", [["a"]], "obs: <U1 values"),
    ],
)
def test_refused_row_names_field_and_reason_and_writes_nothing(lab, field, value, reason):
    memory = lab.make(max_size=4)
    lab.add(memory, 0)
    before = memory.state_dict()["ring"]
    with pytest.raises(InvalidRow, match=reason):
        memory.add(**{**ROW, field: value})
    with pytest.raises(InvalidRow, match=reason):
        memory.validate({**ROW, field: value})
    after = memory.state_dict()["ring"]
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_validate_accepts_a_fitting_row_and_writes_nothing(lab):
    memory = lab.make(max_size=4)
    memory.validate({**ROW, "log_prob": [0.5]})
    assert memory.seen == 0
    lab.add(memory, 0)
    assert memory.all().extras == {}


def test_integers_that_do_not_fit_are_refused_not_wrapped():
    memory = make_memory({"name": "Replay"}, spaces.Box(0, 255, (1,), np.uint8), spaces.Discrete(2))
    with pytest.raises(InvalidRow, match="obs: int64 values were given that uint8 cannot hold"):
        memory.add(np.array([[256]]), [0], [0.0], [False], [False], np.array([[1]]))


def test_sample_of_an_empty_memory_names_size_and_need(lab):
    with pytest.raises(EmptyMemory, match="holds 0 rows; 32 were asked for and at least 1"):
        lab.make(max_size=100, batch_size=32).sample()


def test_batches_that_a_caller_keeps_are_not_overwritten(lab):
    memory = lab.make(max_size=1)
    lab.add(memory, 5)
    kept = memory.sample()
    lab.add(memory, 6)
    memory.sample()
    assert kept.obs.item() == 5


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"max_sise": 4}, "max_sise: no such key; did you mean 'max_size'?"),
        ({"max_size": 4, "batch_size": 8}, "batch_size 8 is more than max_size 4"),
        ({"max_size": 0}, "max_size: got 0; must be an integer >= 1"),
        ({"alpha": 0.5}, "alpha: no such key; use PrioritizedReplay to draw rows by priority, over n_step steps"),
        ({"workers": 2}, "workers: no such key; use NStepReplay to gather batches in other processes"),
        (
            {"name": "NStepReplay", "prioritized": True},
            "prioritized: no such key; use PrioritizedReplay to draw rows by",
        ),
        (
            {"name": "HindsightReplay", "sequence_length": 4},
            "sequence_length: no such key; relabelled rows would change goals within a window: use SequenceReplay",
        ),
        ({"name": "PrioritizedReplay", "prioritized": True}, "prioritized: no such key; known: "),
    ],
)
def test_block_that_cannot_be_used_names_key_and_remedy(lab, block, message):
    with pytest.raises(InvalidMemorySpec) as refused:
        lab.make(**({"batch_size": 1} | block))
    assert str(refused.value).startswith(message)


def test_spaces_that_a_memory_cannot_hold_are_refused():
    with pytest.raises(InvalidMemorySpec, match="action: a memory cannot hold Text spaces"):
        make_memory({"name": "Replay"}, spaces.Discrete(2), spaces.Text(5))


def test_reset_forgets_the_rows_and_ids_go_on(lab):
    memory = lab.make(max_size=4)
    lab.add(memory, 0, terminated=True)
    lab.add(memory, 1)
    memory.reset()
    assert (memory.size, memory.seen, memory.describe()["episodes"]) == (0, 2, 0)
    lab.add(memory, 9, reward=3)
    assert lab.read(memory) == [(9, 3, 10, 0.5, 1)]
    assert memory.all().ids.tolist() == [2]


def test_rows_are_found_where_one_env_has_gone_round_the_table_many_times_more_often(lab):
    memory = lab.make(max_size=6, num_envs=2)
    lab.add(memory, [0, 100])
    obs = np.arange(101, 150, dtype=np.float32)[:, None]
    rows = {"obs": obs, "next_obs": obs + 1, "action": np.zeros(49, int), "reward": obs[:, 0]}
    memory.add_rows({**rows, "terminated": np.zeros(49, bool), "truncated": np.zeros(49, bool)}, env=1)
    lab.add(memory, [1, 150])
    assert [row[:3:2] for row in lab.read(memory)] == [(0, 1), (1, 2), (148, 149), (149, 150), (150, 151)]
    batch = memory.sample(50, sequence_length=2)
    assert set(batch.obs[:, 0, 0].tolist()) == {0, 1, 148, 149, 150}


@pytest.mark.parametrize("asked", [{"part": "validation"}, {"member": 0}])
def test_parts_and_members_are_for_the_memory_that_has_them(lab, asked):
    memory = lab.make("OnPolicyReplay")
    with pytest.raises(InvalidMemorySpec, match="ModelBasedReplay"):
        memory.batches(4, **asked)


def test_keys_that_point_to_a_memory_are_its_own():
    for owner, keys in KEYS.items():
        known = registry.settings_of("memory", owner).model_fields
        assert [key for key in keys if key not in known and key != "prioritized"] == []


def test_a_spec_s_mistake_tells_where_a_key_belongs():
    with pytest.raises(
        SpecError, match=r"agent\.memory\.burn_in: no such key; use SequenceReplay to draw windows of rows"
    ):
        read_block("memory", {"name": "Replay", "burn_in": 2}, "agent.memory")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_envs": 0}, "num_envs 0 was given; a whole number of at least 1 is needed"),
        ({"num_envs": 2.0}, "num_envs 2.0 was given"),
        ({"gamma": 2}, "gamma: 2 was given; a discount lies in"),
        ({"gamma": -1}, "gamma: -1 was given"),
        ({"gamma": np.nan}, "gamma: nan was given"),
    ],
)
def test_numbers_of_envs_and_discounts_that_cannot_be_are_refused(lab, keys, message):
    with pytest.raises(InvalidMemorySpec, match=message):
        lab.make(**keys)


@pytest.mark.parametrize("asked", [{"batch_size": 2.5}, {"n_step": 0}, {"sequence_length": "2"}, {"batch_size": -1}])
def test_sizes_of_a_sample_are_whole_numbers(lab, asked):
    memory = lab.make()
    lab.add(memory, 0)
    (name, number), *_ = asked.items()
    with pytest.raises(InvalidMemorySpec, match=f"sample: {name} {number!r} was given; a whole number"):
        memory.sample(**asked)
    assert len(memory.sample(np.int64(3)).reward) == 3


@pytest.mark.parametrize("size", [0, -3, 2.5])
def test_minibatches_of_no_rows_are_refused(lab, size):
    memory = lab.make("OnPolicyReplay")
    lab.add(memory, 0, terminated=True)
    with pytest.raises(InvalidMemorySpec, match="batches: batch_size"):
        memory.batches(size)


def test_no_rows_are_no_trouble(lab):
    memory = lab.make()
    nothing = {key: np.zeros((0, *np.shape(value)[1:]), np.asarray(value).dtype) for key, value in ROW.items()}
    memory.add_rows(nothing)
    memory.add_rows({**nothing, "note": np.zeros(0)})
    memory.validate(nothing)
    assert memory.seen == 0
    lab.add(memory, 0)
    memory.add_rows(nothing)
    assert lab.read(memory) == [(0, 0, 1, 0.5, 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": [[0.0], [1.0, 2.0]]}, "reward: lists of different lengths"),
        ({"obs": [[0.0], [1.0, 2.0]]}, "obs: lists of different lengths"),
        ({"burn_in": [1]}, "burn_in: windows of rows have an extra of that name"),
    ],
)
def test_what_is_no_row_is_told_by_its_field(lab, change, message):
    memory = lab.make()
    for call in (lambda row: memory.add(**row), memory.add_rows, memory.validate):
        with pytest.raises(InvalidRow, match=message):
            call({**ROW, **change})
    assert memory.seen == 0


def test_as_many_sources_as_rows_or_one_for_all(lab):
    memory = lab.make(num_envs=2)
    row = {key: 2 * value for key, value in ROW.items()}
    for call in (lambda source: memory.add(**row, source=source), lambda source: memory.add_rows(row, source=source)):
        with pytest.raises(InvalidRow, match=r"source: shape \(3,\) was given for 2 rows; one for all or each"):
            call([1, 2, 3])
        call([1, 2])
        call(3)
    assert memory.all().extras["source"].tolist() == [1, 3, 1, 2, 3, 3, 2, 3]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a.b": spaces.Discrete(2)}),
        spaces.Dict({"x": spaces.Dict({"a.b": spaces.Discrete(2)})}),
        spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}),
    ],
)
def test_names_that_nested_names_could_be_taken_for_are_refused(space):
    with pytest.raises(
        InvalidMemorySpec, match=r"obs: the key 'a\.b' has a dot, which parts the names of nested spaces"
    ):
        make_memory({}, space, spaces.Discrete(2))
