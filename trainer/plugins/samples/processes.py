"""Worker processes that read samples ahead; they ignore stop signals and die with their rank."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from ....jobs.base.stop_signals import STOP_SIGNALS, block_stop_signals, unblock_stop_signals
from ...errors import UserError, in_one_line

if TYPE_CHECKING:
    from torch.utils.data.dataloader import _BaseDataLoaderIter


class WorkerLoader(DataLoader[Any]):
    """The batches that `dataset` makes itself, read by worker processes. options: of DataLoader."""

    def __init__(self, dataset: Dataset[Any], num_workers: int, **options: Any) -> None:
        super().__init__(
            dataset,
            num_workers=num_workers,
            collate_fn=_unchanged,
            worker_init_fn=_start_worker,
            multiprocessing_context=_worker_context(),
            # Without its own generator, DataLoader draws from the global one at each start.
            generator=torch.Generator(),
            **options,
        )

    def __iter__(self) -> _BaseDataLoaderIter:
        """Start the workers; raises UserError where the data set cannot be pickled."""
        try:
            return super().__iter__()
        # NotImplementedError: torch's own iterators, which a StatefulDataLoader keeps.
        except (pickle.PicklingError, AttributeError, TypeError, NotImplementedError) as error:
            raise UserError(
                f"train.dataset cannot be sent to a worker process: {in_one_line(error)}: define "
                "its class at the top of a module, leave open files out in __getstate__, or set "
                "launch.num_workers to 0 (a DataLoader has workers of its own)"
            ) from error


def _unchanged(batch: Any) -> Any:
    """Return the batch; the data set has made it already. Pickled, so not a lambda."""
    return batch


def _worker_context() -> BaseContext:
    """Return the context that starts workers: a process without threads forks them.

    Why: see `worker_init`.
    """
    context = multiprocessing.get_context("forkserver")
    # worker_init first: it ignores the stop signals, and the import of torch takes seconds.
    context.set_forkserver_preload(
        [f"{__package__}.worker_init", __name__, f"{__package__}.by_sample"]
    )
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
