"""Creates the model of a spec: one of the core, which fits to the data, of a plugin or a user."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn.functional import relu

from ..data.sources import Batch, is_pair
from ..errors import UserError
from ..parts import parts
from ..user_code import call, is_user_code, load
from .objectives import DataFacts


def create(data: DataFacts, example: Batch, is_overwritten: bool = False) -> nn.Module:
    """Return the model of `train.model`: a built-in one, or `package.module:callable`.

    A built-in one is fitted to the data and to a batch, as the objective gets it.
    is_overwritten: whether nothing sees the weights before a checkpoint is loaded. The model of a
        plugin then has no initial weights. One of the user does: its code may use them.
    Raises UserError where the name, the arguments or the data do not fit.
    """
    name, is_own = data.train.model, is_user_code(data.train.model)
    function = load("train.model", name, {**BUILT_IN, **parts("model")})
    if not is_own:
        function = function(data, example)
    with _without_initial_weights() if is_overwritten and not is_own else nullcontext():
        model = call("train.model", function, data.train.model_args)
    if not isinstance(model, nn.Module):
        raise UserError(f"train.model: {name} returns a {type(model).__name__}, not a torch module")
    return model


@contextmanager
def _without_initial_weights() -> Iterator[None]:
    """Let the functions of torch.nn.init, which all models of a plugin use, change nothing."""
    own = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    functions = {name: getattr(nn.init, name) for name in own}
    try:
        vars(nn.init).update(dict.fromkeys(functions, lambda tensor, *_, **__: tensor))
        yield
    finally:
        vars(nn.init).update(functions)


def fitted_mlp(data: DataFacts, example: Batch) -> Callable[..., nn.Module]:
    """Return `mlp` with the arguments that follow from the data; others may be added.

    example: a batch as the objective gets it. Raises UserError where model and data do not fit.
    """
    values, num_outputs = numbers(data, example)
    return partial(mlp, in_features=values[0].numel(), num_classes=num_outputs)


def fitted_mini_resnet(data: DataFacts, example: Batch) -> Callable[..., nn.Module]:
    """Return `MiniResNet`, as `fitted_mlp` does."""
    pixels, num_classes = images(data, example)
    return partial(MiniResNet, in_channels=pixels.shape[1], num_classes=num_classes)


def numbers(data: DataFacts, example: Batch) -> tuple[torch.Tensor, int]:
    """Return (inputs [n, ...] of a batch, number of outputs of a model for them).

    Raises UserError where the inputs are not one tensor of numbers.
    """
    inputs, num_outputs = inputs_of(example), data.num_classes
    if data.train.objective == "regression" and is_pair(example):
        num_outputs = example[1][0].numel() if isinstance(example[1], torch.Tensor) else None
    if num_outputs is None:
        what = f"train.dataset {data.train.dataset} has no attribute num_classes"
        what = f"train.model {data.train.model} needs the number of classes, but {what}"
        raise UserError(what, "add one")
    if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
        what = f"the inputs of train.dataset {data.train.dataset} are {described(inputs)}"
        what = f"train.model {data.train.model} takes one tensor of numbers, but {what}"
        raise UserError(what, "name a model of your own")
    return inputs, num_outputs


def images(data: DataFacts, example: Batch) -> tuple[torch.Tensor, int]:
    """Return (images [n, C, H, W] of a batch, number of classes). Raises UserError for others."""
    inputs, num_classes = numbers(data, example)
    if inputs.ndim != 4:
        what = f"train.dataset returns inputs of shape {tuple(inputs.shape)}"
        what = f"train.model {data.train.model} takes images [n, C, H, W], but {what}"
        raise UserError(what, "use mlp, or other data")
    return inputs, num_classes


def inputs_of(example: Batch) -> Batch:
    """Return the inputs of a batch, which may be a pair with labels."""
    return example[0] if is_pair(example) else example


def described(inputs: object) -> str:
    """Return words for the inputs of a model: their type and shape."""
    if isinstance(inputs, torch.Tensor):
        return f"{inputs.dtype} {tuple(inputs.shape)}"
    return f"a {type(inputs).__name__}"


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


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut. [n, C, H, W] to [n, channels, H/stride, W/stride]."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = shortcut(in_channels, channels, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(y)) + self.downsample(x))


def shortcut(in_channels: int, channels: int, stride: int) -> nn.Module:
    """Return the identity, or a 1x1 convolution where the shape changes."""
    if stride == 1 and in_channels == channels:
        return nn.Identity()
    convolution = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels))


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


BUILT_IN = {"mini_resnet": fitted_mini_resnet, "mlp": fitted_mlp}
