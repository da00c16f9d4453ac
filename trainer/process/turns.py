"""Lets one rank of each host do a work first, such as a download, before its other ranks do it."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import torch
import torch.distributed as dist

from .context import gather, rendezvous_store
from .run_handle import RankContext

POLL_S = 0.5


@contextlib.contextmanager
def first_on_host(context: RankContext, beat: Callable[[], object]) -> Iterator[None]:
    """Run the block on the first rank of this host, then on the others; at the end all ranks meet.

    By host, not by torchrun's local rank: the nodes of a local run are one host. The lowest rank is
    the first: where a user's code has an order of its own, `local_rank` 0 prepares the files.
    The ranks wait by the store of the rendezvous: a collective would end a long download after its
    time limit. The others do not wait for a first rank that waits for them, or has failed.
    beat: what a rank that waits calls as long as the next rank is alive, see `_Ring`.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        yield
        return
    first = _first_of_host(context)
    with _Ring(context, beat, first) as ring:
        if context.distributed.rank == first:
            try:
                yield
            finally:
                ring.let_in()
        else:
            ring.wait_for_first()
            yield
        ring.meet()


def _first_of_host(context: RankContext) -> int:
    """Return the lowest rank on this rank's host. All ranks call it."""
    digest = hashlib.sha256(context.distributed.host.encode()).digest()
    own = int.from_bytes(digest[:7], "big")
    hosts = gather(torch.tensor(own, device=context.device))
    return [int(host) for host in hosts].index(own)


class _Ring:
    """Each rank counts in the rendezvous's store while its threads run, and watches the next rank.

    A rank that waits is not the one that hangs as long as the next rank counts. If that one was
    stopped, or is stuck in C code that holds the GIL, this rank beats no more, and its watchdog
    reports the hang after the limit of the phase. A rank that works too long ends by its own.
    """

    def __init__(self, context: RankContext, beat: Callable[[], object], first: int) -> None:
        rank, self._world_size = context.distributed.rank, context.distributed.world_size
        self._store, self._beat, self._is_first = rendezvous_store(), beat, rank == first
        self._here = f"data/{context.run.dir.run_id}/{context.run.attempt}"
        self._begun = f"{self._here}/first/{first}"
        self._own, self._next = (
            f"{self._here}/{number % self._world_size}" for number in (rank, rank + 1)
        )
        self._seen = 0
        self._num_collectives = _num_collectives()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # the others go on, to a collective that ends as this rank does
            with contextlib.suppress(RuntimeError):
                self._store.add(self._here, self._world_size)
        self._is_over.set()
        self._thread.join(POLL_S)  # the store may be out of reach

    def _count(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store has ended, and with it the attempt
            # The main thread keeps the store's connection to itself while it waits in new_group().
            store = self._store
            if self._is_first:
                store = store.clone()  # type: ignore[attr-defined] # not in torch's stubs
            while not self._is_over.wait(POLL_S):
                store.add(self._own, 1)
                if self._is_first and self._waits_for_others():
                    store.add(self._begun, 1)

    def _waits_for_others(self) -> bool:
        """Return whether the block is in a collective: on GPUs only their number may show it."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        module = str(frame.f_globals.get("__name__")) if frame else ""
        is_in_torch = module.startswith("torch.distributed.")
        return is_in_torch or _num_collectives() != self._num_collectives

    def let_in(self) -> None:
        """Let the other ranks of this host begin."""
        with contextlib.suppress(RuntimeError):  # an error of the block comes first
            self._store.add(self._begun, 1)

    def wait_for_first(self) -> None:
        """Wait until the first rank of this host lets the others in."""
        while not self._store.add(self._begun, 0):
            self._wait()

    def meet(self) -> None:
        """Wait until all ranks are here, however long it takes the slowest, or one has failed."""
        num_here = self._store.add(self._here, 1)
        while num_here < self._world_size:
            self._wait()
            num_here = self._store.add(self._here, 0)

    def _wait(self) -> None:
        """Wait for a moment; beat if the next rank has counted since the last call."""
        time.sleep(POLL_S)
        counted = self._store.add(self._next, 0)
        if counted != self._seen:
            self._seen = counted
            self._beat()


def _num_collectives() -> int:
    """Return how many collectives this rank has begun with all others."""
    assert dist.group.WORLD is not None  # only mypy does not know
    number: int = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[attr-defined]
    return number
