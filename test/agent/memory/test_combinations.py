"""Parts combine freely: rows on disk are drawn as rows in RAM are, by every memory; what makes no sense is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.memory import make_memory
from slm_lab.errors import InvalidMemorySpec
from slm_lab.spec import registry

PLANE = spaces.Box(-1000, 1000, (4,), np.float32)
GOALS = {"achieved": [0, 1], "desired": [3, 4], "reward_fn": "sparse", "done_fn": "sparse", "distance_threshold": 0.5}
BLOCKS = {
    "cer": {"name": "Replay", "use_cer": True},
    "prioritized n-step": {"name": "PrioritizedReplay", "n_step": 3, "weight_max": "buffer"},
    "n-step by episode": {"name": "NStepReplay", "n_step": 2, "sample_by": "episode"},
    "sequences by priority": {"name": "SequenceReplay", "prioritized": True, "sequence_length": 3, "burn_in": 1},
    "n-step sequences": {"name": "SequenceReplay", "sequence_length": 3, "n_step": 2},
    "hindsight": {"name": "HindsightReplay", **GOALS},
    "hindsight, prioritized n-step": {"name": "HindsightReplay", **GOALS, "prioritized": True, "n_step": 3},
}


def filled(block, **more):
    """Two envs, episodes of 5 steps, some terminated, the ring run over twice."""
    memory = make_memory(
        {"max_size": 40, "batch_size": 16, **block, **more}, PLANE, spaces.Discrete(3), 2, gamma=0.5, seed=4
    )
    rng = np.random.default_rng(0)
    obs = rng.uniform(-9, 9, (2, 4)).astype(np.float32)
    for step in range(50):
        next_obs = rng.uniform(-9, 9, (2, 4)).astype(np.float32)
        last = np.full(2, step % 5 == 4)
        odd = np.array([True, step % 2 == 0])
        memory.add(obs, rng.integers(0, 3, 2), rng.normal(size=2), last & odd, last & ~odd, next_obs)
        obs = rng.uniform(-9, 9, (2, 4)).astype(np.float32) if last.all() else next_obs
    return memory


def drawn(memory):
    """The tensors of two samples with an update between them."""
    parts = []
    for _ in range(2):
        batch = memory.sample()
        memory.update_priorities(batch.ids.reshape(len(batch.ids), -1)[:, 0], torch.arange(float(len(batch.ids))))
        parts += [batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight, batch.ids]
    return parts


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_rows_on_disk_are_drawn_as_rows_in_ram(block, tmp_path):
    ram, disk = filled(block, storage="ram"), filled(block, storage="disk")
    try:
        assert all(torch.equal(a, b) for a, b in zip(drawn(ram), drawn(disk), strict=True))
    finally:
        disk.close()


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_loaded_memory_draws_as_the_saved_one(block):
    memory, other = filled(block, storage="ram"), filled(block, storage="ram")
    drawn(memory)
    other.load_state_dict(memory.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(drawn(memory), drawn(other), strict=True))


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_settings_block_with_every_key_spelled_out_is_the_same_block(block):
    settings = registry.settings_of("memory", block["name"]).model_validate({"max_size": 40, "batch_size": 16, **block})
    assert type(settings).model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"name": "SequenceReplay", "alpha": 0.5}, "alpha"),
        ({"name": "HindsightReplay", "beta_frames": 100}, "beta_frames"),
        ({"name": "HindsightReplay", "frame_stack": 4}, "stores each frame once"),
        ({"name": "NStepReplay", "workers": 2, "storage": "ram"}, "other processes cannot read rows in RAM"),
        ({"name": "SequenceReplay", "sequence_length": 3, "stride": 4}, "would never be learned from"),
        ({"name": "OnPolicyReplay", "n_step": 3}, "n_step: no such key"),
        ({"name": "ModelBasedReplay", "use_cer": True}, "use_cer: no such key"),
        ({"name": "Replay", "max_size": 8, "batch_size": 16}, "batch_size 16 is more than max_size 8"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(block, reason):
    with pytest.raises(InvalidMemorySpec) as caught:
        make_memory(block, PLANE, spaces.Discrete(3))
    assert reason in str(caught.value)
