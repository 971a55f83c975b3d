"""The policy for image observations: a convolutional network that actor and critic share, as in Stable-Baselines3's `CnnPolicy`.

An image is a `Box` of `uint8` or `bool`: `(height, width)`, or with channels in the last axis, as in Gymnasium. Stacked
frames (`gymnasium.wrappers.FrameStackObservation`) become channels. Observations stay in 8 bits until the network reads
them.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from torch import nn

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.envs.base import GymSpace
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.rl.policies.control import ControlPolicy, count_features, list_parts, make_action_head, mlp

_MIN_SIDE = 7
"""Minimum height and width of an image: the view of an agent in MiniGrid. Smaller arrays are feature vectors."""
_MAX_SMALL_SIDE = 64
"""Images whose shorter side has at most so many pixels are read by the smaller network."""
_GAIN = 2**0.5


def is_image_space(space: GymSpace) -> bool:
    """Whether the observations of a space are images."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype not in (np.uint8, np.bool_):
        return False
    return len(space.shape) in (2, 3, 4) and min(_find_sides(space.shape)) >= _MIN_SIDE


def has_images(space: GymSpace) -> bool:
    """Whether the observations of a space are images, or contain one."""
    return any(is_image_space(part) for part in list_parts(space))


def cnn_policy(
    observation_space: GymSpace, action_space: GymSpace, seeds: Seeds = Seeds(0), scale_actions: bool = True
) -> ControlPolicy:
    """A convolutional network for images, with one linear layer for the actor and one for the critic.

    The other parts of a Dict or Tuple are further inputs of these layers.

    Raises:
        EnvError: the observations are not images.
    """
    if not has_images(observation_space):
        raise EnvError(
            f"expected images: a Box of uint8 or bool with 2 to 4 axes and at least {_MIN_SIDE} x {_MIN_SIDE} pixels; "
            f"got {observation_space}"
        )
    head = make_action_head(action_space)
    with fork_torch_rng(seeds.derive("policy")):
        has_parts = not isinstance(observation_space, gymnasium.spaces.Box)
        trunk = MixedNetwork(observation_space) if has_parts else ImageNetwork(observation_space)
        # A layer between the parts of an observation lets the actor combine them.
        hidden = [128] if has_parts else []
        actor, critic = mlp([trunk.outputs, *hidden, head.outputs], 0.01), mlp([trunk.outputs, *hidden, 1], 1.0)
    return ControlPolicy(observation_space, action_space, actor, critic, trunk=trunk, scale_actions=scale_actions)


class ImageNetwork(nn.Module):
    """Maps images of a space to feature vectors.

    Images of more than 64 x 64 pixels are read by the network of Mnih et al. (2015). Smaller ones are read by 3 x 3
    convolutions: layers of stride 2 until the shorter side has at most 16 pixels, then one of stride 1. For 10 x 10 pixels
    this is the network of MinAtar (Young and Tian 2019). Weights are orthogonal, as in `mlp`.
    """

    def __init__(self, space: GymSpace) -> None:
        super().__init__()
        assert isinstance(space, gymnasium.spaces.Box)
        self.shape, self.scale = space.shape, 1.0 / float(space.high.max())
        height, width = _find_sides(space.shape)
        channels = int(np.prod(space.shape)) // (height * width)
        if min(height, width) > _MAX_SMALL_SIDE:
            layers = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
            self.outputs = 512
        else:
            layers, side = [], min(height, width)
            while side > 16:
                layers.append((32, 3, 2, 1))
                side = -(-side // 2)
            layers.append((16, 3, 1, 0))
            self.outputs = 128
        modules: list[nn.Module] = []
        for filters, kernel, stride, padding in layers:
            modules += [nn.Conv2d(channels, filters, kernel, stride, padding), nn.ReLU()]
            channels = filters
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        modules += [nn.Flatten(), nn.Linear(channels * height * width, self.outputs), nn.ReLU()]
        for module in modules:
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(module.weight, _GAIN)
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        self.layers = nn.Sequential(*modules)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features_ND: torch.Tensor = self.layers(self.to_channels_first(images))
        return features_ND

    def to_channels_first(self, images: torch.Tensor) -> torch.Tensor:
        """Images of the space as `[images, channels, height, width]` with values from 0 to 1."""
        if len(self.shape) == 2:
            images = images[:, None]
        elif not _has_channels_first(self.shape):
            images = images.movedim(-1, -3)
        if len(self.shape) == 4:  # The channels of all stacked frames.
            images = images.flatten(1, 2)
        return images.float() * self.scale


class MixedNetwork(nn.Module):
    """Maps observations with several parts to feature vectors: each image by a network of its own, other parts as they are.

    Arguments:
        space: a Dict or Tuple. Observations are rows of features, in the order of its parts.
    """

    def __init__(self, space: GymSpace) -> None:
        super().__init__()
        self.parts = list_parts(space)
        self.widths = [count_features(part) for part in self.parts]
        self.networks = nn.ModuleDict(
            {str(k): ImageNetwork(part) for k, part in enumerate(self.parts) if is_image_space(part)}
        )
        images = [image.outputs for image in self.networks.values() if isinstance(image, ImageNetwork)]
        rest = [width for k, width in enumerate(self.widths) if str(k) not in self.networks]
        self.outputs = sum(images) + sum(rest)

    def forward(self, rows_NF: torch.Tensor) -> torch.Tensor:
        hidden = []
        for k, (part, values_NF) in enumerate(zip(self.parts, torch.split(rows_NF, self.widths, -1), strict=True)):
            is_image = str(k) in self.networks
            hidden.append(self.networks[str(k)](values_NF.view(-1, *(part.shape or ()))) if is_image else values_NF)
        return torch.cat(hidden, -1)


def _has_channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the axis before the last two has the channels: it is the smallest of the three."""
    return len(shape) > 2 and shape[-3] < min(shape[-2:])


def _find_sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """The height and width of images of a shape."""
    if len(shape) == 2 or _has_channels_first(shape):
        return shape[-2], shape[-1]
    return shape[-3], shape[-2]
