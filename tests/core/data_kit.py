"""Jobs and data sets for the tests of the data. No tests in here."""

from contextlib import closing
from pathlib import Path

from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec, Train
from slurm_job_kit.trainer.data.feed import IndexedBatches
from tests.core.ranks import context_of, place_of


def job_of(rank=0, world_size=1, workers=0, nodes=1, **train):
    """A rank's job on the CPU; `train` are keys of that section."""
    spec = Spec(slurm=Slurm(nodes=nodes), train=Train(**train), launch=Launch(num_workers=workers))
    return context_of(Path("nowhere"), spec, place_of(rank, world_size))


def feed_of(source, transform=None, /, **context):
    """Return the training batches of a rank's job."""
    return IndexedBatches(source, transform, job_of(**context))


def first(source, transform=None, /, **context):
    """(the example, the first micro batch) of a data set."""
    with closing(feed_of(source, transform, **{"micro_batch_size": 4, **context})) as feed:
        return feed.example(), next(feed.micro_batches(0))


def pixels_by_sample(feed, steps):
    """{(step, sample): its pixels} of a feed over `Chancy` or alike."""
    pixels = {}
    for step in steps:
        for inputs, _ in feed.micro_batches(step):
            for image in inputs:
                pixels[step, int(image[0, 0, 0])] = image
    return pixels


class Whole:
    """A data set of the batches that `make` returns for indices."""

    def __init__(self, make, num_samples=8):
        self.make, self.num_samples = make, num_samples

    def __len__(self):
        return self.num_samples

    def to(self, device):
        return self

    def batch(self, indices):
        return self.make(indices)
