"""Parts that know nothing of one another work together: storage, priorities, horizons, windows, stacks, sources."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.memory import make_memory

BLOCKS = [
    {"name": "Replay", "n_step": 3, "use_cer": True},
    {"name": "PrioritizedReplay", "n_step": 2, "weight_max": "buffer", "beta_frames": 50},
    {"name": "SequenceReplay", "sequence_length": 4, "burn_in": 2, "stride": 2, "n_step": 3},
    {"name": "SequenceReplay", "sequence_length": 3, "prioritized": True, "pad": False, "n_step": 2},
    {"name": "NStepReplay", "sample_by": "episode"},
]


def run(block: dict, path=None) -> list[torch.Tensor]:
    """All tensors of the batches that a memory gives over 60 steps of two envs, with a change of size and of source."""
    space = spaces.Box(0, 1e6, (2, 3), np.float32)
    block = {"max_size": 40, "batch_size": 16, "frame_stack": 2, **block}
    memory = make_memory(block, space, spaces.Discrete(2), num_envs=2, gamma=0.5, seed=5, path=path)
    frame = np.arange(3, dtype=np.float32) + np.array([[0], [1000]], np.float32)
    obs = np.stack([frame, frame], 1)
    given = []
    for step in range(60):
        frame = frame + 10
        after = np.stack([obs[:, -1], frame], 1)
        ended = np.array([step % 7 == 6, step % 11 == 10])
        memory.add(obs, np.array([0, 1]), np.array([step, -step]), ended, np.zeros(2, bool), after, source=step // 25)
        obs = np.where(ended[:, None, None], np.stack([frame, frame], 1), after)
        if step == 30:
            memory.resize(30)
        if step % 3 == 0:
            batch = memory.sample()
            assert set(batch.ids.tolist()) <= set(memory.ring.ids().tolist())
            memory.update_priorities(batch.ids, 1 + torch.arange(16.0))
            values = (getattr(batch, part.name) for part in fields(batch))
            given += [tensor for value in values for tensor in (value.values() if isinstance(value, dict) else [value])]
    memory.close()
    return [tensor for tensor in given if tensor is not None]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block['name']}-{len(block)}")
def test_rows_on_disk_read_as_rows_in_ram(block, tmp_path):
    in_ram = run({**block, "storage": "ram"})
    on_disk = run({**block, "storage": "disk"}, tmp_path)
    assert len(in_ram) == len(on_disk) > 100
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(in_ram, on_disk, strict=True))


@pytest.mark.parametrize("block", BLOCKS[:4], ids=lambda block: f"{block['name']}-{len(block)}")
def test_same_seed_same_batches(block):
    assert all(torch.equal(one, other) for one, other in zip(run(block), run(block), strict=True))
