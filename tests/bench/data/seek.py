"""B10: a resume late in an epoch gets its first batch as fast as one at its start."""

from collections.abc import Callable

import torch

from slurm_job_kit.jobs.contract.spec import Launch, Spec, Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.feed import IndexedBatches
from slurm_job_kit.trainer.data.sources import Samples, Source
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target, interleaved, milliseconds, ratio, timed

NUM_SAMPLES = 2_000_000
TARGET = Target("<=", 1.1)


class OneByOne:
    """Samples that are read one at a time."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index)), index % 2


def measure(place: Place) -> list[Figure]:
    """Seconds until the first batch, by the position of the resume."""
    in_memory = Samples(torch.zeros(NUM_SAMPLES, 4), torch.arange(NUM_SAMPLES) % 2)
    return [
        _figure(place, "in memory", in_memory, workers=0),
        _figure(place, "per sample, 2 workers", OneByOne(), workers=2),
    ]


def _figure(place: Place, title: str, source: Source, workers: int) -> Figure:
    train = Train(micro_batch_size=32)
    context = place.context(Spec(train=train, launch=Launch(num_workers=workers)))
    batches = Batches.of(train, len(source), world_size=1)

    def resume_at(share: float) -> Callable[[], float]:
        step = int(share * batches.steps_per_epoch)

        def first_batch() -> float:
            feed = IndexedBatches(source, None, context)
            took_s = timed(lambda: next(feed.micro_batches(step)))
            feed.close()
            return took_s

        return first_batch

    times = interleaved({"late": resume_at(0.8), "early": resume_at(0.01)})
    what = f"{title}, {NUM_SAMPLES:,} samples: at 80 % of an epoch / at 1 % ({{}})"
    return ratio(what.format(milliseconds(times["early"])), times["late"], times["early"], TARGET)
