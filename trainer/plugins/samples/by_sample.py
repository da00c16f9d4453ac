"""Reads samples that have a number by batches, in the rank or in worker processes."""

import contextlib
import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from ...contract import Train
from ...data.batches import BatchIndices
from ...data.sources import PerSampleSet, RawBatch, check_labels
from ...errors import CodeError, UserError
from ...process.run_handle import RankContext
from ...seeds import mix, seed_all
from ...user_code import with_key
from .collate import collate


@dataclass
class Reader(Dataset[Any]):
    """Reads a per-sample set by whole batches, with the same bits in a worker and in the rank.

    Python's, NumPy's and torch's generators are seeded for (step, sample) before each read. Errors
    are returned as values: torch would wrap a worker's exception into its own traceback.
    """

    samples: PerSampleSet
    train: Train
    kind: int  # a constant of `trainer.seeds`

    def __getitems__(self, batch: tuple[int, list[int]]) -> RawBatch | UserError | CodeError:
        """Return the samples of (step, indices), or the error; torch's DataLoader calls it, too."""
        step, indices = batch
        try:
            with contextlib.nullcontext() if get_worker_info() else as_in_worker():
                return self._batch([self._sample(step, index) for index in indices], indices)
        except (UserError, CodeError) as error:
            return error
        except Exception as error:
            return with_key(error, "train.dataset", self.train.dataset)

    def at(self, indices: Sequence[int]) -> RawBatch:
        """Return a batch of these samples as in step 0; errors of the data set pass through."""
        with as_in_worker():
            read, samples = dict[int, Any](), []
            for index in indices:
                # A copy of one that comes again: a user's collate may change what it gets.
                sample = copy.deepcopy(read[index]) if index in read else self._sample(0, index)
                read[index] = sample
                samples.append(sample)
            return self._batch(samples, [*indices])

    def _batch(self, samples: list[Any], indices: list[int]) -> RawBatch:
        content = collate(self.train.collate, samples, indices)
        num_classes = getattr(self.samples, "num_classes", None)
        is_pair = isinstance(content, (tuple, list)) and len(content) == 2
        labels: Any = content[1] if is_pair else None
        is_vector = isinstance(labels, torch.Tensor) and labels.ndim == 1 and len(labels) > 0
        if num_classes is not None and is_vector and not labels.is_floating_point():
            lowest, highest = labels.aminmax()
            check_labels(int(lowest), int(highest), num_classes)
        return RawBatch(content, torch.tensor(indices))

    def _sample(self, step: int, index: int) -> Any:
        seed_all(mix(self.kind, self.train.seed, step, index))
        return self.samples[index]


@contextlib.contextmanager
def as_in_worker() -> Iterator[None]:
    """Run the block as a worker would, on one thread, and restore the rank's generators after it.

    The training uses the same generators, for dropout for example.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


class PerSample:
    """Reads a per-sample set by batches; worker processes, if any, read ahead until `close`."""

    index_device = torch.device("cpu")

    def __init__(self, samples: PerSampleSet, context: RankContext, seed_kind: int) -> None:
        """seed_kind: a constant of `trainer.seeds`."""
        self._reader = Reader(samples, context.train, seed_kind)
        self._num_workers = context.run.spec.launch.num_workers
        self._is_pinned = context.device.type == "cuda"
        self._schedule: Iterable[BatchIndices] = ()
        self._ahead: Iterable[Any] | None = None

    def read(self, schedule: Iterable[BatchIndices]) -> Iterator[RawBatch]:
        """Yield the batches of a schedule; the workers stay alive until another one is read."""
        # No variable holds the iterator: a traceback's frame would keep the workers alive.
        for batch in self._batches(schedule):
            if isinstance(batch, Exception):
                raise batch
            yield batch

    def _batches(self, schedule: Iterable[BatchIndices]) -> Iterable[Any]:
        if not self._num_workers:
            return map(self._reader.__getitems__, _IndexLists(schedule))
        if self._ahead is None or schedule is not self._schedule:
            self._schedule = schedule
            from .processes import WorkerLoader  # the import of multiprocessing's parts takes time

            self._ahead = WorkerLoader(
                self._reader,
                self._num_workers,
                batch_sampler=_IndexLists(schedule),
                pin_memory=self._is_pinned,
                persistent_workers=True,
            )
        return self._ahead

    def at(self, indices: Sequence[int]) -> RawBatch:
        return self._reader.at(indices)

    def close(self) -> None:
        """End the workers; the caller must have dropped all iterators of `read` before.

        The garbage collector might free the queues first; then the workers would never get the
        message to stop.
        """
        self._ahead = None


class _IndexLists:
    """A schedule as lists of integers: tensors would go to the workers through shared memory."""

    def __init__(self, schedule: Iterable[BatchIndices]) -> None:
        self._schedule = schedule

    def __iter__(self) -> Iterator[Any]:
        for step, indices in self._schedule:
            yield step, indices.tolist()
