"""From an observation to a row of features, which the hidden layers take: one encoder for each of its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Discriminator, Field, Tag, field_validator
from torch import Tensor, nn

from slm_lab.agent.net.hidden import ACTIVATIONS, BatchNorm, HiddenLayers, HiddenSettings, LayerSizes
from slm_lab.errors import Mistake
from slm_lab.spec.settings import Settings

WHOLE = ""  # the name of the one part of an observation without parts
ConvLayers = list[list[int]]
FLAT = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def filled(layer: list[int]) -> list[int]:
    """The five numbers of a convolution, of which the last three may have been left out."""
    return [*layer, *[1, 0, 1][len(layer) - 2 :]]


class ConvKeys(Settings):
    """The keys of convolutions, wherever they stand."""

    conv_hid_layers: ConvLayers = Field(
        [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
        description="convolutions, in order: [channels, kernel, stride (1), padding (0), dilation (1)], in pixels; "
        "the last three can be left out",
    )
    normalize: bool = Field(True, description="bytes (0 to 255) are scaled to 0 to 1")

    @field_validator("conv_hid_layers")
    @classmethod
    def _complete(cls, layers: ConvLayers) -> ConvLayers:
        for layer in layers:
            if not 2 <= len(layer) <= 5:
                raise ValueError(f"{layer} is not [channels, kernel, stride, padding, dilation]")
            *ones, padding, dilation = filled(layer)
            if min(*ones, dilation) < 1 or padding < 0:
                raise ValueError(f"{layer}: padding is at least 0, all other numbers at least 1")
        return layers


class MLPEncoderSettings(Settings):
    type: Literal["MLPNet"] = Field("MLPNet", description="fully connected layers on the part as a flat array")
    hid_layers: LayerSizes = Field([64], description="units of each layer, in order; []: the part as it is")


class ConvEncoderSettings(ConvKeys):
    type: Literal["ConvNet"] = Field("ConvNet", description="convolutions on the part as an image")
    fc_hid_layers: LayerSizes = Field([], description="units of each fully connected layer after them")


def _type_of(encoder: Any) -> Any:
    return encoder.get("type", "MLPNet") if isinstance(encoder, dict) else getattr(encoder, "type", None)


EncoderSettings = Annotated[
    Annotated[MLPEncoderSettings, Tag("MLPNet")] | Annotated[ConvEncoderSettings, Tag("ConvNet")],
    Discriminator(_type_of),
]
Encoders = dict[str, EncoderSettings]


class EncodedSettings(HiddenSettings):
    """Keys of the nets that can give each part of an observation an encoder."""

    encoders: Encoders = Field(
        {},
        description="of Dict and Tuple observations: layers for a part (dotted name) before all parts come together; "
        "activation and norms are the net's",
    )


class Flat(nn.Module):
    """Numbers one after the other; classes, which have no order, as ones among zeros."""

    def __init__(self, space: spaces.Space):
        super().__init__()
        self.classes: list[int] = []  # how many there are of each class; [] for numbers
        firsts: list[int] = []
        if isinstance(space, spaces.Discrete):
            self.classes, firsts = [int(space.n)], [int(space.start)]
        elif isinstance(space, spaces.MultiDiscrete):
            self.classes, firsts = space.nvec.flatten().tolist(), space.start.flatten().tolist()
        self.width = sum(self.classes) or math.prod(space.shape or ())
        # added to what is observed they give the places of the ones
        self.shifts = [sum(self.classes[:place]) - first for place, first in enumerate(firsts)]

    def forward(self, obs: Tensor) -> Tensor:
        if not self.classes:
            return (obs if obs.dim() == 2 else obs.reshape(len(obs), -1)).float()
        places = obs.long().reshape(len(obs), -1) + torch.tensor(self.shifts, device=obs.device)
        return torch.zeros(len(obs), self.width, device=obs.device).scatter(1, places, 1.0)

    def numpy_forward(self) -> Callable[[np.ndarray], np.ndarray]:
        if not self.classes:
            return lambda obs: obs.reshape(len(obs), -1).astype(np.float32, copy=False)
        shifts, width = np.array(self.shifts), self.width

        def one_hot(obs: np.ndarray) -> np.ndarray:
            rows = np.zeros((len(obs), width), np.float32)
            rows[np.arange(len(obs))[:, None], obs.reshape(len(obs), -1) + shifts] = 1
            return rows

        return one_hot


class Dense(nn.Module):
    """A flat part through layers of its own."""

    def __init__(self, space: spaces.Space, sizes: list[int], settings: HiddenSettings):
        super().__init__()
        self.flat = Flat(space)
        self.hidden = HiddenLayers(self.flat.width, sizes, settings)
        self.width = self.hidden.width

    def forward(self, obs: Tensor) -> Tensor:
        return self.hidden.forward(self.flat.forward(obs))

    def numpy_forward(self) -> Callable[[np.ndarray], np.ndarray] | None:
        flat, hidden = self.flat.numpy_forward(), self.hidden.numpy_forward()
        return None if hidden is None else lambda obs: hidden(flat(obs))


class Images(nn.Module):
    """Images, or stacks of them, through convolutions and then fully connected layers."""

    def __init__(self, space: spaces.Box, keys: ConvKeys, sizes: list[int], settings: HiddenSettings):
        super().__init__()
        self.shape, self.channels_last = channels_of(space.shape)
        self.scale = 1 / 255 if keys.normalize and (space.high == 255).all() else 1.0
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        channels = self.shape[0]
        for layer in keys.conv_hid_layers:
            filters, kernel, stride, padding, dilation = filled(layer)
            biased = settings.norm != "batch"  # which has its own
            self.convolutions.append(nn.Conv2d(channels, filters, kernel, stride, padding, dilation, bias=biased))
            if settings.norm is not None:
                self.norms.append(nn.GroupNorm(1, filters) if settings.norm == "layer" else BatchNorm(filters))
            channels = filters
        self.activation = ACTIVATIONS[settings.hid_layers_activation]
        flat = math.prod(sizes_after(self.shape, keys.conv_hid_layers)[-1])
        self.hidden = HiddenLayers(flat, sizes, settings)
        self.width = self.hidden.width

    def forward(self, obs: Tensor) -> Tensor:
        if self.channels_last:
            obs = obs.movedim(-1, -3)
        values = obs.reshape(-1, *self.shape).float()
        if self.scale != 1.0:
            values = values * self.scale
        for place, layer in enumerate(self.convolutions):
            values = layer(values)
            if self.norms:
                values = self.norms[place](values)
            values = self.activation(values)
        return self.hidden.forward(values.flatten(1))

    def numpy_forward(self) -> None:
        return None


class Parts(nn.Module):
    """Each part of a Dict or Tuple observation through its own encoder; their features side by side."""

    def __init__(self, encoders: Mapping[str, Any]):
        super().__init__()
        self.names = list(encoders)
        self.encoders = nn.ModuleList(encoders.values())
        self.width = sum(encoder.width for encoder in encoders.values())

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.cat([encoder(obs[name]) for name, encoder in zip(self.names, self.encoders, strict=True)], -1)

    def numpy_forward(self) -> Callable[[dict[str, np.ndarray]], np.ndarray] | None:
        functions = [encoder.numpy_forward() for encoder in self.encoders]
        if None in functions:
            return None
        named = list(zip(self.names, functions, strict=True))
        return lambda obs: np.concatenate([function(obs[name]) for name, function in named], -1)


def parts_of(space: spaces.Space, name: str = WHOLE) -> dict[str, spaces.Space]:
    """The observation's parts by their names, those of a part with a dot between; one, named "", if it has none."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {name: space}
    inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    found: dict[str, spaces.Space] = {}
    for key, part in inner:
        found |= parts_of(part, f"{name}.{key}" if name else str(key))
    return found


