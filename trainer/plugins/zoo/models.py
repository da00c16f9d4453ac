"""The models of this plugin: ResNets for images; gpt has a file of its own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import relu

from ...data.sources import Batch
from ...errors import UserError
from ...model.models import BasicBlock, described, images, inputs_of, shortcut
from ...model.objectives import DataFacts
from .gpt import GPT

SMALL_IMAGE_PIXELS = 64  # up to this height and width, ResNets keep the full resolution first


def fitted_resnet(
    model: Callable[..., nn.Module], data: DataFacts, example: Batch
) -> Callable[..., nn.Module]:
    """Return a ResNet with the arguments that follow from the data; others may be added.

    example: a batch as the objective gets it. Raises UserError where model and data do not fit.
    """
    pixels, num_classes = images(data, example)
    stem = "small" if max(pixels.shape[2:]) <= SMALL_IMAGE_PIXELS else "imagenet"
    return partial(model, in_channels=pixels.shape[1], num_classes=num_classes, stem=stem)


def fitted_gpt(data: DataFacts, example: Batch) -> Callable[..., nn.Module]:
    """Return `GPT`, as `fitted_resnet` does."""
    inputs = inputs_of(example)
    if data.train.objective == "language_model" and inputs is example:
        inputs = inputs[:, :-1] if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(inputs, torch.Tensor) or inputs.is_floating_point() or inputs.ndim != 2:
        what = f"the inputs of train.dataset {data.train.dataset} are {described(inputs)}"
        hint = "take python_source or tokens, or your own data with train.objective language_model"
        raise UserError(f"train.model gpt takes tokens int64 [n, T], but {what}", hint)
    args: dict[str, Any] = {"block_size": inputs.shape[1]}
    if data.vocab_size is not None:
        args["vocab_size"] = data.vocab_size
    return partial(GPT, **args)


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
        self.downsample = shortcut(in_channels, channels * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu(self.bn1(self.conv1(x)))
        y = relu(self.bn2(self.conv2(y)))
        return relu(self.bn3(self.conv3(y)) + self.downsample(x))


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
        size, stride = {"small": (3, 1), "imagenet": (7, 2)}[stem]
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


resnet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
resnet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3))  # "v1.5"
BUILT_IN: dict[str, Callable[[DataFacts, Batch], Callable[..., nn.Module]]] = {
    "resnet18": partial(fitted_resnet, resnet18),
    "resnet50": partial(fitted_resnet, resnet50),
    "gpt": fitted_gpt,
}
