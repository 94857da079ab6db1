"""Learning with nets that carry a state from step to step, in losses that are the same for those that do not.

Rows in sequences: `obs` is (S, L, ...), `extras["hidden"]` (S, state_size) the state before the first step, and all
else has one axis of S * L places, sequence after sequence. `mask` is true where a place has a row to learn from. A loss
that takes what the net puts out from `outputs` and means from `mean` is the same for single rows and for sequences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.algorithm.algorithm import on_device
from slm_lab.agent.learner import map_tensors
from slm_lab.agent.memory.window import HIDDEN
from slm_lab.lib.trees import mapped
from slm_lab.types import Batch

FOLLOWING = "following"  # extra (places,): where in its sequence a row's next_obs is
EARLIER, COUNTS = "earlier", "burn_in"  # extras: (S, K, ...) observations to burn in with, and (S,) how many of them
MOST = 0.9  # weight of the largest error of a window, that of the mean being the rest (eta: Kapturowski 2019, eq. 1)


class Carried:
    """What a net carries from step to step in each sub-env. Whoever steps an env owns it."""

    def __init__(self, num_envs: int, size: int):
        self.before = np.zeros((num_envs, size), np.float32)  # the last action
        self.values = np.zeros((num_envs, size), np.float32)  # now: zeros where an episode begins

    def advance(self, after: np.ndarray) -> None:
        self.before, self.values = self.values, after

    def begin_anew(self, ended: np.ndarray) -> None:
        """In the sub-envs (N,) where an episode ended."""
        if ended.any():
            self.values = np.where(ended[:, None], np.float32(0), self.values)

    def state_dict(self) -> dict:
        return {"values": self.values}

    def load_state_dict(self, tree: dict) -> None:
        self.values = np.asarray(tree["values"])


def carrying_forward(net: Callable, device: torch.device) -> Callable[..., np.ndarray]:
    """(obs, carried) -> what the net puts out first, as an array; `carried` goes on. Without, episodes begin."""

    @torch.no_grad()
    def forward(obs: Any, carried: Carried | None = None) -> np.ndarray:
        state = None if carried is None else torch.from_numpy(carried.values).to(device)
        out, after = net(one_step(on_device(obs, device)), state)
        if carried is not None:
            carried.advance(after.cpu().numpy())
        return (out[0] if isinstance(out, tuple) else out).squeeze(1).cpu().numpy()

    return forward


def one_step(obs: Any) -> Any:
    """(B, 1, ...) each row as a sequence of its own."""
    return mapped(lambda part: part.unsqueeze(1), obs)


def joined(out: Any) -> Any:
    """(S * L, ...) of (S, L, ...)."""
    return mapped(lambda part: part.flatten(0, 1), out)


# in losses


def outputs(net: Callable, batch: Batch) -> Any:
    """(places, ...) what the net puts out at the rows' obs."""
    if HIDDEN not in batch.extras:
        return net(batch.obs)
    return joined(mapped(lambda part: part[:, : length_of(batch)], along(net, batch)))


def next_outputs(net: Callable, batch: Batch) -> Any:
    """(places, ...) what the net puts out at their next_obs, with all that came before in mind."""
    if FOLLOWING not in batch.extras:
        return net(batch.next_obs)
    out, places = along(net, batch), batch.extras[FOLLOWING].view(-1, length_of(batch))
    rows = torch.arange(len(places), device=places.device).unsqueeze(-1)
    return joined(mapped(lambda part: part[rows, places], out))


def along(net: Callable, batch: Batch) -> Any:
    extras = batch.extras
    return net(batch.obs, extras[HIDDEN], extras.get(EARLIER), extras.get(COUNTS))[0]


def length_of(batch: Batch) -> int:
    """L: rows of a sequence; its observations may go on beyond them."""
    return len(batch.reward) // len(batch.extras[HIDDEN])


def mean(values: Tensor, batch: Batch) -> Tensor:
    """() over the rows to learn from."""
    if batch.mask is None:
        return values.mean()
    return torch.where(batch.mask, values, 0.0).sum() / batch.mask.sum()


# on-policy: rows in time order, each with the state before it


def outputs_of_each(net: Callable, batch: Batch) -> tuple[Any, Tensor | None]:
    """(B, ...) what the net puts out at each row's obs, in the state that it was in; and the states after, if any."""
    if HIDDEN not in batch.extras:
        return net(batch.obs), None
    out, after = net(one_step(batch.obs), batch.extras[HIDDEN])
    return joined(out), after


def outputs_after(net: Callable, next_obs: Any, state: Tensor | None) -> Any:
    """(B, ...) what it puts out next, in the (B, state_size) states after those rows."""
    return net(next_obs) if state is None else joined(net(one_step(next_obs), state)[0])


