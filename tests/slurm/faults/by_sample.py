"""The images of tests.parts, sample by sample, so that worker processes read them."""

import torch
from torch.utils.data import Dataset

from slurm_job_kit.trainer.data.sources import Samples
from tests import parts


class BySample(Dataset[tuple[torch.Tensor, int]]):
    """In-memory samples as a set that is read one by one."""

    num_classes = 10

    def __init__(self, samples: Samples) -> None:
        self.images, self.labels = samples.batch(torch.arange(len(samples)))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.labels[index])


def images() -> tuple[BySample, BySample]:
    """(train, test)."""
    train, test = parts.images()
    return BySample(train), BySample(test)
