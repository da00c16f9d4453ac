"""B10: a resume late in an epoch by torchdata's StatefulDataLoader, beside the kit's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch.utils.data import Dataset

from slurm_job_kit.jobs.spec import Spec, Train
from slurm_job_kit.trainer.data.batches import Batches, TrainingLength
from slurm_job_kit.trainer.data.feed import TrainBatches
from tests.bench.place import Place
from tests.bench.rounds import Figure, interleaved, milliseconds, ratio, timed

NUM_SAMPLES, BATCH_SIZE = 200_000, 32
EARLY, LATE = 0.01, 0.8


class OneByOne(Dataset[tuple[torch.Tensor, int]]):
    """Samples that cost nothing to read."""

    num_classes = 2

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index % 2


def measure(place: Place) -> list[Figure]:
    """Seconds until the first batch of a resume, in the rank's own process."""
    train = Train(micro_batch_size=BATCH_SIZE)
    context, data = place.context(Spec(train=train)), OneByOne()
    batches = Batches.of(train, NUM_SAMPLES, world_size=1)
    length = TrainingLength.of(train, batches)
    states = {share: _state_at(share, data) for share in (EARLY, LATE)}

    def kit(share: float) -> float:
        feed = TrainBatches(data, None, batches, length, context)
        step = int(share * batches.steps_per_epoch)
        took_s = timed(lambda: next(feed.micro_batches(step)))
        feed.close()
        return took_s

    def stateful(share: float) -> float:
        loader = _loader(data)
        loader.load_state_dict(states[share])
        return timed(lambda: next(iter(loader)))

    sides: dict[str, Callable[[float], float]] = {"kit": kit, "stateful": stateful}
    times = interleaved(
        {
            f"{name} {share}": partial(side, share)
            for name, side in sides.items()
            for share in states
        }
    )
    title = {"kit": "the kit", "stateful": f"StatefulDataLoader {version('torchdata')}"}

    def figure(name: str) -> Figure:
        late, early = times[f"{name} {LATE}"], times[f"{name} {EARLY}"]
        what = f"{title[name]}, {NUM_SAMPLES:,} samples: at 80 % of an epoch / at 1 %"
        return ratio(f"{what} ({milliseconds(late)} / {milliseconds(early)})", late, early)

    return [figure("kit"), figure("stateful")]


def _loader(data: OneByOne) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data, batch_size=BATCH_SIZE, shuffle=True)


def _state_at(share: float, data: OneByOne) -> dict[str, Any]:
    """The loader's state after a share of an epoch."""
    loader = _loader(data)
    for _ in itertools.islice(loader, int(share * len(loader))):
        pass
    state: dict[str, Any] = loader.state_dict()
    return state
