"""Lets one rank of each host do a work first, such as a download, before its other ranks do it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import torch.distributed as dist

from slurm_job_kit.trainer.dist.context import rendezvous_store
from slurm_job_kit.trainer.dist.run_handle import RankContext
from slurm_job_kit.trainer.errors import storage_error

POLL_S = 0.5


@contextlib.contextmanager
def first_on_host(context: RankContext, beat: Callable[[], object]) -> Iterator[None]:
    """Run the block on one rank of this host, then on the others; at the end all ranks meet.

    By host, not by torchrun's local rank: the nodes of a local run are one host. Two files of the
    attempt order the ranks, and the store of the rendezvous lets them meet, because a collective
    would end a long download after its time limit. The others do not wait for a rank whose block
    waits for them in a collective, or has failed.
    beat: what a rank that waits calls as long as the next rank is alive, see `_Ring`.
    Raises: StorageError.
    """
    attempt_dir = context.run.dir.attempt(context.run.attempt)
    is_alone = not dist.is_initialized() or context.distributed.world_size == 1
    # In a launch by hand a machine may lack the run directory.
    if is_alone or not attempt_dir.path.is_dir():
        yield
        return
    host = context.distributed.host
    done = attempt_dir.data_done(host)
    is_first = _is_first(attempt_dir.data_begun(host))
    with _Ring(context, beat, done if is_first else None) as ring:
        if is_first:
            try:
                yield
            finally:
                done.touch()
        else:
            while not done.exists():
                ring.wait()
            yield
        ring.meet()


def _is_first(begun: Path) -> bool:
    try:
        os.close(os.open(begun, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except OSError as error:
        raise storage_error(error, f"creating {begun}") from error
    return True


class _Ring:
    """Each rank counts in the rendezvous's store while its threads run, and watches the next rank.

    A rank that waits is not the one that hangs as long as the next rank counts. If that one was
    stopped, or is stuck in C code that holds the GIL, this rank beats no more, and its watchdog
    reports the hang after the limit of the phase. A rank that works too long ends by its own.
    """

    def __init__(
        self, context: RankContext, beat: Callable[[], object], let_in: Path | None
    ) -> None:
        """let_in: the file to create once the block waits for the other ranks.

        A user's code may have an order of its own: `if rank == 0: download()`, then a barrier.
        """
        rank, self._world_size = context.distributed.rank, context.distributed.world_size
        self._store, self._beat, self._let_in = rendezvous_store(), beat, let_in
        self._key = f"data/{context.run.dir.run_id}/{context.run.attempt}"
        self._own, self._next = (
            f"{self._key}/{number % self._world_size}" for number in (rank, rank + 1)
        )
        self._seen = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(POLL_S)  # the store may be out of reach

    def _count(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store has ended, and with it the attempt
            while not self._is_over.wait(POLL_S):
                self._store.add(self._own, 1)
                frame = sys._current_frames().get(threading.main_thread().ident or 0)
                module = str(frame.f_globals.get("__name__")) if frame else ""
                if self._let_in and module.startswith("torch.distributed."):
                    with contextlib.suppress(OSError):
                        self._let_in.touch()

    def wait(self) -> None:
        """Wait for a moment; beat if the next rank has counted since the last call."""
        time.sleep(POLL_S)
        counted = self._store.add(self._next, 0)
        if counted != self._seen:
            self._seen = counted
            self._beat()

    def meet(self) -> None:
        """Wait until all ranks are here, however long it takes the slowest."""
        num_here = self._store.add(self._key, 1)
        while num_here < self._world_size:
            self.wait()
            num_here = self._store.add(self._key, 0)
