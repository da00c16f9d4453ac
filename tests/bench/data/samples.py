"""B11: under any stops each sample of an epoch is trained on exactly once."""

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from slurm_job_kit.jobs.contract.spec import Checkpoint, Launch, Spec, Train
from slurm_job_kit.trainer.data.sources import PerSampleSet, Samples
from slurm_job_kit.trainer.process.stop import StopSignal
from slurm_job_kit.trainer.training.run import prepare
from tests.bench.place import Place, StepClock
from tests.bench.rounds import Figure, Target

NUM_SAMPLES, MICRO_BATCH_SIZE, EPOCHS = 64, 2, 2
STOPS = 3
DISTANCE = 4  # steps between two stops of a run

# (step, sample) of all that this rank was trained on in a run.
trained: list[tuple[int, int]] = []


class _Stopper(StepClock):
    """Requests a stop when a given step begins."""

    step = -1

    def __init__(self, stop_at: int | None) -> None:
        super().__init__(0, 0)
        self._stop_at = stop_at
        self.stop = StopSignal()

    def begin(self, step: int) -> None:
        _Stopper.step = step
        self.stop.requested |= step == self._stop_at


class Recorder(nn.Module):
    """Records the samples on which it is trained: the first feature is a sample's number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            trained.extend((_Stopper.step, int(number)) for number in inputs[:, 0])
        scores: torch.Tensor = self.linear(inputs / NUM_SAMPLES)
        return scores


def numbered() -> tuple[Samples, Samples]:
    """Samples in memory whose first feature is their number."""
    inputs = torch.arange(NUM_SAMPLES).float().unsqueeze(1).expand(-1, 2).contiguous()
    samples = Samples(inputs, torch.arange(NUM_SAMPLES) % 2)
    return samples, samples


class OneByOne:
    """So many samples like `numbered`'s, read one at a time."""

    num_classes = 2

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index)), index % 2


def one_by_one() -> tuple[PerSampleSet, PerSampleSet]:
    """Samples that worker processes read ahead."""
    return OneByOne(NUM_SAMPLES), OneByOne(NUM_SAMPLES)


def measure(place: Place) -> list[Figure]:
    """How many samples came twice or not at all, over all ranks, epochs and runs."""
    return [
        _figure(place, "in memory", numbered.__name__, workers=0, every=1),
        _figure(place, "read ahead by a worker", one_by_one.__name__, workers=1, every=6),
    ]


def _figure(place: Place, title: str, dataset: str, workers: int, every: int) -> Figure:
    train = Train(
        model=f"{__name__}:{Recorder.__name__}",
        dataset=f"{__name__}:{dataset}",
        epochs=EPOCHS,
        micro_batch_size=MICRO_BATCH_SIZE,
    )
    launch = Launch(stop_check_steps=1, num_workers=workers)
    spec = Spec(train=train, launch=launch, checkpoint=Checkpoint(interval=None))
    steps_per_epoch = NUM_SAMPLES // (MICRO_BATCH_SIZE * place.distributed.world_size)
    firsts = range(0, EPOCHS * steps_per_epoch - STOPS * DISTANCE, every)
    wrong, num_stops = 0, 0
    for first in firsts:
        num_stops += _stopped_run(place, spec, range(first, first + STOPS * DISTANCE, DISTANCE))
        wrong += num_wrong(_of_all_ranks(place.distributed.world_size), steps_per_epoch)
    what = f"{title}: samples twice or missing, {num_stops} stops in {len(firsts)} runs"
    return Figure(what, wrong, Target("==", 0))


def _stopped_run(place: Place, spec: Spec, stops: range) -> int:
    """Train a run with a stop at each of these steps, from one rank; returns their number."""
    run = place.context(spec).run.dir
    trained.clear()
    statuses = []
    for number, step in enumerate([*stops, None], start=1):
        context = place.context(spec, run, number)
        is_asked = number % place.distributed.world_size == place.distributed.rank
        stopper = _Stopper(step if is_asked else None)
        _Stopper.step = -1
        loop = prepare(context)
        trained[:] = [seen for seen in trained if seen[0] >= 0]  # without the throw-away pass
        statuses.append(place.run(context, loop, stopper, stopper.stop))
    assert statuses[-1] == "completed", statuses
    return statuses.count("stopped")


def _of_all_ranks(world_size: int) -> list[tuple[int, int]]:
    everybody: list[list[tuple[int, int]]] = [[] for _ in range(world_size)]
    dist.all_gather_object(everybody, trained)
    return [seen for own in everybody for seen in own]


def num_wrong(seen: Sequence[tuple[int, int]], steps_per_epoch: int) -> int:
    """How many pairs (step, sample) are missing or too many for one of each sample per epoch."""
    counts = Counter((step // steps_per_epoch, sample) for step, sample in seen)
    once = {(epoch, sample) for epoch in range(EPOCHS) for sample in range(NUM_SAMPLES)}
    return sum(abs(counts[key] - (key in once)) for key in once | set(counts))
