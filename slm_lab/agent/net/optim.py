"""Optimizers and learning-rate schedules by their torch names, and the two that torch lacks."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from pydantic import ConfigDict, Field, model_validator
from torch.optim import lr_scheduler

from slm_lab.spec.registry import nearest
from slm_lab.spec.settings import Settings

# The parameters of an optimizer lie in one flat tensor, on which these cannot work.
NOT_ELEMENTWISE = {
    "LBFGS": "calls the loss several times a step",
    "Muon": "works on matrices",
    "Adafactor": "works on matrices",
    "SparseAdam": "takes sparse gradients only",
}


def _classes(module: Any, base: type) -> dict[str, type]:
    found = {name: item for name, item in vars(module).items() if inspect.isclass(item) and issubclass(item, base)}
    return {name: item for name, item in found.items() if item is not base and not name.startswith("_")}


HOW_TO_COMPUTE = ("params", "lr", "foreach", "fused", "capturable", "differentiable")

# Where sessions train one set of parameters, the running means of these are one set too (Mnih 2016, section 4).
GLOBAL = {"GlobalAdam": torch.optim.Adam, "GlobalRMSprop": torch.optim.RMSprop}
OPTIMIZERS = {
    name: item for name, item in _classes(torch.optim, torch.optim.Optimizer).items() if name not in NOT_ELEMENTWISE
} | GLOBAL
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


def _keywords_of(target: Any, *skip: str) -> list[str]:
    return [name for name in inspect.signature(target).parameters if name not in skip]


def _defaults_of(target: Any) -> dict[str, Any]:
    """The keywords' default values, as JSON values; without those that only say how to compute the same."""
    parameters = inspect.signature(target).parameters.values()
    values = {item.name: item.default for item in parameters if item.name not in HOW_TO_COMPUTE}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {name: value for name, value in plain.items() if isinstance(value, bool | int | float | list)}


def _check_keywords(kind: str, allowed: list[str], given: dict[str, Any]) -> None:
    for key in given:
        if key not in allowed:
            guess = nearest(key, allowed)
            raise ValueError(
                f"{kind} has no key '{key}'; " + (f"did you mean '{guess}'?" if guess else f"known: {allowed}")
            )


def check_name(kind: str, name: str, allowed: list[str]) -> None:
    if name not in allowed:
        guess = nearest(name, allowed)
        raise ValueError(f"no {kind} named '{name}'; " + (f"did you mean '{guess}'?" if guess else f"known: {allowed}"))


class OptimSpec(Settings):
    """An optimizer of torch.optim by its class name, with that class's own keywords; or Lookahead, or a Global one."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(
        "Adam",
        description="class of torch.optim, or Lookahead, or GlobalAdam or GlobalRMSprop: Adam or RMSprop whose running "
        "means the sessions of a distributed trial have in common",
    )
    lr: float = Field(1e-3, ge=0, description="learning rate at the start of the run")
    optimizer: str | None = Field(None, description="Lookahead only: the optimizer that it wraps (default RAdam)")

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, given: Any) -> Any:
        """A saved spec says all that its run was trained with: torch's defaults too, which may change."""
        if not isinstance(given, dict):
            return given
        name = given.get("name", "Adam")
        inner = given.get("optimizer") or "RAdam" if name == "Lookahead" else name
        own = _defaults_of(Lookahead) if name == "Lookahead" else {}
        return {**own, **(_defaults_of(OPTIMIZERS[inner]) if inner in OPTIMIZERS else {}), **given}

    @model_validator(mode="after")
    def _known(self) -> OptimSpec:
        for name in (self.name, self.optimizer):
            if name in NOT_ELEMENTWISE:
                raise ValueError(f"optimizer {name} cannot be used here: it {NOT_ELEMENTWISE[name]}")
        check_name("optimizer", self.name, [*OPTIMIZERS, "Lookahead"])
        if self.name != "Lookahead" and self.optimizer is not None:
            raise ValueError("'optimizer' is a key of Lookahead only")
        inner = self.inner_name()
        check_name("optimizer", inner, list(OPTIMIZERS))
        own = ["k", "alpha"] if self.name == "Lookahead" else []
        _check_keywords(f"optimizer {inner}", [*own, *_keywords_of(OPTIMIZERS[inner], "params", "lr")], self.keywords())
        try:
            make_optimizer(self, torch.zeros(1, requires_grad=True), light=True)
        except Exception as problem:  # torch refuses values in many ways
            raise ValueError(f"optimizer {self.name}: {problem}") from problem
        return self

    def inner_name(self) -> str:
        """The class of torch.optim that takes the steps."""
        return self.optimizer or "RAdam" if self.name == "Lookahead" else self.name

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
        check_name("lr scheduler", self.name, [*SCHEDULERS, "LinearToZero"])
        if self.name == "LinearToZero":
            if self.frame is None:
                raise ValueError("LinearToZero needs 'frame', the frame at which the rate reaches zero")
            _check_keywords(self.name, ["frame"], self.keywords())
            return self
        if self.frame is not None:
            raise ValueError("'frame' is a key of LinearToZero only")
        _check_keywords(self.name, _keywords_of(SCHEDULERS[self.name], "optimizer", "last_epoch"), self.keywords())
        try:
            LRSchedule(self, base_lr=1.0).at(1)
        except Exception as problem:  # a keyword is missing or makes no sense: torch refuses in many ways
            raise ValueError(f"{self.name}: {problem}") from problem
        return self

    def keywords(self) -> dict[str, Any]:
        """The schedule's own keywords; 1e6 is a count of frames, which torch wants as an integer."""
        return {
            key: int(value) if isinstance(value, float) and value.is_integer() else value
            for key, value in (self.model_extra or {}).items()
        }


