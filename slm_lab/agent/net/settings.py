"""The keys that every net block has: how its parameters start and how they are trained."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, field_validator

from slm_lab.agent.net.optim import LRSchedulerSpec, OptimSpec, check_name
from slm_lab.spec.settings import Settings

Units = int | tuple[int, int]  # outputs of a head; (actions, parts): so many parts for each action, one after the other
Heads = dict[str, Units]
LOSSES = {
    "MSELoss": torch.nn.functional.mse_loss,
    "SmoothL1Loss": torch.nn.functional.smooth_l1_loss,
    "HuberLoss": torch.nn.functional.huber_loss,
    "L1Loss": torch.nn.functional.l1_loss,
}
# those that fill a matrix without being told more
INITIALISERS = [
    *("orthogonal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"),
    *("uniform_", "normal_", "trunc_normal_", "eye_", "ones_", "zeros_"),
]


class LossSpec(Settings):
    name: Literal["MSELoss", "SmoothL1Loss", "HuberLoss", "L1Loss"] = Field(
        "MSELoss", description="loss between values and their targets, by its torch name"
    )


class NetSettings(Settings):
    """What all nets share."""

    shared: bool = Field(True, description="actor and critic share the hidden layers; false: one net each")
    init_fn: str | None = Field(
        None,
        description="initialiser of torch.nn.init, such as orthogonal_, for the weights of all but recurrent cells, "
        "which start as torch has them; null: torch's default",
    )
    clip_grad_val: float | None = Field(None, gt=0, description="largest norm of the gradient; null: no clipping")
    loss_spec: LossSpec = Field(LossSpec(), description="loss of the value predictions")
    optim_spec: OptimSpec = Field(OptimSpec(), description="optimizer")
    actor_optim_spec: OptimSpec | None = Field(
        None, description="the actor's own optimizer; of a shared net, that of the whole; null: optim_spec"
    )
    critic_optim_spec: OptimSpec | None = Field(
        None, description="the critic's own optimizer, where it is a net of its own; null: optim_spec"
    )
    use_same_optim: bool = Field(False, description="one optimizer for actor and critic: the actor's, else optim_spec")
    lr_scheduler_spec: LRSchedulerSpec | None = Field(None, description="learning-rate schedule, in frames")
    update_type: Literal["replace", "polyak"] = Field("polyak", description="how the target net follows the net")
    update_frequency: int = Field(1, ge=1, description="frames between updates of the target net")
    polyak_coef: float = Field(0.005, ge=0, le=1, description="polyak: weight of the net in the new target net")
    log_std_init: float | None = Field(
        None,
        gt=-20,
        lt=2,
        description="Box actions: initial log of a learned standard deviation; null: the net puts it out",
    )
    gpu: bool | Literal["auto"] | None = Field(
        None, description="SLM Lab's key for the device, read and passed over: meta.device decides"
    )

    @field_validator("init_fn")
    @classmethod
    def _known_init(cls, name: str | None) -> str | None:
        if name is not None:
            check_name("init_fn", name, INITIALISERS)
        return name
