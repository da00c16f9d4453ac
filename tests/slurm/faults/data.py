"""The images of tests.parts: read one by one, and recorded by the ranks that train on them."""

import os
from pathlib import Path

import torch
from torch.utils.data import Dataset

from slurm_job_kit.trainer.data.sources import Batch, Samples
from tests import parts

FOLDER = "SAMPLES_FOLDER"
RECORDED = f"train.dataset={__name__}:recorded"
BY_SAMPLE = f"train.dataset={__name__}:by_sample"


class BySample(Dataset[tuple[torch.Tensor, int]]):
    """In-memory samples as a set that is read one by one, so that worker processes read it."""

    num_classes = 10

    def __init__(self, samples: Samples) -> None:
        self.images, self.labels = samples.batch(torch.arange(len(samples)))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.labels[index])


def by_sample() -> tuple[BySample, BySample]:
    train, test = parts.images()
    return BySample(train), BySample(test)


class Recorded(Samples):
    """Samples that append the indices of each batch to FOLDER/<rank>, a line for each."""

    def batch(self, indices: torch.Tensor) -> Batch:
        with open(Path(os.environ[FOLDER], os.environ["RANK"]), "a", encoding="utf-8") as record:
            record.write(" ".join(map(str, indices.tolist())) + "\n")
        return super().batch(indices)


def recorded() -> tuple[Samples, Samples]:
    """(train, test); the training set is recorded."""
    train, test = parts.images()
    return Recorded(train.inputs, train.labels, scale=1 / 16), test


def batches(folder: Path, rank: int) -> list[list[int]]:
    """The samples on which a rank trained over all attempts.

    Without those of a start: a throw-away pass uses sample 0 only, the first four are compared, and
    single ones are digested.
    """
    lines = [line.split() for line in (folder / str(rank)).read_text().splitlines()]
    all_batches = [[int(word) for word in line] for line in lines]
    trained = [batch for batch in all_batches if len(batch) > 1 and any(batch)]
    return [batch for batch in trained if batch != [0, 1, 2, 3]]
