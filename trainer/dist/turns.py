"""Lets one rank of each host do a work first, such as a download, before its other ranks do it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import torch.distributed as dist

from slurm_job_kit.trainer.dist.run_handle import RankContext
from slurm_job_kit.trainer.errors import storage_error

POLL_S = 0.05


@contextlib.contextmanager
def first_on_host(context: RankContext, beat: Callable[[], object]) -> Iterator[None]:
    """Run the block on one rank of this host, then on the others; after an error they run it, too.

    By host, not by torchrun's local rank: the nodes of a local run are one host. Two files of the
    attempt order the ranks, because a collective would end a long download after its time limit.
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
    begun, done = attempt_dir.data_begun(host), attempt_dir.data_done(host)
    try:
        os.close(os.open(begun, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        while not done.exists():
            beat()
            time.sleep(POLL_S)
        yield
        return
    except OSError as error:
        raise storage_error(error, f"creating {begun}") from error
    try:
        yield
    finally:
        done.touch()
