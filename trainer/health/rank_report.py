"""Every rank says how it is, and within a bounded time all know what each of them said.

By keys in torchrun's store and not by a collective, which waits for ever for a rank that is
silent: here that one is named. It costs each rank a handful of round trips to the store, in a
world of any size.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from trainer.dist.context import DistributedContext

# A rank that is silent for so long, though it met the others a moment ago, is named. In seconds
# that this process lived through: a whole job may be suspended.
SILENT_S = 5.0
MAX_POLL_S = 0.1
MAX_TICK_S = 0.5


@dataclass(frozen=True)
class Roll:
    """What all ranks know after a call, the same on each of them.

    problems: by rank, of those that told of one, (host, what it is).
    silent: the ranks that did not answer in time.
    """

    problems: dict[int, tuple[str, str]] = field(default_factory=dict)
    silent: tuple[int, ...] = ()

    @property
    def bad(self) -> list[int]:
        """The ranks with which something is wrong."""
        return sorted({*self.problems, *self.silent})

    def to_json(self) -> str:
        return json.dumps([{str(k): v for k, v in self.problems.items()}, self.silent])

    @classmethod
    def from_json(cls, text: str | bytes) -> Roll:
        problems, silent = json.loads(text)
        by_rank = {int(rank): (host, problem) for rank, (host, problem) in problems.items()}
        return cls(by_rank, tuple(silent))


def are_few(ranks: list[int], context: DistributedContext) -> bool:
    """Whether these ranks are of so few nodes that it is the nodes: half of them at most."""
    nodes = {rank // context.local_world_size for rank in ranks}
    num_nodes = context.world_size // context.local_world_size
    return num_nodes == 1 or 2 * len(nodes) <= num_nodes


def meeting_store() -> Store:
    """The store at which this attempt's ranks met, by the connection that they met with.

    torch looks up the name of an address that it connects to: with a name server that does not
    answer a new connection takes as long as a rank may be silent. Source: torchrun, "Environment
    Variables"; its agents' store outlives the ranks.
    """
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"kit/preflight/{os.environ.get('KIT_ATTEMPT')}/{again}"
    return PrefixStore(prefix, _get_default_store())


class RollCall:
    """One call of all ranks, `name` tells it from others.

    `may_accuse` is asked before silence is told of: one that is asked to stop itself does not.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        context: DistributedContext,
        may_accuse: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = PrefixStore(name, store)
        self._context = context
        self._may_accuse = may_accuse
        self.is_accuser = False  # it is this rank that tells of the silent ones

    def hold(self, problem: str, look: Callable[[], None]) -> Roll:
        """What all ranks said, this one `problem` or "". `look` is called while it waits."""
        self._answer(problem)
        waited_s, poll_s, last = 0.0, 0.001, time.monotonic()
        while not self._store.check(["roll"]):
            look()
            if waited_s > SILENT_S:
                self._accuse()
            time.sleep(poll_s)
            now = time.monotonic()
            waited_s += min(now - last, MAX_TICK_S)
            poll_s, last = min(2 * poll_s, MAX_POLL_S), now
        return Roll.from_json(self._store.get("roll"))

    def _answer(self, problem: str) -> None:
        if problem:  # before the answer: who has that publishes the roll
            self._store.add("problems", 1)
        self._store.set(self._key(self._context.rank), json.dumps([self._context.host, problem]))
        if self._store.add("answers", 1) == self._context.world_size:
            self._publish(range(self._context.world_size), ())

    def _accuse(self) -> None:
        """Tell of who is silent, unless that are most: then something is slow for all of them."""
        if not self._may_accuse():
            return
        self.is_accuser = self.is_accuser or self._store.add("accusers", 1) == 1
        if self.is_accuser:
            ranks = range(self._context.world_size)
            silent = [rank for rank in ranks if not self._store.check([self._key(rank)])]
            if silent and are_few(silent, self._context):
                self._publish(set(ranks) - {*silent}, silent)

    def _publish(self, present: range | set[int], silent: list[int] | tuple[()]) -> None:
        """Give the roll to all; the first one to do so has the word."""
        problems = {}
        if self._store.add("problems", 0):
            ranks = sorted(present)
            answers = self._store.multi_get([self._key(rank) for rank in ranks])
            told = ((rank, json.loads(answer)) for rank, answer in zip(ranks, answers, strict=True))
            problems = {rank: (host, problem) for rank, (host, problem) in told if problem}
        self._store.compare_set("roll", "", Roll(problems, tuple(silent)).to_json())

    @staticmethod
    def _key(rank: int) -> str:
        return f"rank-{rank}"