def is_image(space: spaces.Space) -> bool:
    """Whether convolutions make sense on it: bytes in rows and columns, or three axes and more of any numbers."""
    if not isinstance(space, spaces.Box):
        return False
    return len(space.shape) in (3, 4) or (len(space.shape) == 2 and space.dtype == np.uint8)


def channels_of(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], bool]:
    """(channels, height, width) of an image, and whether its channels come last, as in pictures of colours.

    The channels are the shorter one of the first and the last of an image's three axes. An axis before them is that of
    stacked images, whose channels go one after the other.
    """
    if len(shape) == 2:
        return (1, *shape), False
    first, middle, last = shape[-3:]
    stacked = math.prod(shape[:-3])
    if last < first:
        return (stacked * last, first, middle), True
    return (stacked * first, middle, last), False


def sizes_after(shape: tuple[int, int, int], layers: ConvLayers) -> list[tuple[int, int, int]]:
    """(channels, height, width) at first and after each of the convolutions."""
    sizes = [shape]
    for layer in layers:
        filters, kernel, stride, padding, dilation = filled(layer)
        height, width = ((side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for side in sizes[-1][1:])
        sizes.append((filters, height, width))
    return sizes


def make_encoder(space: spaces.Space, encoders: Encoders, default: ConvKeys | None, settings: HiddenSettings) -> Any:
    """The observation's encoder: as `encoders` says part by part; other images by `default`; all else as it is."""

    def encoder_of(name: str, part: spaces.Space) -> nn.Module:
        own = encoders.get(name)
        if isinstance(own, MLPEncoderSettings):
            return Dense(part, own.hid_layers, settings)
        if isinstance(own, ConvEncoderSettings):
            return Images(part, own, own.fc_hid_layers, settings)
        if default is not None and is_image(part):
            return Images(part, default, [], settings)
        return Flat(part)

    parts = parts_of(space)
    if WHOLE in parts:
        return encoder_of(WHOLE, space)
    return Parts({name: encoder_of(name, part) for name, part in parts.items()})


def check_encoders(net: str, space: spaces.Space, encoders: Encoders, default: ConvKeys | None) -> list[Mistake]:
    """Why the observations cannot be encoded so; empty where they can. `default` as in `make_encoder`."""
    parts = parts_of(space)
    mistakes = []
    for name in encoders:
        if name not in parts:
            known = "they are one array" if WHOLE in parts else f"there are {', '.join(parts)}"
            problem = f"the env's observations have no part '{name}'; {known}"
            mistakes.append(Mistake("agent.net.encoders", problem))
    for name, part in parts.items():
        own = encoders.get(name)
        keys = own if isinstance(own, ConvEncoderSettings) else default if own is None and is_image(part) else None
        what = "the env's are" if name == WHOLE else f"the part '{name}' is"
        if not isinstance(part, FLAT):
            kinds = "Box, Discrete, MultiDiscrete and MultiBinary"
            mistakes.append(
                Mistake("agent.net.type", f"{net} takes {kinds} observations; {what} {type(part).__name__}")
            )
        elif keys is not None:
            mistakes += _check_convolutions(name, part, keys)
        elif own is None and part.dtype == np.uint8 and is_image(part):
            remedy = "use ConvNet" if name == WHOLE else "use ConvNet, or give it an encoder"
            problem = f"{net} takes flat observations; {what} images of {part.shape}: {remedy}"
            mistakes.append(Mistake("agent.net.type", problem))
    return mistakes


def _check_convolutions(name: str, part: spaces.Space, keys: ConvKeys) -> list[Mistake]:
    place = f"agent.net.encoders.{name}" if isinstance(keys, ConvEncoderSettings) else "agent.net"
    if not is_image(part):
        return [Mistake(f"{place}.type", f"ConvNet takes images; the part '{name}' is {part}: use MLPNet")]
    sizes = sizes_after(channels_of(part.shape)[0], keys.conv_hid_layers)
    for layer, before, after in zip(keys.conv_hid_layers, sizes[:-1], sizes[1:], strict=True):
        if min(after) < 1:
            problem = f"the kernel of {layer} is larger than what is left of the image there, {before[1]} x {before[2]}"
            return [Mistake(f"{place}.conv_hid_layers", problem)]
    return []
