"""Images computed from their index, which need no memory and little time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from slurm_job_kit.trainer.data.sources import Batch
from slurm_job_kit.trainer.seeds import SampleRandom


@dataclass(frozen=True)
class SyntheticImages:
    """Images float32 [n, channels, size, size] from 0 to 1, computed from their index.

    Noise whose brightness depends on the class, so that a model can learn it. They need no memory
    and little time: each image is the sum of a row and a column of random numbers.
    """

    num_samples: int
    size: int
    channels: int
    num_classes: int
    part: int
    device: torch.device = torch.device("cpu")

    def __len__(self) -> int:
        return self.num_samples

    def to(self, device: torch.device) -> SyntheticImages:
        """Return the same images, computed on a device."""
        return replace(self, device=device)

    def batch(self, indices: torch.Tensor) -> Batch:
        """Return (images float32 [n, C, H, W], labels int64 [n]) of `indices`, int64 [n]."""
        random = SampleRandom(0, self.part, indices)
        shape = len(indices), self.channels, self.size
        rows = random.uniform(self.channels * self.size).reshape(shape).unsqueeze(3)
        columns = random.uniform(self.channels * self.size).reshape(shape).unsqueeze(2)
        labels = indices % self.num_classes
        noise = (rows + columns).frac_().mul_(0.5)
        return noise.add_((labels * (0.5 / self.num_classes)).reshape(-1, 1, 1, 1)), labels


def synthetic_images(
    num_train: int, num_test: int, size: int = 32, channels: int = 3, num_classes: int = 10
) -> tuple[SyntheticImages, SyntheticImages]:
    """Return (train, test) with these numbers of images of this height and width."""
    return (
        SyntheticImages(num_train, size, channels, num_classes, part=0),
        SyntheticImages(num_test, size, channels, num_classes, part=1),
    )
