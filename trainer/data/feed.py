"""The batches of this rank on its device: training batches and held-out batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from ..process.run_handle import RankContext
from ..seeds import HELD_OUT, SAMPLE, mix, seed_all
from ..user_code import is_user_code, user_code
from .batches import Batches, TrainingLength
from .loader import BatchIndices, Loader, RawBatch, Reader
from .sources import (
    Batch,
    BatchSource,
    Source,
    check_batch,
    content_sha256,
)
from .to_device import ToDevice, on_device
from .transforms import Transform

TRIAL_SIZE = 4


class TrainBatches:
    """The transformed training batches of this rank; the step alone decides their samples.

    resumes_exactly: whether samples are the same when they are read again, as far as `example`
        tried TRIAL_SIZE of them: a data set or transform may draw from a generator of its own.
    """

    resumes_exactly = True

    def __init__(
        self,
        source: Source,
        transform: Transform | None,
        batches: Batches,
        length: TrainingLength,
        context: RankContext,
    ) -> None:
        self._reader = _BatchReader(source, context, SAMPLE)
        self._to_device = ToDevice(transform, context)
        self.sizes = self._batches = batches
        self._rank = context.distributed.rank
        self._seed = context.train.seed
        self._device = context.device
        self._is_own = any(map(is_user_code, (context.train.dataset, context.train.transform)))
        self._last_step = length.total_steps
        self._stream: Iterator[RawBatch] | None = None
        self._next_step = 0

    @property
    def batch_size(self) -> int:
        """The number of samples of the largest micro batch."""
        return self._batches.micro_batch_size

    def num_micro_batches(self, step: int) -> int:
        """Return how many micro batches each rank accumulates in a global step."""
        return self._batches.num_micro_batches(step)

    def micro_batches(self, step: int) -> Iterator[Batch]:
        """Yield each micro batch of a global step, on the device.

        Worker processes read ahead, so consecutive steps are quick. Any other step restarts the
        workers at that step.
        """
        if self._stream is None or step != self._next_step:
            self.close()
            steps = range(step, self._last_step)
            schedule = BatchSchedule(self._batches, self._rank, steps, self._reader.index_device)
            self._stream = iter(self._reader.read(schedule))
        self._next_step = step + 1
        for _ in range(self._batches.num_micro_batches(step)):
            batch = next(self._stream)
            yield self._to_device(batch, (self._seed, step))

    def example(self) -> Batch:
        """Return a batch of copies of the first sample, transformed as in evaluation.

        The transform also runs once as in training, so that its errors appear before the model's.
        """
        raw = self._reader.first(self.batch_size)
        self._to_device(raw, (self._seed, 0))
        self.resumes_exactly = not self._is_own or self._is_repeatable()
        return self._to_device(raw, None)

    def _is_repeatable(self) -> bool:
        """Return whether a few samples have the same values when they are read again."""
        samples = set()
        with contextlib.suppress(Exception):  # the training meets it, with the right step
            for _ in range(2):
                seed_all(mix(SAMPLE, self._seed), self._device)
                raw = self._reader.some(TRIAL_SIZE)
                samples.add(content_sha256(self._to_device(raw, (self._seed, 0))))
        return len(samples) < 2

    def positions(self) -> list[dict[str, object]]:
        """Return nothing: the step is the position."""
        return []

    def restore(self, positions: list[dict[str, object]]) -> None:
        """Do nothing: the step is the position."""

    def close(self) -> None:
        """End the worker processes."""
        self._stream = None
        self._reader.close()


class HeldOutBatch(NamedTuple):
    """A batch of held-out samples on the device, and their number."""

    content: Batch
    num_samples: int


class HeldOut:
    """The held-out samples; each belongs to exactly one rank, at any world size."""

    def __init__(self, source: Source, transform: Transform | None, context: RankContext) -> None:
        self._reader = _BatchReader(source, context, HELD_OUT)
        self._to_device = ToDevice(transform, context)
        self._num_samples = len(source)
        world_size = context.distributed.world_size
        all_indices = torch.arange(len(source), device=self._reader.index_device)
        own = all_indices[context.distributed.rank :: world_size]
        size = context.train.eval_batch_size
        parts = torch.split(own, size) if len(own) else ()
        self._schedule = [BatchIndices(0, indices) for indices in parts]
        self._batches: Iterable[RawBatch] | None = None
        # Rank 0 has the most samples: sample i is of rank i % world_size.
        self.num_rounds = math.ceil(math.ceil(len(source) / world_size) / size)

    def __len__(self) -> int:
        """Return the number of held-out samples of all ranks together."""
        return self._num_samples

    def batches(self) -> Iterator[HeldOutBatch]:
        """Yield this rank's samples in batches, on the device.

        The worker processes stay alive between two calls.
        """
        if self._batches is None:
            self._batches = self._reader.read(self._schedule)
        for batch in self._batches:
            yield HeldOutBatch(self._to_device(batch, None), len(batch.indices))

    def example(self) -> Batch:
        """Return a batch of the first sample of all."""
        return self._to_device(self._reader.first(1), None)

    def close(self) -> None:
        """End the worker processes."""
        self._batches = None
        self._reader.close()


class BatchSchedule:
    """The sample indices of one rank's micro batches in `steps`, computed when iterated over."""

    def __init__(
        self, batches: Batches, rank: int, steps: range, index_device: torch.device
    ) -> None:
        self._batches = batches
        self._rank = rank
        self._steps = steps
        self._index_device = index_device

    def __iter__(self) -> Iterator[BatchIndices]:
        steps_per_epoch = self._batches.steps_per_epoch
        epoch, order = -1, torch.empty(0)
        for step in self._steps:
            if step // steps_per_epoch != epoch:
                epoch = step // steps_per_epoch
                order = on_device(self._batches.order(epoch), self._index_device)
            for indices in self._batches.micro_batches(order, step, self._rank):
                yield BatchIndices(step, indices)