class LRSchedule:
    """The learning rate as a function of the frame; without a spec, constant."""

    def __init__(self, spec: LRSchedulerSpec | None, base_lr: float):
        self.base_lr = base_lr
        self.constant = spec is None
        self.frames_to_zero = spec.frame if spec and spec.frame else math.inf
        self._scheduler = None
        if spec and not spec.frame:
            # the momentum is for the cyclic schedules, which ask for one
            self._carrier = _light(torch.optim.SGD)([torch.zeros(1, requires_grad=True)], lr=base_lr, momentum=0.9)
            self._scheduler = SCHEDULERS[spec.name](self._carrier, **spec.keywords())
            # OneCycleLR alone ends: it has rates for the frames 0 to total_steps - 1
            self._last_frame = getattr(self._scheduler, "total_steps", math.inf) - 1

    def at(self, frame: int) -> float:
        if self._scheduler is None:
            return self.base_lr * max(0.0, 1.0 - frame / self.frames_to_zero)
        with warnings.catch_warnings():
            # torch warns that naming the epoch is on its way out; it is the one call that jumps to a given count
            warnings.simplefilter("ignore")
            self._scheduler.step(min(frame, self._last_frame))
        return float(self._carrier.param_groups[0]["lr"])


class Lookahead:
    """Every k steps the slow parameters go a part of the way to the fast ones (Zhang et al. 2019, algorithm 1)."""

    def __init__(self, inner: torch.optim.Optimizer, k: int = 5, alpha: float = 0.5):
        if k < 1 or not 0 < alpha <= 1:
            raise ValueError(f"k must be at least 1 and alpha in (0, 1], not {k} and {alpha}")
        self.inner, self.k, self.alpha = inner, k, alpha
        self._inner_step = bare_step(inner)
        self.fast = inner.param_groups[0]["params"][0]
        self.slow = self.fast.detach().clone()
        self.count = 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups  # a new list after inner.load_state_dict

    @torch.no_grad()
    def step(self) -> None:
        self._inner_step()
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


def make_optimizer(
    spec: OptimSpec, parameter: torch.Tensor, *, light: bool = False
) -> torch.optim.Optimizer | Lookahead:
    """The optimizer over one flat parameter, with torch's fused kernel where that class has one."""
    keywords = spec.keywords()
    own = {key: keywords.pop(key) for key in ("k", "alpha") if spec.name == "Lookahead" and key in keywords}
    optimizer_class = OPTIMIZERS[spec.inner_name()]
    if "fused" in _keywords_of(optimizer_class) and not {"fused", "foreach"} & set(keywords):
        keywords["fused"] = True
    if light:
        optimizer_class = _light(optimizer_class)
    optimizer = optimizer_class([parameter], lr=spec.lr, **keywords)
    return Lookahead(optimizer, **own) if spec.name == "Lookahead" else optimizer


def optimizer_state(optimizer: torch.optim.Optimizer | Lookahead) -> dict:
    """The state with string keys, so that it can be written as JSON values and tensors."""
    if isinstance(optimizer, Lookahead):
        return {"inner": optimizer_state(optimizer.inner), "slow": optimizer.slow, "count": optimizer.count}
    return {str(key): value for key, value in optimizer.state_dict()["state"].get(0, {}).items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer | Lookahead, tree: dict) -> None:
    """Take on the state that `optimizer_state` gave."""
    if isinstance(optimizer, Lookahead):
        optimizer.load_state_dict({**tree, "inner": _with_state(optimizer.inner, tree["inner"])})
    else:
        optimizer.load_state_dict(_with_state(optimizer, tree))


