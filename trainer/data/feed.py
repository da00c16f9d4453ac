"""The batches of this rank on its device: training batches and held-out batches."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

from ..contract import BatchSizes, missing
from ..errors import UserError
from ..parts import parts
from ..process.run_handle import RankContext
from ..seeds import HELD_OUT, SAMPLE
from ..user_code import user_code
from .batches import Batches, BatchIndices, TrainingLength
from .sources import Batch, BatchSource, RawBatch, Samples, Source, check_batch
from .to_device import ToDevice, Transform, on_device


class TrainBatches(ABC):
    """The transformed training batches of this rank.

    sizes: how the ranks share the samples of a step. length: of the whole training.
    samples_per_epoch: 0 where it is not known.
    resumes_exactly: whether the samples go on after a resume as without one, as far as is known.
    inexact: otherwise the warning. resumed: the reason that the result then has; {} are the steps.
        Both are empty where the step alone is the position.
    """

    inexact = resumed = ""

    def __init__(
        self,
        sizes: BatchSizes,
        length: TrainingLength,
        transform: Transform | None,
        context: RankContext,
    ) -> None:
        self.sizes, self.length = sizes, length
        self.samples_per_epoch = 0
        self.resumes_exactly = True
        self.to_device = ToDevice(transform, context)
        self._train = context.train

    def num_micro_batches(self, step: int) -> int:
        """Return how many micro batches each rank accumulates in a global step."""
        return self.sizes.grad_accum_steps

    @abstractmethod
    def micro_batches(self, step: int) -> Iterator[Batch]:
        """Yield each micro batch of a global step, on the device."""

    @abstractmethod
    def example(self) -> Batch:
        """Return a batch, transformed as in evaluation; no step of the training misses it.

        The transform also runs once as in training, so that its errors appear before the model's.
        """

    def positions(self) -> list[dict[str, Any]]:
        """Return where the batches are, if the step is not the position; all ranks call it."""
        return []

    def restore(self, positions: list[dict[str, Any]]) -> None:
        """Continue after the `positions` of a save, if there are any."""
        assert not positions

    @abstractmethod
    def close(self) -> None:
        """End the worker processes."""


class IndexedBatches(TrainBatches):
    """The training batches of samples that are looked up; the step alone decides which."""

    def __init__(self, source: Source, transform: Transform | None, context: RankContext) -> None:
        batches = Batches.of(context.train, len(source), context.distributed.world_size)
        super().__init__(batches, TrainingLength.of(context.train, batches), transform, context)
        self.samples_per_epoch = batches.samples_per_epoch
        self.reader = reader_of(source, context, SAMPLE)
        self.batches = batches
        self._rank = context.distributed.rank
        self._read: Iterator[RawBatch] | None = None
        self._next_step = 0

    def num_micro_batches(self, step: int) -> int:
        return self.batches.num_micro_batches(step)

    def micro_batches(self, step: int) -> Iterator[Batch]:
        """Yield each micro batch of a global step; the workers begin again for another step."""
        if self._read is None or step != self._next_step:
            self.close()
            steps = range(step, self.length.total_steps)
            schedule = _schedule(self.batches, self._rank, steps, self.reader.index_device)
            self._read = self.reader.read(schedule)
        self._next_step = step + 1
        for _ in range(self.batches.num_micro_batches(step)):
            batch = next(self._read)
            yield self.to_device(batch, (self._train.seed, step))

    def example(self) -> Batch:
        """Return a batch of copies of the first sample, transformed as in evaluation."""
        with user_code("train.dataset", self._train.dataset):
            raw = self.reader.at([0] * self.sizes.micro_batch_size)
        self.to_device(raw, (self._train.seed, 0))
        return self.to_device(raw, None)

    def close(self) -> None:
        self._read = None
        self.reader.close()


def _schedule(
    batches: Batches, rank: int, steps: range, index_device: torch.device
) -> Iterator[BatchIndices]:
    """Yield the sample indices of one rank's micro batches. Holds no reader: that ends by close."""
    epoch, order = -1, torch.empty(0)
    for step in steps:
        if step // batches.steps_per_epoch != epoch:
            epoch = step // batches.steps_per_epoch
            order = on_device(batches.order(epoch), index_device)
        for indices in batches.micro_batches(order, step, rank):
            yield BatchIndices(step, indices)


