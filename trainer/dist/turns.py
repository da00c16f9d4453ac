"""Lets one rank of each host do a work first, such as a download, before its other ranks do it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
    beat: what a rank that waits calls again and again: it is not the one that hangs.
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
    if _is_first(attempt_dir.data_begun(host)):
        with _letting_in(done):
            yield
    else:
        while not done.exists():
            beat()
            time.sleep(POLL_S)
        yield
    _meet(context, beat)


def _is_first(begun: Path) -> bool:
    try:
        os.close(os.open(begun, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except OSError as error:
        raise storage_error(error, f"creating {begun}") from error
    return True


@contextlib.contextmanager
def _letting_in(done: Path) -> Iterator[None]:
    """Create `done` at the end of the block, or once the block waits for the other ranks.

    A user's code may have an order of its own: `if rank == 0: download()`, then a barrier.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            if frame and str(frame.f_globals.get("__name__")).startswith("torch.distributed."):
                with contextlib.suppress(OSError):
                    done.touch()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        done.touch()


def _meet(context: RankContext, beat: Callable[[], object]) -> None:
    """Wait until all ranks are here, however long it takes the slowest."""
    store, key = rendezvous_store(), f"data/{context.run.dir.run_id}/{context.run.attempt}"
    num_here = store.add(key, 1)
    while num_here < context.distributed.world_size:
        beat()
        time.sleep(POLL_S)
        num_here = store.add(key, 0)
