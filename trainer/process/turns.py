"""Lets local rank 0 of each node do a work first, such as a download, before its other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from .context import rendezvous_store
from .run_handle import RankContext

LIMIT_S = 1800.0  # as for each phase of the start-up (`health.phases`)


@contextlib.contextmanager
def first_on_node(context: RankContext) -> Iterator[None]:
    """Run the block on local rank 0 of this node, then on its other ranks.

    They wait by the store of the rendezvous, because a collective would end a long download after
    its time limit. Where the block fails on local rank 0, the others begin and fail, too.
    """
    place, run = context.distributed, context.run
    if not dist.is_initialized() or place.world_size == 1:
        yield
        return
    store, key = rendezvous_store(), f"data/{run.dir.run_id}/{run.attempt}/{place.group_rank}"
    if place.local_rank == 0:
        try:
            yield
        finally:
            store.set(key, "done")
    else:
        store.wait([key], timedelta(seconds=LIMIT_S))
        yield