class HeldOut:
    """The held-out samples; each belongs to exactly one rank, at any world size."""

    def __init__(self, source: Source, transform: Transform | None, context: RankContext) -> None:
        self.reader = reader_of(source, context, HELD_OUT)
        self.to_device = ToDevice(transform, context)
        self._num_samples, self._dataset = len(source), context.train.dataset
        world_size = context.distributed.world_size
        all_indices = torch.arange(len(source), device=self.reader.index_device)
        own = all_indices[context.distributed.rank :: world_size]
        size = context.train.eval_batch_size
        parts = torch.split(own, size) if len(own) else ()
        self._schedule = [BatchIndices(0, indices) for indices in parts]
        # Rank 0 has the most samples: sample i is of rank i % world_size.
        self.num_rounds = math.ceil(math.ceil(len(source) / world_size) / size)

    def __len__(self) -> int:
        """Return the number of held-out samples of all ranks together."""
        return self._num_samples

    def batches(self) -> Iterator[Batch]:
        """Yield this rank's samples in batches on the device; worker processes stay alive."""
        for batch in self.reader.read(self._schedule):
            yield self.to_device(batch, None)

    def example(self) -> Batch:
        """Return a batch of the first sample of all."""
        with user_code("train.dataset", self._dataset):
            raw = self.reader.at([0])
        return self.to_device(raw, None)

    def close(self) -> None:
        self.reader.close()


class BatchReader(Protocol):
    """Reads one part of a data set by batches. index_device: where it expects sample indices."""

    index_device: torch.device

    def read(self, schedule: Iterable[BatchIndices]) -> Iterator[RawBatch]:
        """Yield the batches of a schedule."""

    def at(self, indices: Sequence[int]) -> RawBatch:
        """Return a batch of these samples, each read once, as in step 0."""

    def close(self) -> None:
        """End worker processes, if there are any."""


class InMemory:
    """Reads a data set that is indexed by whole batches."""

    def __init__(self, source: BatchSource, context: RankContext) -> None:
        self.index_device = context.device
        if getattr(source, "is_on_cpu", False):
            self.index_device = torch.device("cpu")
        self._source = source.to(context.device)

    def read(self, schedule: Iterable[BatchIndices]) -> Iterator[RawBatch]:
        """Yield the batches of a schedule. Raises: UserError for another number of samples."""
        for _, indices in schedule:
            content = self._source.batch(indices)
            if type(self._source) is not Samples:  # a class of the user may have another `batch`
                check_batch(content, len(indices))
            yield RawBatch(content, indices)

    def at(self, indices: Sequence[int]) -> RawBatch:
        wanted = torch.tensor(indices, dtype=torch.int64, device=self.index_device)
        return next(self.read([BatchIndices(0, wanted)]))

    def close(self) -> None:
        """Do nothing: there are no workers."""


def reader_of(source: Source, context: RankContext, seed_kind: int) -> BatchReader:
    """Return what reads one part of a data set. Raises: UserError where that is of a plugin."""
    if isinstance(source, BatchSource):
        return InMemory(source, context)
    name = context.train.dataset
    reader: BatchReader = part_of_samples("by_sample", name)(source, context, seed_kind)
    return reader


def part_of_samples(kind: str, dataset: str) -> Callable[..., Any]:
    """Return what reads samples one by one. Raises: UserError where its plugin is missing."""
    part: Callable[..., Any] | None = parts("samples").get(kind)
    if part is None:
        what = f"train.dataset {dataset} is read sample by sample, which {missing('samples')}"
        hint = "return slurm_job_kit.trainer.api.Samples, or another data set with batch and to"
        raise UserError(what, hint)
    return part
