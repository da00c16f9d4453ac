"""Every rank reports whether it has a problem; within a bounded time all ranks have all reports.

The reports are keys in torchrun's store. A collective would wait for ever for a rank that does not
answer; the summary of these reports names it. Each rank needs a handful of round trips to the
store, at any world size.

The watchdog exchanges the states of ranks, too, but through files. Its limits are minutes, and the
store may have ended with the node that hangs. This exchange must take seconds, and comes before
the run directory is known on every node.
"""

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch.distributed import Store

from ...process.context import DistributedContext

# After so many seconds without a report the summary names a rank: it was in the rendezvous a moment
# ago. Counted in ticks, so that time spent suspended does not count.
NO_ANSWER_AFTER_S = 5.0
NO_ANSWER = f"it did not answer within {NO_ANSWER_AFTER_S:.0f} s"
MAX_TICK_S = 0.5

# (host, problem) of each rank that reported a problem, the same on each rank. The host is empty for
# a rank that did not report in time.
Summary = dict[int, tuple[str, str]]


def are_few(ranks: Collection[int], context: DistributedContext) -> bool:
    """Return whether these ranks are on half of the nodes at most, so that the nodes are at fault.

    With one node there is no other to compare with: then it is at fault.
    """
    nodes = {rank // context.local_world_size for rank in ranks}
    num_nodes = context.world_size // context.local_world_size
    return num_nodes == 1 or 2 * len(nodes) <= num_nodes


@dataclass
class RankReport:
    """One report of all ranks; `store` has its keys alone.

    `may_report` is called before this rank reports that others did not answer. A rank that was
    asked to stop reports none, because the others may have stopped before.
    no_answer_after_s: until then no rank counts as one that did not answer.
    """

    store: Store
    context: DistributedContext
    may_report: Callable[[], bool] = lambda: True
    no_answer_after_s: float = NO_ANSWER_AFTER_S
    is_reporter: bool = False  # this rank reports those that do not answer

    def collect(self, problem: str, poll: Callable[[], None]) -> Summary:
        """Report `problem` ("" for none) and return the summary; calls `poll` while it waits."""
        # Count the problem before answering: the last rank to answer publishes the summary and
        # must see it.
        if problem:
            self.store.add("problems", 1)
        self.store.set(str(self.context.rank), json.dumps([self.context.host, problem]))
        if self.store.add("answers", 1) == self.context.world_size:
            self._publish([])
        waited_s, poll_s, last = 0.0, 0.001, time.monotonic()
        while not self.store.check(["summary"]):
            poll()
            if waited_s > self.no_answer_after_s and (summary := self._report_unresponsive_ranks()):
                # It alone writes their records. The store may be gone in a moment: the others end
                # as soon as they see the summary, and with rank 0's node the store does.
                return summary
            time.sleep(poll_s)
            now = time.monotonic()
            waited_s += min(now - last, MAX_TICK_S)
            poll_s, last = min(2 * poll_s, 0.1), now
        return _parsed(self.store.get("summary"))

    def _report_unresponsive_ranks(self) -> Summary | None:
        """Publish which ranks did not report, unless most did not: then all ranks are slow.

        Returns the summary if this rank has published one.
        """
        if not self.may_report():
            return None
        self.is_reporter = self.is_reporter or self.store.add("reporters", 1) == 1
        if self.is_reporter:
            ranks = range(self.context.world_size)
            unresponsive = [rank for rank in ranks if not self.store.check([str(rank)])]
            if unresponsive and are_few(unresponsive, self.context):
                return self._publish(unresponsive)
        return None

    def _publish(self, unresponsive: list[int]) -> Summary:
        """Publish the summary; the first writer wins. Returns the published one."""
        summary: Summary = dict.fromkeys(unresponsive, ("", NO_ANSWER))
        if self.store.add("problems", 0):
            ranks = sorted({*range(self.context.world_size)} - {*unresponsive})
            answers = map(json.loads, self.store.multi_get([str(rank) for rank in ranks]))
            reports = zip(ranks, answers, strict=True)
            summary |= {rank: (host, problem) for rank, (host, problem) in reports if problem}
        return _parsed(self.store.compare_set("summary", "", json.dumps(summary)))


def _parsed(text: bytes) -> Summary:
    found = [(int(rank), *answer) for rank, answer in json.loads(text).items()]
    return {rank: (host, problem) for rank, host, problem in sorted(found)}