def in_sequences(batch: Batch, length: int) -> Batch:
    """The rows in time order cut where one does not continue the row before, and after each `length` rows.

    All tensors are (S, L, ...); what is left over of a sequence repeats its last row, with mask false.
    """
    rows = np.arange(len(batch.reward))
    begins = np.append(True, batch.end.numpy()[:-1])
    begins |= (rows - np.maximum.accumulate(np.where(begins, rows, 0))) % length == 0
    first = np.flatnonzero(begins)[:, None]
    last = np.append(first[1:, 0] - 1, rows[-1])[:, None]
    place = torch.from_numpy(np.minimum(first + np.arange(length), last))
    hidden = batch.extras[HIDDEN][place[:, 0]]
    rest = {name: values for name, values in batch.extras.items() if name != HIDDEN}
    cut = map_tensors(dataclasses.replace(batch, next_obs=None, extras=rest), lambda values: values[place])
    cut.mask = torch.from_numpy(first + np.arange(length) <= last)
    cut.extras[HIDDEN] = hidden
    return cut


def flattened(batch: Batch) -> Batch:
    """All tensors but the observations and the state with one axis of places."""
    hidden = batch.extras[HIDDEN]
    rest = {name: values for name, values in batch.extras.items() if name != HIDDEN}
    flat = map_tensors(dataclasses.replace(batch, obs=None, extras=rest), lambda values: values.flatten(0, 1))
    flat.obs, flat.extras[HIDDEN] = batch.obs, hidden
    return flat


def to_learn_from(batch: Batch, net_settings: Any) -> Batch:
    """All rows, for one step of learning: as they are, or if they carry a state in sequences of the net's seq_len."""
    return flattened(in_sequences(batch, net_settings.seq_len)) if HIDDEN in batch.extras else batch


def minibatches(memory: Any, batch: Batch, size: int, epochs: int, net_settings: Any) -> Iterator[Batch]:
    """In each epoch every row once, in minibatches of `size` rows, or of whole sequences that have room for as many."""
    if HIDDEN not in batch.extras:
        yield from memory.batches(size, epochs=epochs, of=batch)
        return
    length = net_settings.seq_len
    for some in memory.batches(max(1, size // length), epochs=epochs, of=in_sequences(batch, length)):
        yield flattened(some)


# off-policy: windows


def from_windows(batch: Batch, burn_in: int, n_step: int, state_size: int) -> Batch:
    """A memory's windows (B, T, ...) as sequences of the rows to learn from, T - burn_in places each.

    Their observations go on for `n_step` steps, so that each row's next_obs is among them, at the extra `following`:
    those beyond the window are the next_obs of its last rows. That needs a `sequence_length` of at least `n_step`.
    """
    windows, steps = batch.mask.shape
    length = steps - burn_in
    counts = batch.extras.pop(COUNTS)
    every = torch.arange(windows).unsqueeze(-1)
    place = counts.unsqueeze(-1) + torch.arange(length)
    mask = batch.mask[every, place]
    taken = batch.steps[every, place]
    following = torch.where(mask, torch.arange(length) + taken, 0)
    going_on = place[:, torch.arange(length + n_step).clamp(max=length - 1)]
    window = mask.nonzero(as_tuple=True)[0]

    def go_on(obs: Tensor, next_obs: Tensor) -> Tensor:
        whole = obs[every, going_on]
        whole[window, following[mask]] = next_obs[window, place[mask]]  # those within the window are there already
        return whole

    extras: dict[str, Any] = {FOLLOWING: following.flatten()}
    extras[HIDDEN] = batch.extras[HIDDEN] if HIDDEN in batch.extras else torch.zeros(windows, state_size)
    if burn_in:
        extras |= {EARLIER: mapped(lambda part: part[:, :burn_in], batch.obs), COUNTS: counts}
    return Batch(
        obs=mapped(go_on, batch.obs, batch.next_obs),
        action=mapped(lambda part: part[every, place].flatten(0, 1), batch.action),
        reward=batch.reward[every, place].flatten(),
        next_obs=None,
        discount=batch.discount[every, place].flatten(),
        weight=batch.weight.repeat_interleave(length),
        ids=batch.ids,
        mask=mask.flatten(),
        extras=extras,
    )


def errors_of_windows(errors: Tensor, batch: Batch) -> Tensor:
    """(B,) one for each window, of the (places,) absolute errors of its rows (Kapturowski 2019, section 2.3)."""
    mask = batch.mask.view(len(batch.ids), -1)
    errors = torch.where(mask, errors.cpu().view_as(mask), 0.0)
    return MOST * errors.amax(1) + (1 - MOST) * errors.sum(1) / mask.sum(1)
