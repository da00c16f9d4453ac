"""Reading a per-sample set: worker processes that outlive signals but not their rank."""

from __future__ import annotations

import contextlib
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

from trainer.data.batches import PerSampleSet, check_labels
from trainer.errors import CodeError, UserError, in_one_line
from trainer.seeds import mix
from trainer.stop import STOP_SIGNALS
from trainer.user_code import with_key

PREFETCHED_BATCHES = 2  # of each worker


class Cut(NamedTuple):
    """Which samples make a batch of `step`. indices: int64 [n]."""

    step: int
    indices: torch.Tensor


class Rows(NamedTuple):
    """The samples of a cut. inputs: [n, ...]; labels and indices: int64 [n]."""

    inputs: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


class Reader(Dataset[Any]):
    """A per-sample set, read by whole cuts, the same bits in whatever process.

    Each sample is read with Python's, NumPy's and torch's generators seeded for it and the step.
    Errors travel as values: as an exception a worker would wrap one into its traceback.
    """

    def __init__(self, samples: PerSampleSet, name: str, kind: int, seed: int) -> None:
        """name: what the spec calls the set. kind: of the seeds, see `trainer.seeds`."""
        self._samples = samples
        self._name = name
        self._kind = kind
        self._seed = seed

    def __getitems__(self, cut: tuple[int, list[int]]) -> Rows | UserError | CodeError:
        step, indices = cut
        try:
            return self.read(step, indices)
        except UserError as error:
            return error
        except Exception as error:
            return with_key(error, "train.dataset", self._name)

    def read(self, step: int, indices: list[int]) -> Rows:
        """The samples with these indices as they are in `step`; raises what the set raises."""
        with contextlib.nullcontext() if get_worker_info() else _undisturbed():
            rows = _stacked([self._sample(step, index) for index in indices], indices)
        lowest, highest = rows.labels.aminmax()
        check_labels(int(lowest), int(highest), self._samples.num_classes)
        return rows

    def _sample(self, step: int, index: int) -> tuple[torch.Tensor, int]:
        seed = mix(self._kind, self._seed, step, index)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        return self._samples[index]


def _stacked(items: list[tuple[torch.Tensor, int]], indices: list[int]) -> Rows:
    for sample, index in zip(items, indices, strict=True):
        if not (isinstance(sample, (tuple, list)) and len(sample) == 2):
            raise UserError(
                f"train.dataset gives sample {index} as a {type(sample).__name__}: make it a pair "
                "(input, label)"
            )
    first = items[0][0]
    for (item, _), index in zip(items, indices, strict=True):
        if not isinstance(item, torch.Tensor):
            raise UserError(
                f"train.dataset gives sample {index} as a {type(item).__name__}: make it a tensor"
            )
        if item.dtype not in (torch.uint8, torch.float32):
            raise UserError(
                f"train.dataset gives sample {index} as {item.dtype}: make it uint8 or float32"
            )
        if (item.shape, item.dtype) != (first.shape, first.dtype):
            raise UserError(
                f"train.dataset gives sample {indices[0]} as {first.dtype} {tuple(first.shape)}, "
                f"but sample {index} as {item.dtype} {tuple(item.shape)}: make them alike"
            )
    labels = torch.tensor([int(label) for _, label in items])
    return Rows(torch.stack([item for item, _ in items]), labels, torch.tensor(indices))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Read in the rank's process as a worker would: on one thread, dropout's generators kept."""
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


class Loader:
    """Batches of a per-sample set, read ahead by `num_workers` processes; 0 reads in this one."""

    def __init__(self, reader: Reader, plan: Iterable[Cut], num_workers: int, pin: bool) -> None:
        # A generator of its own, for otherwise it draws from the global one at each start.
        self._loader: DataLoader[Any] | None = DataLoader(
            reader,
            batch_sampler=_Indices(plan),
            num_workers=num_workers,
            collate_fn=_as_it_is,
            pin_memory=pin,
            worker_init_fn=_start_worker,
            multiprocessing_context=_context() if num_workers else None,
            generator=torch.Generator(),
            prefetch_factor=PREFETCHED_BATCHES if num_workers else None,
            persistent_workers=num_workers > 0,
        )

    def __iter__(self) -> Iterator[Rows]:
        # No variable holds it: the frame of a traceback would keep the workers alive.
        for rows in self._started():
            if isinstance(rows, Exception):
                raise rows
            yield rows

    def _started(self) -> Iterator[Any]:
        assert self._loader is not None
        try:
            return iter(self._loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"train.dataset cannot be sent to a worker process: {in_one_line(error)}: define "
                "its class at the top of a module, or set launch.workers_per_rank to 0"
            ) from error

    def close(self) -> None:
        """End the workers; no iterator of this may be held any more.

        Left to the garbage collector, their queues may go first: then the word never reaches them.
        """
        self._loader = None


class _Indices:
    """A plan as plain lists: tensors would reach the workers by way of shared memory."""

    def __init__(self, plan: Iterable[Cut]) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[Any]:
        for step, indices in self._plan:
            yield step, indices.tolist()


def _as_it_is(rows: Any) -> Any:
    return rows


def _context() -> BaseContext:
    """How workers are started: forked by a process that has no threads, see `worker_server`."""
    context = multiprocessing.get_context("forkserver")
    # The signals first: the import of torch takes seconds.
    context.set_forkserver_preload(["trainer.data.worker_init", "trainer.data.loader"])
    # Where Slurm signals the whole tree, these two would die of a stop while Python starts.
    for ensure_running in (resource_tracker.ensure_running, forkserver.ensure_running):
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # each time: the first undoes it
        ensure_running()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return context


def _start_worker(worker: int) -> None:
    """Set up a worker: only its rank ends it, by a word or by dying."""
    for number in STOP_SIGNALS:  # torch has just installed a handler that dies of SIGTERM
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_rank, daemon=True).start()
    torch.set_num_threads(1)


def _die_with_rank() -> None:
    """The kernel's signal at a parent's death is no help: the parent is the server."""
    rank = multiprocessing.parent_process()
    assert rank is not None
    rank.join()
    os.kill(os.getpid(), signal.SIGKILL)
