"""The built-in models: plain modules from a batch of inputs to class scores [N, num_classes]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import relu

from trainer.plugins import call


def create(name: str, args: dict[str, Any], inputs: torch.Tensor, num_classes: int) -> nn.Module:
    """The model `train.model`: a built-in fitted to the data, or `package.module:callable`."""
    fitted: dict[str, dict[str, Any]] = {
        "mini_resnet": {"in_channels": inputs.shape[1], "num_classes": num_classes},
        "mlp": {"in_features": inputs[0].numel(), "num_classes": num_classes},
    }
    built_in = {"mini_resnet": MiniResNet, "mlp": mlp}
    model: nn.Module = call("train.model", name, built_in, {**fitted.get(name, {}), **args})
    return model


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class MiniResNet(nn.Module):
    """A small residual network for small images: stages of blocks, each at half the resolution."""

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        channels: Sequence[int] = (64, 128, 256),
        blocks_per_stage: int = 2,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(channels[0]),
            nn.ReLU(),
        )
        width = channels[0]
        blocks = []
        for stage, stage_width in enumerate(channels):
            for block in range(blocks_per_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Block(width, stage_width, stride))
                width = stage_width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return scores


def mlp(
    in_features: int, num_classes: int, hidden: Sequence[int] = (64, 64), dropout: float = 0.0
) -> nn.Module:
    """A multi-layer perceptron with ReLU, and dropout after each hidden layer."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(in_features, width), nn.ReLU(), nn.Dropout(dropout)]
        in_features = width
    return nn.Sequential(*layers, nn.Linear(in_features, num_classes))
