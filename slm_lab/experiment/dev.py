"""Dev mode: a spec made short, and checks of what a new spec, env or algorithm most often gets wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm.recurrent import Carried
from slm_lab.agent.learner import Learner
from slm_lab.env import VectorEnv
from slm_lab.env.arrays import parts_of
from slm_lab.spec.schema import Spec
from slm_lab.types import Arrays, Step

FRAMES, EVALUATIONS, EPISODES = 3000, 2, 2


def shortened(spec: Spec) -> Spec:
    """The spec as one session of a few thousand frames, with learning and two evaluations in it, not compiled."""
    max_frame = min(spec.env.max_frame, FRAMES)
    algorithm = spec.agent.algorithm
    if getattr(algorithm, "training_start_step", 0) > max_frame // 2:
        algorithm = algorithm.model_copy(update={"training_start_step": max_frame // 2})
    meta = {
        "max_session": 1,
        "eval_frequency": max(1, max_frame // EVALUATIONS),
        "rigorous_eval": min(spec.meta.rigorous_eval, EPISODES),
        "compile": False,  # the checks look inside a learn step
    }
    return spec.model_copy(
        update={
            "agent": spec.agent.model_copy(update={"algorithm": algorithm}),
            "env": spec.env.model_copy(update={"max_frame": max_frame}),
            "meta": spec.meta.model_copy(update=meta),
        }
    )


@dataclass(frozen=True)
class Verdict:
    """What a check came to; `ok` is true too where there is only something to note."""

    name: str
    ok: bool
    text: str

    def __str__(self) -> str:
        return f"check {self.name}: {self.text}"


class Checks:
    """Looks over an agent's shoulder for a session; tells at its end."""

    def __init__(self) -> None:
        self.agent: Agent | None = None
        self.faults: dict[str, str] = {}  # check -> the first thing that was wrong
        self.outside = {"observations": 0, "actions": 0}  # of their spaces
        self.rows = 0
        self.learn_steps = 0
        self._initial: list[Tensor] = []  # each optimizer's parameters

    def watch(self, agent: Agent, env: VectorEnv) -> Agent:
        self.agent = WatchedAgent(agent, env, self)
        for learner in agent.algorithm.learners:
            self._watch_learner(learner)
        return self.agent

    def fault(self, check: str, text: str) -> None:
        self.faults.setdefault(check, text)

    def verdicts(self) -> list[Verdict]:
        """What the checks came to in a session that is over."""
        assert self.agent is not None
        found = [
            self._verdict("actions", "" if self.rows else "no step was taken", self._share("actions", "clipped")),
            self._verdict("observations", "", self._share("observations", "passed on as they are")),
        ]
        learners = self.agent.algorithm.learners
        if not learners:
            return [*found, Verdict("learning", True, "none, as the algorithm wants it")]
        late = (
            f"no learn step in {self.rows} frames; is training_frequency, batch_size or training_start_step too high?"
        )
        found.append(self._verdict("memory", "", f"ok, {self.rows} rows fit its fields"))
        found.append(self._verdict("learning", "" if self.learn_steps else late, f"ok, {self.learn_steps} learn steps"))
        if self.learn_steps:
            still = self._unchanged(learners)
            found.append(self._verdict("loss", "", "ok, always finite"))
            found.append(self._verdict("gradients", "", "ok, always finite"))
            found.append(self._verdict("parameters", still, "ok, changed by every optimizer"))
        return found

    def _verdict(self, check: str, wrong: str, right: str) -> Verdict:
        wrong = self.faults.get(check, wrong)
        return Verdict(check, not wrong, wrong or right)

    def _share(self, what: str, fate: str) -> str:
        if not self.outside[what]:
            return "ok, inside the env's space"
        return f"note: {self.outside[what]} of {self.rows} lie outside the env's space; they are {fate}"

    def _unchanged(self, learners: list[Learner]) -> str:
        all_now = [values for learner in learners for values in parameters(learner)]
        still = [
            str(place)
            for place, (now, initial) in enumerate(zip(all_now, self._initial, strict=True))
            if torch.equal(now, initial)
        ]
        if not still:
            return ""
        return f"optimizer {' and '.join(still)} has changed nothing; is its lr 0, or its net not part of the loss?"

    def _watch_learner(self, learner: Learner) -> None:
        self._initial += parameters(learner)
        loss_of, step = learner.loss, learner.step

        def watched_loss(*arguments: Any) -> Any:
            loss, info = loss_of(*arguments)
            if not torch.isfinite(loss):
                place = f"{loss.item()} at learn step {self.learn_steps + 1}"
                self.fault("loss", f"{place}; try a lower lr, smaller rewards, or clip_grad_val")
            return loss, info

        def watched_step(*arguments: Any, **scalars: float) -> Any:
            errors = step(*arguments, **scalars)
            self.learn_steps += 1
            grads = [parameter.grad for parameter in learner.net.parameters() if parameter.grad is not None]
            if not all(bool(torch.isfinite(grad).all()) for grad in grads):
                self.fault("gradients", f"not finite at learn step {self.learn_steps}; try a lower lr or clip_grad_val")
            return errors

        learner.loss, learner.step = watched_loss, watched_step  # type: ignore[method-assign]


def parameters(learner: Learner) -> list[Tensor]:
    """A copy of each optimizer's parameters."""
    return [values.clone() for values in learner.state_dict()["parameters"]]


class WatchedAgent(Agent):
    """The agent that it was made of, with a look at what goes in and comes out."""

    def __init__(self, agent: Agent, env: VectorEnv, checks: Checks):
        self.sessions = agent.sessions
        self.algorithm = agent.algorithm
        self.memory = agent.memory
        self.env = env
        self.checks = checks

    def remember(self, obs: Arrays, action: Arrays, step: Step, carried: Carried | None = None) -> None:
        checks = self.checks
        rows = len(step.reward)
        checks.rows += rows
        checks.outside["observations"] += rows - count_inside(step.next_obs, self.env.observation_space)
        misfits = rows - count_inside(action, self.env.action_space)
        checks.outside["actions"] += misfits
        if misfits and not isinstance(self.env.action_space, spaces.Box):
            checks.fault("actions", f"{action} lies outside {self.env.action_space}, at row {checks.rows}")
        if self.memory is not None:
            told = {name: getattr(step, name) for name in ("next_obs", "reward", "terminated", "truncated")}
            row = {**told, "obs": obs, "action": action, **self.extras_of_rows(carried)}
            try:
                self.memory.validate(row, bounds=False)  # counted above: many envs leave their own
            except ValueError as problem:
                checks.fault("memory", f"{problem}, at row {checks.rows}")
                raise
        super().remember(obs, action, step, carried)


def count_inside(values: Arrays, space: spaces.Space) -> int:
    """How many of the rows lie inside the space; Dict and Tuple spaces have dotted keys."""
    return int(np.logical_and.reduce(_inside(values, space, "")).sum())


def _inside(values: Arrays, space: spaces.Space, key: str) -> list[np.ndarray]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [(f"{key}.{name}" if key else str(name), part) for name, part in parts_of(space)]
        return [inside for place, part in parts for inside in _inside(values, part, place)]
    array = np.asarray(values[key] if key else values)
    return [np.array([space.contains(np.asarray(row, space.dtype)) for row in array], np.bool_)]
