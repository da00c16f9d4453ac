"""Reads a per-sample set in worker processes, which ignore stop signals and die with their rank."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pickle
import random
import signal
import threading
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ..contract import STOP_SIGNALS, Train, block_stop_signals, unblock_stop_signals
from ..errors import CodeError, UserError, in_one_line
from ..process.run_handle import RankContext
from ..seeds import mix, seed_all
from ..user_code import with_key
from .collate import Collate
from .sources import Batch, PerSampleSet, check_labels

PREFETCHED_BATCHES = 2  # per worker


class BatchIndices(NamedTuple):
    """The sample indices of one batch of `step`. indices: int64 [n]."""

    step: int
    indices: torch.Tensor


class RawBatch(NamedTuple):
    """One batch before the transform, on the CPU or where its BatchSource is.

    indices: int64 [n], of the samples in their data set.
    """

    content: Batch
    indices: torch.Tensor


class Reader(Dataset[Any]):
    """Reads a per-sample set by whole batches, with the same bits in a worker and in the rank.

    Python's, NumPy's and torch's generators are seeded for (step, sample) before each read. Errors
    are returned as values: torch would wrap a worker's exception into its own traceback.
    """

    def __init__(self, samples: PerSampleSet, train: Train, kind: int) -> None:
        self._samples = samples
        self._name = train.dataset
        self._kind = kind
        self._seed = train.seed
        self._collate = Collate(train.collate)

    def __len__(self) -> int:
        """Return the number of samples of the set."""
        return len(self._samples)

    def __getitems__(self, batch: tuple[int, list[int]]) -> RawBatch | UserError | CodeError:
        """Return the samples of (step, indices), or the error; torch's DataLoader calls this."""
        step, indices = batch
        try:
            return self.read(step, indices)
        except (UserError, CodeError) as error:
            return error
        except Exception as error:
            return with_key(error, "train.dataset", self._name)

    def read(self, step: int, indices: list[int]) -> RawBatch:
        """Return the samples `indices` as read in `step`; errors of the data set pass through."""
        with contextlib.nullcontext() if get_worker_info() else as_in_worker():
            return self._batch([self._sample(step, index) for index in indices], indices)

    def copies(self, n: int) -> RawBatch:
        """Return a batch of `n` copies of the first sample, which is read once."""
        with as_in_worker():
            first = self._sample(0, 0)
            # Each is a copy: a user's collate may change the samples that it gets.
            return self._batch([first, *(copy.deepcopy(first) for _ in range(n - 1))], [0] * n)

    def _batch(self, samples: list[Any], indices: list[int]) -> RawBatch:
        content = self._collate(samples, indices)
        num_classes = getattr(self._samples, "num_classes", None)
        is_pair = isinstance(content, (tuple, list)) and len(content) == 2
        labels: Any = content[1] if is_pair and num_classes is not None else None
        is_vector = isinstance(labels, torch.Tensor) and labels.ndim == 1 and len(labels) > 0
        if is_vector and not labels.is_floating_point():
            lowest, highest = labels.aminmax()
            check_labels(int(lowest), int(highest), num_classes)
        return RawBatch(content, torch.tensor(indices))

    def _sample(self, step: int, index: int) -> Any:
        seed_all(mix(self._kind, self._seed, step, index))
        return self._samples[index]


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
        self._loader: DataLoader[Any] | None = None

    def read(self, schedule: Iterable[BatchIndices]) -> Iterator[RawBatch]:
        """Yield the batches of a schedule; the workers stay alive until another one is read."""
        if self._loader is None or schedule is not self._schedule:
            self._schedule = schedule
            self._loader = data_loader(
                self._reader,
                self._num_workers,
                batch_sampler=_IndexLists(schedule),
                pin_memory=self._is_pinned,
                persistent_workers=self._num_workers > 0,
            )
        # No variable holds DataLoader's iterator: a traceback's frame would keep the workers alive.
        for batch in start_workers(self._loader):
            if isinstance(batch, Exception):
                raise batch
            yield batch

    def first(self, n: int) -> RawBatch:
        """Return a batch of `n` copies of the first sample."""
        return self._reader.copies(n)

    def some(self, n: int) -> RawBatch:
        """Return a batch of the first `n` samples, or of all if there are fewer."""
        return self._reader.read(0, list(range(min(n, len(self._reader)))))

    def close(self) -> None:
        """End the workers; the caller must have dropped all iterators of `read` before.

        The garbage collector might free the queues first; then the workers would never get the
        message to stop.
        """
        self._loader = None


def data_loader(dataset: Dataset[Any], num_workers: int, **options: Any) -> DataLoader[Any]:
    """Return a loader of batches that `dataset` makes itself, with our worker processes."""
    return DataLoader(
        dataset,
        num_workers=num_workers,
        collate_fn=_unchanged,
        worker_init_fn=_start_worker,
        multiprocessing_context=_worker_context() if num_workers else None,
        # Without its own generator, DataLoader draws from the global one at each start.
        generator=torch.Generator(),
        prefetch_factor=PREFETCHED_BATCHES if num_workers else None,
        **options,
    )


def start_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers of a loader; raises UserError where the data set cannot be pickled."""
    try:
        return iter(loader)
    # NotImplementedError: torch's own iterators, which a StatefulDataLoader keeps.
    except (pickle.PicklingError, AttributeError, TypeError, NotImplementedError) as error:
        raise UserError(
            f"train.dataset cannot be sent to a worker process: {in_one_line(error)}: define "
            "its class at the top of a module, or set launch.num_workers to 0 (a DataLoader has "
            "workers of its own)"
        ) from error


class _IndexLists:
    """A schedule as lists of integers: tensors would go to the workers through shared memory."""

    def __init__(self, schedule: Iterable[BatchIndices]) -> None:
        self._schedule = schedule

    def __iter__(self) -> Iterator[Any]:
        for step, indices in self._schedule:
            yield step, indices.tolist()


def _unchanged(batch: Any) -> Any:
    """Return the batch; the data set has made it already. Pickled, so not a lambda."""
    return batch


def _worker_context() -> BaseContext:
    """Return the context that starts workers: a process without threads forks them.

    Why: see `trainer.data.worker_init`.
    """
    context = multiprocessing.get_context("forkserver")
    # worker_init first: it ignores the stop signals, and the import of torch takes seconds.
    context.set_forkserver_preload([f"{__package__}.worker_init", __name__])
    # Some sites signal the whole process tree. A stop signal during Python's start would kill
    # these two processes, so they inherit a mask that blocks it.
    for ensure_running in (resource_tracker.ensure_running, forkserver.ensure_running):
        # Block before each call: the first ensure_running unblocks the signals.
        block_stop_signals()
        ensure_running()
    unblock_stop_signals()
    return context


def _start_worker(worker: int) -> None:
    """Set up a worker process: it ends at a message from its rank, or when its rank dies."""
    # torch has just installed a SIGTERM handler that ends the worker.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_rank, daemon=True).start()
    torch.set_num_threads(1)


def _die_with_rank() -> None:
    """Wait for the rank's end, then kill this worker.

    PR_SET_PDEATHSIG does not serve here: the worker's parent is the fork server, not the rank.
    """
    rank = multiprocessing.parent_process()
    assert rank is not None
    rank.join()
    os.kill(os.getpid(), signal.SIGKILL)
