"""Rows relabelled with goals that were reached later on (hindsight experience replay, Andrychowicz 2017).

Most rows of a batch are told as if what their episode went on to achieve had been the goal all along; what is stored
stays as it was.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator

from slm_lab.agent.memory.episodes import Episodes
from slm_lab.agent.memory.fields import DISCOUNT, Layout
from slm_lab.agent.memory.goals import GoalFunction, GoalPlace, Place, ask, done_function, reward_function
from slm_lab.agent.memory.keys import KEYS
from slm_lab.agent.memory.presets import OptionallyPrioritized, OptionallyPrioritizedSettings
from slm_lab.agent.memory.ring import FLAG_BITS, TERMINATED
from slm_lab.errors import InvalidMemorySpec, Mistake
from slm_lab.lib.jit import njit
from slm_lab.types import Batch

FUTURE, FINAL, EPISODE = range(3)
PLACE = "a part of a Dict observation, or of a flat one [start, stop] or {'indices': […]}"


class HindsightReplaySettings(OptionallyPrioritizedSettings):
    beside: ClassVar[dict[str, str]] = dict.fromkeys(
        KEYS["SequenceReplay"], "relabelled rows would change goals within a window: use SequenceReplay without goals"
    )

    name: Literal["HindsightReplay"] = "HindsightReplay"
    strategy: Literal["future", "final", "episode"] = Field(
        "future",
        description="the goal is what was achieved at a later step of the episode, at its last, or at any of its steps",
    )
    goals_per_step: int = Field(
        4, ge=0, description="relabelled rows for each row as it was: a share k / (k + 1) of those drawn"
    )
    achieved: Place = Field("achieved_goal", description=f"where the goal reached is: {PLACE}")
    desired: Place = Field("desired_goal", description=f"where the goal wanted is: {PLACE}")
    reward_fn: str = Field(
        "env",
        description="what gives the reward for another goal: 'env' (its compute_reward), 'sparse' (0 within "
        "distance_threshold, else -1) or 'module:function', which is imported and run",
    )
    done_fn: str | None = Field(
        None,
        description="what tells termination for another goal: 'env' (its compute_terminated), 'sparse' (within "
        "distance_threshold) or 'module:function'; null: as it was recorded",
    )
    distance_threshold: float = Field(0.05, ge=0, description="of 'sparse': goals at most this far apart are the same")

    @field_validator("reward_fn", "done_fn")
    @classmethod
    def _known_function(cls, name: str | None) -> str | None:
        if name is None or name in ("env", "sparse") or ":" in name:
            return name
        raise ValueError(f"'{name}' is none of 'env', 'sparse' and 'module:function'")

    @model_validator(mode="after")
    def _goals_differ(self) -> Self:
        if isinstance(self.achieved, str) != isinstance(self.desired, str):
            raise ValueError("achieved and desired are both parts of a Dict observation or both places in a flat one")
        if self.achieved == self.desired:
            raise ValueError("achieved and desired are the same place: every goal would be reached at once")
        return self

    @model_validator(mode="after")
    def _threshold_has_an_effect(self) -> Self:
        default = type(self).model_fields["distance_threshold"].default
        if self.distance_threshold != default and "sparse" not in (self.reward_fn, self.done_fn):
            raise ValueError("distance_threshold is for reward_fn or done_fn 'sparse', and neither of them is")
        return self

    @model_validator(mode="after")
    def _frames_are_whole(self) -> Self:
        if getattr(self, "frame_stack", 1) > 1:
            raise ValueError("frame_stack stores each frame once, so that a goal in it cannot be replaced; use 1")
        return self


class Goals(NamedTuple):
    """Where goals are, and what another goal makes of a step."""

    achieved: GoalPlace
    desired: GoalPlace
    reward: GoalFunction
    done: GoalFunction | None


def goals_of(
    settings: HindsightReplaySettings,
    layout: Layout,
    compute_reward: GoalFunction | None,
    compute_terminated: GoalFunction | None,
) -> Goals:
    """Raises InvalidMemorySpec where the observation has no such goals or a function is not to be had."""
    achieved = GoalPlace(layout, settings.achieved, "achieved")
    desired = GoalPlace(layout, settings.desired, "desired")
    if achieved.shape != desired.shape:
        problem = f"has shape {desired.shape}, and achieved {achieved.shape}: they must be alike"
        raise InvalidMemorySpec([Mistake("desired", problem)])
    if achieved.columns is not None and np.intersect1d(achieved.columns, desired.columns).size:
        problem = "shares numbers with achieved, which a goal that is put there would change"
        raise InvalidMemorySpec([Mistake("desired", problem)])
    threshold = settings.distance_threshold
    reward = reward_function(settings.reward_fn, compute_reward, threshold)
    return Goals(achieved, desired, reward, done_function(settings.done_fn, compute_terminated, threshold))


class HindsightReplay(OptionallyPrioritized):
    """Uniform or prioritized replay whose samples are relabelled; `all` tells the rows as they were."""

    Settings = HindsightReplaySettings
    settings: HindsightReplaySettings

    def _use_layout(self, layout: Layout) -> None:
        super()._use_layout(layout)
        self._goals = goals_of(self.settings, layout, self.compute_reward, self.compute_terminated)
        self._episodes = Episodes(self.ring)

    def _taken_back(self, ids: np.ndarray) -> None:
        super()._taken_back(ids)
        self._episodes.taken_back(ids)

    @classmethod
    def check_layout(
        cls,
        settings: HindsightReplaySettings,
        layout: Layout,
        compute_reward: GoalFunction | None,
        compute_terminated: GoalFunction | None,
    ) -> None:
        goals_of(settings, layout, compute_reward, compute_terminated)

    def sample(
        self,
        batch_size: int | None = None,
        n_step: int | None = None,
        sequence_length: int | None = None,
        source: int | None = None,
    ) -> Batch:
        """As of any replay memory; about k / (k + 1) of the rows carry another goal in obs and next_obs, and the
        reward (and termination) that it makes of their steps."""
        if sequence_length is not None:
            raise InvalidMemorySpec("sample: rows of a sequence cannot be relabelled one by one; leave out its length")
        batch = super().sample(batch_size, n_step, None, source)
        self._relabel(batch, self.settings.n_step if n_step is None else n_step)
        return batch

    def _relabel(self, batch: Batch, n_step: int) -> None:
        ids = batch.ids.numpy()
        k = self.settings.goals_per_step
        uniforms = self.rng.random(ids.size) * (k + 1)
        rows = np.flatnonzero(uniforms < k)
        if not rows.size:
            return
        goals, achieved, factors, ended, steps = self._look_ahead(ids[rows], uniforms[rows] / k, n_step)
        self._goals.desired.write(batch.obs, rows, goals)
        self._goals.desired.write(batch.next_obs, rows, goals)
        pairs = achieved.reshape(-1, *goals.shape[1:]), np.repeat(goals, n_step, axis=0)
        rewards = ask(self._goals.reward, "reward_fn", *pairs).reshape(ended.shape)
        if self._goals.done is not None:
            ended = ask(self._goals.done, "done_fn", *pairs).reshape(ended.shape).astype(np.bool_)
        reward, discount, taken = sum_up(rewards.astype(np.float32), factors, ended, steps)
        batch.reward.numpy()[rows] = reward
        batch.discount.numpy()[rows] = discount
        batch.steps.numpy()[rows] = taken
        for step in range(1, n_step):  # horizons that the new goal ends early lead to an earlier observation
            early = np.flatnonzero((taken == step) & (steps > step))
            if early.size:
                self._lead_to(batch, rows[early], goals[early], step)

    def _look_ahead(self, ids: np.ndarray, uniforms: np.ndarray, n_step: int) -> tuple[np.ndarray, ...]:
        """Goals (R, ...), and of each step of the horizon what was achieved (R, n, ...), the discount up to there and
        whether it was terminal (R, n), with how many steps there are (R,); what lies beyond repeats the last."""
        ring, place, episodes = self.ring, self._goals.achieved, self._episodes
        episodes.note()
        count = ids.size
        goals = np.empty((count, place.nbytes), np.uint8)
        achieved = np.empty((count, n_step, place.nbytes), np.uint8)
        factors = np.empty((count, n_step))
        ended = np.empty((count, n_step), np.bool_)
        steps = np.empty(count, np.int64)
        strategy = ("future", "final", "episode").index(self.settings.strategy)
        look_ahead(
            ring.raw, ring.floats, ring.links, ring.finals, ring.head, ring.tail,
            episodes.ends, episodes.first, episodes.last, ids, uniforms, strategy, self.gamma,
            ring.layout.word(f"extras.{DISCOUNT}"), ring.link_word, place.spans,
            goals, achieved, factors, ended, steps,
        )  # fmt: skip
        return place.read(goals), place.read(achieved), factors, ended, steps

    def _lead_to(self, batch: Batch, rows: np.ndarray, goals: np.ndarray, steps: int) -> None:
        """Let these rows of the batch lead to what they led to after so many steps."""
        sooner = self.view.read(batch.ids.numpy()[rows], steps).next_obs
        self._goals.desired.write(sooner, np.arange(rows.size), goals)
        places = torch.from_numpy(rows)
        for key in sooner if isinstance(sooner, dict) else (None,):
            whole, part = (batch.next_obs, sooner) if key is None else (batch.next_obs[key], sooner[key])
            whole[places] = part


@njit
def look_ahead(
    raw, floats, links, finals, head, tail, ends, first_end, last_end, ids, uniforms, strategy, gamma, discount_word,
    link_word, spans, goals, achieved, factors, ended, steps,
):  # fmt: skip
    envs = head.size
    slots = raw.shape[0] // envs
    width = ends.shape[1]
    for index in range(ids.size):
        env = ids[index] % envs
        t = ids[index] // envs
        low, high = first_end[env], last_end[env]
        while low < high:  # the first end after t
            middle = (low + high) // 2
            if ends[env, middle % width] > t:
                high = middle
            else:
                low = middle + 1
        last = (ends[env, low % width] if low < last_end[env] else head[env]) - 1
        first = t
        if strategy == FINAL:
            first = last
        elif strategy == EPISODE:
            first = ends[env, (low - 1) % width] if low > first_end[env] else tail[env]
        chosen = min(first + np.int64(uniforms[index] * (last - first + 1)), last)
        copy_spans(raw, links, finals, chosen, env, envs, slots, link_word, spans, goals[index])
        factor = 1.0
        for step in range(factors.shape[1]):
            if t <= last:
                place = t % slots * envs + env
                factor *= gamma if discount_word < 0 else gamma * floats[place, discount_word]
                copy_spans(raw, links, finals, t, env, envs, slots, link_word, spans, achieved[index, step])
                ended[index, step] = links[place, link_word] & TERMINATED != 0
                steps[index] = step + 1
                t += 1
            else:
                achieved[index, step] = achieved[index, step - 1]
                ended[index, step] = ended[index, step - 1]
            factors[index, step] = factor


@njit
def copy_spans(raw, links, finals, t, env, envs, slots, link_word, spans, target):
    """What row t led to: the spans of its next observation."""
    link = links[t % slots * envs + env, link_word]
    row = (t + 1) % slots * envs + env
    start = 0
    for span in range(spans.shape[0]):
        offset, size = spans[span]
        for byte in range(size):
            target[start + byte] = finals[(link >> FLAG_BITS) - 1, offset + byte] if link else raw[row, offset + byte]
        start += size


@njit
def sum_up(rewards, factors, ended, steps):
    """(R,) discounted sums over the horizon, the discounts after it, and its steps; it stops at the first terminal."""
    count = steps.size
    reward, discount, taken = np.empty(count), np.empty(count), np.empty(count, np.int64)
    for index in range(count):
        total, factor = 0.0, 1.0
        over = False
        step = 0
        while step < steps[index] and not over:
            total += factor * rewards[index, step]
            factor = factors[index, step]
            over = ended[index, step]
            step += 1
        reward[index], discount[index], taken[index] = total, 0.0 if over else factor, step
    return reward, discount, taken
