"""B12: small images in memory, augmented by whole batches or sample by sample."""

from collections.abc import Iterable

import torch
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset

from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.data.batches import Batches
from slurm_job_kit.trainer.data.feed import IndexedBatches
from slurm_job_kit.trainer.data.sources import Samples
from slurm_job_kit.trainer.plugins.zoo.image import Image
from tests.bench.place import Place
from tests.bench.rounds import Figure, Target, interleaved, ratio, timed

NUM_IMAGES, BATCH_SIZE, PADDING = 8192, 128, 4
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


class OneByOne(Dataset[tuple[torch.Tensor, int]]):
    """The same images with the same augmentation, as a data set is usually written."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._images = images
        self._labels = labels.tolist()
        self._mean = torch.tensor(MEAN).reshape(-1, 1, 1)
        self._std = torch.tensor(STD).reshape(-1, 1, 1)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        padded = pad(self._images[index], (PADDING, PADDING, PADDING, PADDING))
        top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
        image = padded[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image.float() / 255 - self._mean) / self._std, self._labels[index]


def measure(place: Place) -> list[Figure]:
    """Seconds of an epoch of either, in one process on one core, without training."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (NUM_IMAGES, 3, 32, 32), generator=generator).to(torch.uint8)
    labels = torch.arange(NUM_IMAGES) % 10
    train = Train(micro_batch_size=BATCH_SIZE)
    batches = Batches.of(train, NUM_IMAGES, world_size=1)
    image = Image(PADDING, flip=True, mean=MEAN, std=STD)
    samples = Samples(images, labels, scale=1 / 255)
    feed = IndexedBatches(samples, image, batches, place.context(Spec(train=train)))
    loader = DataLoader(OneByOne(images, labels), BATCH_SIZE, shuffle=True, drop_last=True)

    def whole_batches() -> Iterable[object]:
        return (
            batch for step in range(batches.steps_per_epoch) for batch in feed.micro_batches(step)
        )

    times = interleaved(
        {
            "per_sample": lambda: timed(lambda: _use_up(loader)),
            "kit": lambda: timed(lambda: _use_up(whole_batches())),
        }
    )
    rates = [f"{NUM_IMAGES / sorted(times[name])[len(times[name]) // 2]:,.0f}" for name in times]
    what = f"images/s of the kit / of a per-sample loader ({rates[1]} / {rates[0]})"
    return [ratio(what, times["per_sample"], times["kit"], Target(">=", 4))]


def _use_up(batches: Iterable[object]) -> None:
    for _ in batches:
        pass
