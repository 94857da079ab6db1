"""Which sequence of actions to take, by trying many of them in a model: the cross-entropy method, random shooting.

A plan is (N, H, A): for each of N envs H steps of actions, each a vector of A numbers around zero, which stands for
knowing nothing. What a candidate promises is for the caller to say: a function from candidates (N, C, H, A) to returns
(N, C), the higher the better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

Returns = Callable[[Tensor], Tensor]  # (N, C, H, A) candidates -> (N, C)
FIRST_SPREAD = 0.5  # of Box actions, in units of half their range, as in Chua 2018's code
LEAST_SPREAD = 0.05  # so that the candidates of the last iterations still differ
LEAST_SHARE = 0.05  # of the probability that is dealt out evenly: no action is lost for good


class BoxPlans:
    """Actions scaled to [-1, 1]; a plan is the mean of Gaussians."""

    def __init__(self, space: spaces.Box):
        self.shape = space.shape
        self.units = int(np.prod(space.shape))
        self.low, self.high = (bound.flatten().astype(np.float32) for bound in (space.low, space.high))
        self.middle, self.half = (
            torch.from_numpy(part) for part in ((self.low + self.high) / 2, (self.high - self.low) / 2)
        )

    def first_spread(self, plan: Tensor) -> Tensor:
        return torch.full_like(plan, FIRST_SPREAD)

    def draw(self, plan: Tensor, spread: Tensor, count: int, rng: np.random.Generator) -> Tensor:
        """(N, count, H, A) candidates around the plan."""
        envs, *rest = plan.shape
        noise = torch.from_numpy(rng.standard_normal((envs, count, *rest), dtype=np.float32)).to(plan.device)
        return torch.addcmul(plan.unsqueeze(1), spread.unsqueeze(1), noise).clamp_(-1, 1)

    def draw_evenly(self, plan: Tensor, count: int, rng: np.random.Generator) -> Tensor:
        """(N, count, H, A) candidates, each as likely as any other; of `plan` only the shape counts."""
        envs, *rest = plan.shape
        drawn = rng.random((envs, count, *rest), dtype=np.float32)
        return torch.from_numpy(drawn).to(plan.device).mul_(2).sub_(1)

    def fit(self, elite: Tensor) -> tuple[Tensor, Tensor]:
        """(N, H, A) the plan that the best candidates (N, E, H, A) speak for, and how much they differ."""
        std, mean = torch.std_mean(elite, 1, correction=0)
        return mean, std.clamp_(min=LEAST_SPREAD)

    def encode(self, candidates: Tensor) -> Tensor:
        """(..., A) in the env's units, flat, as a model takes them."""
        return self.middle.to(candidates.device) + self.half.to(candidates.device) * candidates

    def action(self, vectors: np.ndarray) -> np.ndarray:
        """(N, ...) for the env, of vectors (N, A)."""
        scaled = self.middle.numpy() + self.half.numpy() * vectors
        return scaled.clip(self.low, self.high).astype(np.float32).reshape(-1, *self.shape)


class CategoricalPlans:
    """One of A actions at each step, told by ones among zeros; a plan is their probabilities, less 1 / A."""

    def __init__(self, space: spaces.Discrete):
        self.units, self.start, self.dtype = int(space.n), int(space.start), space.dtype

    def first_spread(self, plan: Tensor) -> Tensor:
        return torch.zeros_like(plan)

    def draw(self, plan: Tensor, spread: Tensor, count: int, rng: np.random.Generator) -> Tensor:
        """(N, count, H, A) candidates by the plan's probabilities."""
        envs, horizon, units = plan.shape
        probability = (1 - LEAST_SHARE) * plan + 1 / units
        edges = probability.cumsum(-1)[..., :-1].unsqueeze(1)  # between one action's part of [0, 1) and the next one's
        drawn = torch.from_numpy(rng.random((envs, count, horizon, 1), dtype=np.float32)).to(plan.device)
        return torch.nn.functional.one_hot((drawn >= edges).sum(-1), units).float()

    def draw_evenly(self, plan: Tensor, count: int, rng: np.random.Generator) -> Tensor:
        """(N, count, H, A) candidates, each as likely as any other; of `plan` only the shape counts."""
        return self.draw(torch.zeros_like(plan), plan, count, rng)

    def fit(self, elite: Tensor) -> tuple[Tensor, Tensor]:
        """(N, H, A) how often the best candidates (N, E, H, A) have each action, less 1 / A; there is no spread."""
        plan = elite.mean(1) - 1 / self.units
        return plan, plan

    def encode(self, candidates: Tensor) -> Tensor:
        return candidates

    def action(self, vectors: np.ndarray) -> np.ndarray:
        """(N,) for the env: the likeliest of (N, A)."""
        return (self.start + vectors.argmax(-1)).astype(self.dtype)


Plans = BoxPlans | CategoricalPlans


def make_plans(space: spaces.Space) -> Plans:
    return CategoricalPlans(space) if isinstance(space, spaces.Discrete) else BoxPlans(space)


def cross_entropy(plans: Plans, returns: Returns, plan: Tensor, settings: Any, rng: np.random.Generator) -> Tensor:
    """(N, H, A) the plan that the elites of the last iteration speak for (Rubinstein 1999; Chua 2018, section 5)."""
    spread = plans.first_spread(plan)
    for _ in range(settings.iterations):
        candidates = plans.draw(plan, spread, settings.candidates, rng)
        plan, spread = plans.fit(best(candidates, returns(candidates), settings.elites))
    return plan


def random_shooting(plans: Plans, returns: Returns, plan: Tensor, settings: Any, rng: np.random.Generator) -> Tensor:
    """(N, H, A) the best of evenly drawn candidates (Nagabandi 2018, eq. 5); of `plan` only the shape counts."""
    candidates = plans.draw_evenly(plan, settings.candidates, rng)
    return best(candidates, returns(candidates), 1).squeeze(1)


PLANNERS = {"cem": cross_entropy, "random_shooting": random_shooting}


def best(candidates: Tensor, returns: Tensor, count: int) -> Tensor:
    """(N, count, H, A) those with the highest (N, C) returns; what has no finite return counts as worst."""
    known = torch.where(returns.isfinite(), returns, -torch.inf)
    places = known.topk(count, 1).indices
    envs = torch.arange(len(candidates), device=candidates.device).unsqueeze(-1)
    return candidates[envs, places]


def shifted(plan: Tensor) -> Tensor:
    """(N, H, A) what is left of the plan one step later, with nothing known of the step that is new."""
    return torch.cat([plan[:, 1:], torch.zeros_like(plan[:, :1])], 1)
