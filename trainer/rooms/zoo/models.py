"""The built-in models: torch modules from inputs [n, ...] to scores [n, num_classes]; gpt apart."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import relu

from ...data.sources import Batch, is_pair
from ...errors import UserError
from ...model.objectives import DataFacts
from .gpt import GPT

SMALL_IMAGE_PIXELS = 64  # up to this height and width, ResNets keep the full resolution first


def fitted(name: str, data: DataFacts, example: Batch) -> Callable[..., nn.Module]:
    """Return a built-in model with the arguments that follow from the data; others may be added.

    example: a batch as the objective gets it. Raises UserError where model and data do not fit.
    """
    inputs, num_outputs = example, data.num_classes
    if is_pair(example):
        inputs = example[0]
        if data.train.objective == "regression" and isinstance(example[1], torch.Tensor):
            num_outputs = example[1][0].numel()
    elif data.train.objective == "language_model" and isinstance(example, torch.Tensor):
        inputs = example[:, :-1]
    if name == "gpt":
        return partial(GPT, **_fitted_gpt(data, inputs))
    if num_outputs is None:
        raise UserError(
            f"train.model {name} needs the number of classes, but train.dataset "
            f"{data.train.dataset} has no attribute num_classes: add one"
        )
    if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
        raise UserError(
            f"train.model {name} takes one tensor of numbers, but the inputs of train.dataset "
            f"{data.train.dataset} are {_described(inputs)}: name a model of your own"
        )
    args: dict[str, Any] = {"num_classes": num_outputs}
    if name == "mlp":
        return partial(mlp, in_features=inputs[0].numel(), **args)
    if inputs.ndim != 4:
        raise UserError(
            f"train.model {name} takes images [n, C, H, W], but train.dataset returns inputs of "
            f"shape {tuple(inputs.shape)}: use mlp, or other data"
        )
    if name != "mini_resnet" and max(inputs.shape[2:]) <= SMALL_IMAGE_PIXELS:
        args["stem"] = "small"
    return partial(BUILT_IN[name], in_channels=inputs.shape[1], **args)


def _fitted_gpt(data: DataFacts, inputs: object) -> dict[str, Any]:
    if not isinstance(inputs, torch.Tensor) or inputs.is_floating_point() or inputs.ndim != 2:
        raise UserError(
            f"train.model gpt takes tokens int64 [n, T], but the inputs of train.dataset "
            f"{data.train.dataset} are {_described(inputs)}: take python_source, text or tokens, "
            "or data of your own with train.objective language_model"
        )
    vocabulary = {} if data.vocab_size is None else {"vocab_size": data.vocab_size}
    return {"block_size": inputs.shape[1], **vocabulary}


def _described(inputs: object) -> str:
    if isinstance(inputs, torch.Tensor):
        return f"{inputs.dtype} {tuple(inputs.shape)}"
    return f"a {type(inputs).__name__}"


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut. [n, C, H, W] to [n, channels, H/stride, W/stride]."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; the 3x3 has the stride ("v1.5").

    [n, C, H, W] to [n, 4 * channels, H/stride, W/stride].
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels * self.expansion)
        self.downsample = _shortcut(in_channels, channels * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu(self.bn1(self.conv1(x)))
        y = relu(self.bn2(self.conv2(y)))
        return relu(self.bn3(self.conv3(y)) + self.downsample(x))


def _shortcut(in_channels: int, channels: int, stride: int) -> nn.Module:
    """Return the identity, or a 1x1 convolution where the shape changes."""
    if stride == 1 and in_channels == channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
    )


class MiniResNet(nn.Module):
    """A small residual network for small images; each stage halves the resolution.

    images float32 [n, in_channels, H, W] to scores [n, num_classes].
    """

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
                blocks.append(BasicBlock(width, stage_width, stride))
                width = stage_width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return scores


class ResNet(nn.Module):
    """A residual network of four stages, with the parameter names of published weights.

    images float32 [n, in_channels, H, W] to scores [n, num_classes]. `stem` is "imagenet", or
    "small" for one 3x3 convolution at full resolution. With `zero_init_last` each block starts as
    only its shortcut.
    Source: He et al., "Deep Residual Learning for Image Recognition", table 1; Goyal et al.,
    "Accurate, Large Minibatch SGD", section 5.1.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks_per_stage: Sequence[int],
        in_channels: int,
        num_classes: int,
        stem: str = "imagenet",
        zero_init_last: bool = False,
    ) -> None:
        super().__init__()
        if stem not in ("small", "imagenet"):
            raise UserError(f"train.model_args: stem is {stem!r}; small and imagenet are known")
        size, stride = (3, 1) if stem == "small" else (7, 2)
        self.conv1 = nn.Conv2d(in_channels, 64, size, stride, padding=size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if stem == "small" else nn.MaxPool2d(3, 2, padding=1)
        width, stages = 64, []
        for stage, num_blocks in enumerate(blocks_per_stage):
            channels, blocks = 64 * 2**stage, []
            for index in range(num_blocks):
                blocks.append(block(width, channels, 2 if stage > 0 and index == 0 else 1))
                width = channels * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_last and isinstance(module, (BasicBlock, Bottleneck)):
                last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
                nn.init.zeros_(last.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def mlp(
    in_features: int, num_classes: int, hidden: Sequence[int] = (64, 64), dropout: float = 0.0
) -> nn.Module:
    """Return a multi-layer perceptron with ReLU, and dropout after each hidden layer.

    inputs float32 [n, ...] of in_features numbers each, to scores [n, num_classes].
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(in_features, width), nn.ReLU(), nn.Dropout(dropout)]
        in_features = width
    return nn.Sequential(*layers, nn.Linear(in_features, num_classes))


resnet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
resnet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3))  # "v1.5"
BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "mini_resnet": MiniResNet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mlp": mlp,
    "gpt": GPT,
}