def _with_state(optimizer: torch.optim.Optimizer, tree: dict) -> dict:
    """The optimizer's `state_dict` with this state in it; its own copy, for torch would keep the very tensors."""
    [values] = optimizer.param_groups[0]["params"]
    for key, value in tree.items():
        if value is None and key == "momentum_buffer":  # before its first step
            continue
        if not (isinstance(value, torch.Tensor) and value.shape in ((), values.shape)):
            raise ValueError(f"the optimizer's {key} is not one number for each of {values.numel()} parameters")
    own = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in tree.items()}
    return {**optimizer.state_dict(), "state": {0: own} if own else {}}


def common_state(spec: OptimSpec, values: torch.Tensor, optimizer: torch.optim.Optimizer | Lookahead) -> dict:
    """What the sessions of a distributed trial have in common of the optimizer's state, as it is now; {}: nothing."""
    if spec.name not in GLOBAL or isinstance(optimizer, Lookahead):
        return {}
    if state := optimizer.state[values]:
        return dict(state)
    trial = torch.zeros_like(values)
    trial.grad = torch.zeros_like(values)
    begun = make_optimizer(spec, trial)
    begun.step()  # which makes the state; it begins with zeros
    return {name: torch.zeros_like(value) for name, value in begun.state[trial].items()}


VARIANTS_OF_ADAM = ("amsgrad", "maximize", "decoupled_weight_decay", "foreach", "capturable", "differentiable")
Arithmetic = Callable[[torch.Tensor, torch.Tensor, dict[str, torch.Tensor], torch.Tensor], None]


def arithmetic(spec: OptimSpec) -> Arithmetic | None:
    """(values, grad, state, lr) -> None: the optimizer's step as plain operations that a compiler can fuse with others.

    The state is torch's own for that optimizer. None for the steps that only torch can take.
    """
    keywords = spec.keywords()
    if spec.name not in ("Adam", "GlobalAdam", "AdamW") or any(keywords.get(key) for key in VARIANTS_OF_ADAM):
        return None
    (beta1, beta2), eps, decay = keywords["betas"], keywords["eps"], keywords["weight_decay"]

    def adam(values: torch.Tensor, grad: torch.Tensor, state: dict[str, torch.Tensor], lr: torch.Tensor) -> None:
        """Kingma 2015, algorithm 1; AdamW decays apart from the gradient (Loshchilov 2019, algorithm 2)."""
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        step.add_(1)
        if decay and spec.name == "AdamW":
            values.mul_(1 - lr * decay)
        elif decay:
            grad = grad + decay * values
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = (square / (1 - beta2**step)).sqrt() + eps
        values.sub_(lr / (1 - beta1**step) * mean / root)

    return adam


def adam_state(optimizer: torch.optim.Optimizer, values: torch.Tensor) -> dict[str, torch.Tensor]:
    """The optimizer's state for these values, as torch begins it at the first step."""
    state = optimizer.state[values]
    if not state:
        state["step"] = torch.zeros((), device=values.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(values.data), torch.zeros_like(values.data)
    return state


def bare_step(optimizer: torch.optim.Optimizer | Lookahead) -> Callable[[], Any]:
    """The optimizer's `step` without the hooks, the profiler's record and the lists that torch puts around it, which
    nobody asks for here: 80 of the 500 µs of a small DQN's learn step."""
    if type(optimizer) is torch.optim.Adam and hasattr(torch, "_fused_adam_"):
        group = optimizer.param_groups[0]
        if group["fused"] and not any(group.get(key) for key in VARIANTS_OF_ADAM):
            return functools.partial(_fused_adam_step, optimizer)
    step = type(optimizer).step
    return functools.partial(step.__wrapped__ if getattr(step, "hooked", False) else step, optimizer)


@torch.no_grad()
def _fused_adam_step(optimizer: torch.optim.Adam) -> None:
    group = optimizer.param_groups[0]
    values = group["params"][0]
    state = adam_state(optimizer, values)
    state["step"].add_(1)
    torch._fused_adam_(
        [values],
        [values.grad],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


def _light(optimizer_class: type) -> type:
    """The class with torch's checks of its keywords, but not made to take steps.

    Torch shields `add_param_group` from its compiler, and imports all of that, more than a second, to do so.
    """

    def add_param_group(self, group: dict[str, Any]) -> None:
        self.param_groups.append({**self.defaults, **group})

    return type(optimizer_class.__name__, (optimizer_class,), {"add_param_group": add_param_group})
