"""Jobs and data sets for the tests of the data. No tests in here."""

import random
from pathlib import Path

import numpy as np
import torch

from slurm_job_kit.jobs.spec import Launch, Slurm, Spec, Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.feed import IndexedBatches
from tests.core.ranks import context_of, place_of


def job_of(rank=0, world_size=1, workers=0, nodes=1, **train):
    """A rank's job on the CPU; `train` are keys of that section."""
    spec = Spec(slurm=Slurm(nodes=nodes), train=Train(**train), launch=Launch(num_workers=workers))
    return context_of(Path("nowhere"), spec, place_of(rank, world_size))


def feed_of(source, transform=None, /, **context):
    """Return the training batches of a rank's job."""
    rank = job_of(**context)
    batches = Batches.of(rank.train, len(source), rank.distributed.world_size)
    return IndexedBatches(source, transform, batches, rank)


class Chancy:
    """Images with their index in the first pixel, and random numbers of three generators."""

    num_classes = 3

    def __init__(self, num_samples=40):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        image = torch.rand(1, 4, 4)
        image[0, 0] = torch.tensor([index, random.random(), np.random.rand(), 0.5])
        return image, index % 3


class Given(Chancy):
    """A data set of the samples that `make` returns for an index."""

    def __init__(self, make, num_samples=8):
        super().__init__(num_samples)
        self.make = make

    def __getitem__(self, index):
        return self.make(index)


def pixels_by_sample(feed, steps):
    """{(step, sample): its pixels} of a feed over `Chancy` or alike."""
    pixels = {}
    for step in steps:
        for inputs, _ in feed.micro_batches(step):
            for image in inputs:
                pixels[step, int(image[0, 0, 0])] = image
    return pixels