class _BatchReader:
    """Reads one part of a data set by batches.

    index_device: where the source expects sample indices. The GPU for a BatchSource on a GPU,
    else the CPU.
    """

    def __init__(self, source: Source, context: RankContext, seed_kind: int) -> None:
        self._dataset = context.train.dataset
        self._is_pinned = context.device.type == "cuda"
        self._num_workers = context.run.spec.launch.num_workers
        self._reader: Reader | None = None
        self._loader: Loader | None = None
        self._source: BatchSource | None = None
        self.index_device = torch.device("cpu")
        if isinstance(source, BatchSource):
            if not getattr(source, "is_on_cpu", False):
                self.index_device = context.device
            self._source = source.to(context.device)
            if self._num_workers > 0 and seed_kind == SAMPLE:
                context.distributed.log(
                    f"launch.num_workers is not used: {context.train.dataset} is indexed by whole "
                    "batches"
                )
        else:
            self._reader = Reader(source, context.train, seed_kind)

    def read(self, schedule: Iterable[BatchIndices]) -> Iterable[RawBatch]:
        """Return the batches of a schedule; worker processes, if any, read them until `close`."""
        if self._source is not None:
            return _InMemory(self._source, schedule)
        assert self._reader is not None
        self._loader = Loader(self._reader, schedule, self._num_workers, self._is_pinned)
        return self._loader

    def first(self, n: int) -> RawBatch:
        """Return a batch of `n` copies of the first sample."""
        with user_code("train.dataset", self._dataset):
            if self._source is not None:
                indices = torch.zeros(n, dtype=torch.int64, device=self.index_device)
                return _batch(self._source, indices)
            assert self._reader is not None
            return self._reader.copies(n)

    def some(self, n: int) -> RawBatch:
        """Return a batch of the first `n` samples, or of all if there are fewer."""
        if self._source is not None:
            end = min(n, len(self._source))
            return _batch(self._source, torch.arange(end, device=self.index_device))
        assert self._reader is not None
        return self._reader.read(0, list(range(min(n, len(self._reader)))))

    def close(self) -> None:
        """End the worker processes."""
        if self._loader is not None:
            self._loader.close()


class _InMemory:
    """The batches of a schedule from a BatchSource, without workers and without reading ahead."""

    def __init__(self, source: BatchSource, schedule: Iterable[BatchIndices]) -> None:
        self._source = source
        self._schedule = schedule

    def __iter__(self) -> Iterator[RawBatch]:
        for _, indices in self._schedule:
            yield _batch(self._source, indices)


def _batch(source: BatchSource, indices: torch.Tensor) -> RawBatch:
    """Return the samples `indices`, int64 [n]; raises UserError for another number of samples."""
    content = source.batch(indices)
    check_batch(content, len(indices))
    return RawBatch(content, indices)
