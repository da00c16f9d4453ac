"""A model and data sets for tests of exactness: they draw random numbers and keep state."""

import os
import signal
import time
from typing import NamedTuple

import torch
from torch import nn

from slurm_job_kit.trainer.data.sources import Samples


class Stop(NamedTuple):
    """A signal to one rank at its `number`-th pass of a kind."""

    moment: str  # "start", "forward", "backward" or "evaluation"
    number: int
    rank: int


planned: Stop | None = None


def reach(moment: str, index: int) -> None:
    """Send this process its signal if it is planned for now."""
    if planned == (moment, index, int(os.environ["RANK"])):
        os.kill(os.getpid(), signal.SIGUSR1)


class Passes(nn.Module):
    """A model whose passes can be stopped in.

    The buffer `passes` counts forward passes in training and travels with the checkpoints.
    """

    def __init__(self) -> None:
        super().__init__()
        self.passes: torch.Tensor
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.evaluations = 0
        self.is_warm = False

    def counted(self, scores: torch.Tensor) -> torch.Tensor:
        """Count this forward pass, send its signal if one is planned; returns the scores."""
        index = int(self.passes)
        if not self.is_warm:  # the throw-away pass
            self.is_warm = True
            reach("start", 0)
        elif self.training:
            self.passes += 1
            reach("forward", index)
            scores.register_hook(lambda _: reach("backward", index))
        else:
            reach("evaluation", self.evaluations)
            self.evaluations += 1
        return scores


class Net(Passes):
    """Convolution, BatchNorm and dropout, in another order than their use."""

    def __init__(self, gain: float, pause_s: float, width: int) -> None:
        super().__init__()
        self.gain = gain
        self.pause_s = pause_s
        self.head = nn.Linear(width, 3)
        self.dropout = nn.Dropout(0.3)
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(1, width, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores [n, 3] of images [n, 1, 6, 6]."""
        hidden = torch.relu(self.norm(self.conv(images))).mean((2, 3))
        scores = self.counted(self.gain * self.head(self.dropout(hidden)))
        if not self.training:
            time.sleep(self.pause_s)
        return scores


def net(gain: float = 1.0, pause_s: float = 0.0, width: int = 4) -> nn.Module:
    """The model above; `gain` multiplies its scores, `pause_s` slows each evaluation batch down."""
    return Net(gain, pause_s, width)


def images(num: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(uint8 [num, 1, 6, 6], int64 [num]): noise around a level for each of three classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 3
    noise = torch.randint(0, 100, (num, 1, 6, 6), generator=generator)
    return (noise + 50 * labels[:, None, None, None]).to(torch.uint8), labels


def in_memory(num_train: int = 60, num_test: int = 11) -> tuple[Samples, Samples]:
    """Samples that are indexed by whole batches."""
    train, test = images(num_train), images(num_test, seed=1)
    return Samples(*train, scale=1 / 255), Samples(*test, scale=1 / 255)


class Loaded(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    num_classes = 3

    def __init__(self, num: int, seed: int, noise: float) -> None:
        self.images, self.labels = images(num, seed)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index].float() / 255
        return image + self.noise * torch.randn(image.shape), int(self.labels[index])


def by_sample(num_train: int = 60) -> tuple[Loaded, Loaded]:
    return Loaded(num_train, 0, noise=0.1), Loaded(11, 1, noise=0.0)
