"""Small parts of a training, which need no plugin: a spec names them as `tests.parts:NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from slurm_job_kit.trainer.api import SampleRandom, Samples, Sums

# Sections train of a table with a perceptron, of images with convolutions, of tokens.
TABLE: dict[str, Any] = {
    "dataset": f"{__name__}:table",
    "model": f"{__name__}:perceptron",
    "objective": "classification",
}
IMAGES: dict[str, Any] = {
    "dataset": f"{__name__}:images",
    "model": f"{__name__}:Convolutions",
    "objective": "classification",
}
TOKENS: dict[str, Any] = {
    "dataset": f"{__name__}:tokens",
    "model": f"{__name__}:Transformer",
    "objective": f"{__name__}:next_token",
}


def table(num_train: int = 455, num_test: int = 114) -> tuple[Samples, Samples]:
    """Two classes of 30 numbers each, with different means."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_train + num_test) % 2
    noise = torch.randn(len(labels), 30, generator=generator)
    return _parts(noise + 0.7 * labels[:, None], labels, num_train)


def images(num_train: int = 1437, num_test: int = 360) -> tuple[Samples, Samples]:
    """Ten classes of images [1, 8, 8] of bytes up to 16: a pattern for each class, and noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_train + num_test) % 10
    patterns = torch.randint(0, 11, (10, 1, 8, 8), generator=generator)
    noise = torch.randint(0, 7, (len(labels), 1, 8, 8), generator=generator)
    return _parts((patterns[labels] + noise).to(torch.uint8), labels, num_train, scale=1 / 16)


def _parts(
    inputs: torch.Tensor, labels: torch.Tensor, num_train: int, scale: float = 1.0
) -> tuple[Samples, Samples]:
    train, test = slice(num_train), slice(num_train, None)
    return (
        Samples(inputs[train], labels[train], scale),
        Samples(inputs[test], labels[test], scale),
    )


class Windows:
    """Sequences of `length` + 1 tokens below 50, of which each follows from the one before."""

    def __init__(self, num_windows: int, length: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randint(1, 4, (num_windows, length + 1), generator=generator)
        self.tokens = steps.cumsum(1) % 50

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device) -> Windows:
        """The same windows on a device."""
        self.tokens = self.tokens.to(device)
        return self

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        """The windows `indices`, int64 [n, length + 1]."""
        return self.tokens[indices]


def tokens(num_train: int = 200, num_test: int = 30, length: int = 13) -> tuple[Windows, Windows]:
    """Windows of tokens."""
    return Windows(num_train, length, seed=0), Windows(num_test, length, seed=1)


def perceptron(
    num_inputs: int = 30, num_classes: int = 2, hidden: Sequence[int] = (64, 64)
) -> nn.Sequential:
    """Numbers [n, ...] to scores [n, num_classes]."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_classes))


class Convolution(nn.Module):
    """A convolution with a norm and a shortcut: [n, C, H, W] to [n, channels, H/s, W/s]."""

    def __init__(self, num_inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(num_inputs, channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.bn1(self.conv1(x)) + self.shortcut(x))


class Convolutions(nn.Module):
    """Images [n, in_channels, H, W] to scores [n, num_classes]; a block for each of `channels`."""

    def __init__(
        self, channels: Sequence[int] = (8, 16), in_channels: int = 1, num_classes: int = 10
    ) -> None:
        super().__init__()
        widths = (in_channels, *channels)
        pairs = zip(widths, channels, strict=False)
        self.blocks = nn.Sequential(
            *(
                Convolution(width, out, 2 if place else 1)
                for place, (width, out) in enumerate(pairs)
            )
        )
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.blocks(images).mean(dim=(2, 3)))
        return scores


class Block(nn.Module):
    """A causal mean and two linear layers, each beside a shortcut, [n, T, width]."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.mix = Mean(width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(x)
        out: torch.Tensor = x + self.dropout(self.down(functional.gelu(self.up(self.norm(x)))))
        return out


class Mean(nn.Module):
    """The mean of all tokens up to each one, through a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        out: torch.Tensor = self.linear(x.cumsum(1) / counts)
        return out


class Transformer(nn.Module):
    """Tokens [n, T] to logits [n, T, vocabulary]; the head has the weights of the embedding."""

    def __init__(
        self, layers: int = 3, width: int = 14, vocabulary: int = 50, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(Block(width, dropout) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


class next_token:
    """Cross-entropy of the next token, and the perplexity that follows from it."""

    def __call__(self, model: nn.Module, batch: torch.Tensor) -> Sums:
        targets = batch[:, 1:].reshape(-1)
        logits = model(batch[:, :-1]).flatten(0, 1)
        return Sums(functional.cross_entropy(logits, targets, reduction="sum"), len(targets))

    def derive(self, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity."""
        return {"perplexity": 2.718281828459045 ** means["loss"]}


class Noise:
    """A transform: each number of a sample gets its own noise."""

    def __init__(self, amount: float = 0.5) -> None:
        self.amount = amount

    def __call__(self, inputs: torch.Tensor, random: SampleRandom | None) -> torch.Tensor:
        if random is None:
            return inputs
        noise = random.uniform(inputs[0].numel()).reshape(inputs.shape)
        return inputs + self.amount * (noise - 0.5)
