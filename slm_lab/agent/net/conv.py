"""Convolutional nets: images through convolutions, then fully connected layers and the heads (Mnih 2015)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from gymnasium import spaces
from pydantic import Field

from slm_lab.agent.net.encoder import ConvKeys, EncodedSettings, Encoders, is_image, parts_of
from slm_lab.agent.net.hidden import LayerSizes
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.errors import Mistake


class ConvNetSettings(EncodedSettings, ConvKeys):
    type: Literal["ConvNet"] = "ConvNet"
    fc_hid_layers: LayerSizes = Field([512], description="units of each fully connected layer after the convolutions")


class ConvNet(MLPNet):
    """Takes images with their channels first or last, and stacks of them; flat parts beside them join after the
    convolutions. Images stay bytes until they are on the device, and are scaled there."""

    Settings: ClassVar[Any] = ConvNetSettings

    @classmethod
    def encoding(cls, settings: Any, observation_space: spaces.Space) -> tuple[Encoders, ConvKeys | None]:
        return settings.encoders, settings

    @classmethod
    def hidden_sizes(cls, settings: Any) -> list[int]:
        return settings.fc_hid_layers

    @classmethod
    def check(cls, settings: Any, observation_space: spaces.Space) -> list[Mistake]:
        parts = parts_of(observation_space)
        if not any(is_image(part) for part in parts.values()):
            what = ", ".join(str(part) for part in parts.values())
            return [Mistake("agent.net.type", f"{cls.__name__} takes images; the env's observations are {what}")]
        return super().check(settings, observation_space)
