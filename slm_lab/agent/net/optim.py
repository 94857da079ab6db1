"""Optimizers and learning-rate schedules by their torch names, and the two that torch lacks."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from pydantic import ConfigDict, Field, model_validator
from torch.optim import lr_scheduler

from slm_lab.spec.registry import nearest
from slm_lab.spec.settings import Settings

# These read a parameter's matrix shape, need a closure or sparse gradients: they cannot work on one flat parameter.
NOT_ELEMENTWISE = ("LBFGS", "Muon", "Adafactor", "SparseAdam")


def _classes(module: Any, base: type) -> dict[str, type]:
    found = {name: item for name, item in vars(module).items() if inspect.isclass(item) and issubclass(item, base)}
    return {name: item for name, item in found.items() if item is not base and not name.startswith("_")}


OPTIMIZERS = {
    name: item for name, item in _classes(torch.optim, torch.optim.Optimizer).items() if name not in NOT_ELEMENTWISE
}
SCHEDULERS = {
    name: getattr(lr_scheduler, name)
    for name in (
        "StepLR",
        "MultiStepLR",
        "ConstantLR",
        "LinearLR",
        "ExponentialLR",
        "PolynomialLR",
        "CosineAnnealingLR",
        "CosineAnnealingWarmRestarts",
        "CyclicLR",
        "OneCycleLR",
    )
}


def _check_keywords(kind: str, target: Any, given: dict[str, Any], skip: tuple[str, ...]) -> None:
    allowed = [name for name in inspect.signature(target).parameters if name not in skip]
    for key in given:
        if key not in allowed:
            guess = nearest(key, allowed)
            raise ValueError(f"{kind} has no key '{key}'" + (f"; did you mean '{guess}'?" if guess else ""))


def _check_name(kind: str, name: str, allowed: list[str]) -> None:
    if name not in allowed:
        guess = nearest(name, allowed)
        raise ValueError(f"no {kind} named '{name}'; " + (f"did you mean '{guess}'?" if guess else f"known: {allowed}"))


class OptimSpec(Settings):
    """An optimizer of torch.optim by its class name (or "Lookahead"), with that class's own keywords."""

    model_config = ConfigDict(extra="allow")
    name: str = Field("Adam", description="class of torch.optim, or Lookahead")
    lr: float = Field(1e-3, ge=0, description="learning rate at the start of the run")
    optimizer: str | None = Field(None, description="Lookahead only: the optimizer that it wraps (default RAdam)")

    @model_validator(mode="after")
    def _known(self) -> OptimSpec:
        _check_name("optimizer", self.name, [*OPTIMIZERS, "Lookahead"])
        inner = self.name
        if self.name == "Lookahead":
            inner = self.optimizer or "RAdam"
            _check_name("optimizer", inner, list(OPTIMIZERS))
        elif self.optimizer is not None:
            raise ValueError("'optimizer' is a key of Lookahead only")
        own = ("k", "alpha") if self.name == "Lookahead" else ()
        given = {key: value for key, value in self.keywords().items() if key not in own}
        _check_keywords(f"optimizer {inner}", OPTIMIZERS[inner], given, skip=("params", "lr"))
        return self

    def keywords(self) -> dict[str, Any]:
        """The optimizer's own keywords, as given."""
        return dict(self.model_extra or {})


class LRSchedulerSpec(Settings):
    """A schedule of the learning rate over FRAMES: a class of torch.optim.lr_scheduler, or LinearToZero."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(description="StepLR, MultiStepLR, LinearToZero, CosineAnnealingLR …; counts frames")
    frame: float | None = Field(None, gt=0, description="LinearToZero: the frame at which the rate reaches zero")

    @model_validator(mode="after")
    def _known(self) -> LRSchedulerSpec:
        _check_name("lr scheduler", self.name, [*SCHEDULERS, "LinearToZero"])
        if self.name == "LinearToZero":
            if self.frame is None:
                raise ValueError("LinearToZero needs 'frame', the frame at which the rate reaches zero")
            _check_keywords("LinearToZero", lambda frame: None, dict(self.model_extra or {}), skip=())
        else:
            if self.frame is not None:
                raise ValueError("'frame' is a key of LinearToZero only")
            scheduler = SCHEDULERS[self.name]
            _check_keywords(self.name, scheduler, dict(self.model_extra or {}), skip=("optimizer", "last_epoch"))
            LRSchedule(self, base_lr=1.0)  # raises where a required keyword is missing
        return self


class LRSchedule:
    """The learning rate as a function of the frame; without a spec, constant."""

    def __init__(self, spec: LRSchedulerSpec | None, base_lr: float):
        self.base_lr = base_lr
        self.frames_to_zero = spec.frame if spec and spec.name == "LinearToZero" else None
        self._scheduler = None
        if spec and self.frames_to_zero is None:
            self._carrier = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base_lr, momentum=0.9)
            try:
                self._scheduler = SCHEDULERS[spec.name](self._carrier, **(spec.model_extra or {}))
            except TypeError as problem:
                raise ValueError(f"{spec.name}: {problem}") from problem
        self.constant = spec is None

    def at(self, frame: int) -> float:
        if self.constant:
            return self.base_lr
        if self.frames_to_zero is not None:
            return self.base_lr * max(0.0, 1.0 - frame / self.frames_to_zero)
        with warnings.catch_warnings():
            # torch warns that naming the epoch is on its way out; it is the one call that jumps to a given count
            warnings.simplefilter("ignore")
            self._scheduler.step(frame)
        return self._carrier.param_groups[0]["lr"]


class Lookahead:
    """Every k steps the slow parameters go a part of the way to the fast ones (Zhang et al. 2019, algorithm 1)."""

    def __init__(self, inner: torch.optim.Optimizer, k: int = 5, alpha: float = 0.5):
        self.inner, self.k, self.alpha = inner, k, alpha
        self.param_groups = inner.param_groups
        self.fast = inner.param_groups[0]["params"][0]
        self.slow = self.fast.detach().clone()
        self.count = 0

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        self.count += 1
        if self.count % self.k == 0:
            self.slow.lerp_(self.fast, self.alpha)
            self.fast.copy_(self.slow)

    def state_dict(self) -> dict:
        return {"inner": self.inner.state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, tree: dict) -> None:
        self.inner.load_state_dict(tree["inner"])
        self.slow.copy_(tree["slow"])
        self.count = tree["count"]


def make_optimizer(spec: OptimSpec, parameter: torch.Tensor) -> torch.optim.Optimizer | Lookahead:
    """The optimizer over one flat parameter, with torch's fused kernel where that class has one."""
    keywords = spec.keywords()
    name = spec.name
    if name == "Lookahead":
        name = spec.optimizer or "RAdam"
        own = {key: keywords.pop(key) for key in ("k", "alpha") if key in keywords}
    optimizer_class = OPTIMIZERS[name]
    if "fused" in inspect.signature(optimizer_class).parameters and not {"fused", "foreach"} & set(keywords):
        keywords["fused"] = True
    if "betas" in keywords:
        keywords["betas"] = tuple(keywords["betas"])
    optimizer = optimizer_class([parameter], lr=spec.lr, **keywords)
    return Lookahead(optimizer, **own) if spec.name == "Lookahead" else optimizer
