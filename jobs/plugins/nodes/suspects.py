"""Which nodes the next attempts of a run do without, from what its attempts say against nodes.

After a crash or a hang of one node it is left out if the attempt before has the same reason. A
failure that follows the run onto another node, before a new checkpoint, is the run's: no node is
left out for it. Pure functions; their table is tests/plugins/nodes/test_suspects.py.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ...contract.kinds import Kind
from ...contract.records.ended import LeftOut
from .records import Past, Reason


def confirmed(
    reasons: Iterable[Reason],
    attempts: Sequence[Past],
    since: float,
    can_do_without: Callable[[str], bool],
) -> tuple[Reason, ...]:
    """Return the reasons; one that the attempt before has, too, leaves its node out.

    attempts: before this one. Where crashes move from node to node, no node is at fault; nor where
    an attempt between was well, or a user has resumed the run since. since: as in `left_out`.
    can_do_without: whether there are enough nodes beside a node.
    """
    last = [each for each in attempts[-1:] if not each.is_end and each.time >= since]
    before = [(reason.node, reason.kind) for each in last for reason in each.reasons]
    return tuple(
        replace(each, is_left_out=True, text=f"{each.text} (the second time in a row)")
        if not each.is_left_out and (each.node, each.kind) in before and can_do_without(each.node)
        else each
        for each in reasons
    )


def _followed(now: Past, attempts: Sequence[Past]) -> Iterator[tuple[Reason, Reason]]:
    """Yield each reason that an attempt before has against another node, and the earlier one.

    attempts: before this one. Those before a resume, or before a new checkpoint, do not count.
    """
    for before in () if now.has_progress else reversed(attempts):
        if before.is_end:
            return
        for reason, earlier in itertools.product(now.reasons, before.reasons):
            if reason.failure == earlier.failure != "" and reason.node != earlier.node:
                yield reason, earlier
        if before.has_progress:
            return


def followed(now: Past, attempts: Sequence[Past]) -> str | None:
    """Return the sentence about a failure that followed the run onto another node, else None."""
    what = "the same failure on {} and {}: the run is at fault, no node: {}"
    found = _followed(now, attempts)
    return next((what.format(old.node, new.node, new.text) for new, old in found), None)


def left_out(attempts: Sequence[Past], since: float) -> dict[str, LeftOut]:
    """Return the nodes that a run does without, the newest first, each with its newest reason.

    Without those that failed or are drained: Slurm itself gives such a node to no job until it is
    well, and a cut network may have many of them. since: seconds since the epoch; older reasons do
    not count.
    """
    of_run = {
        reason.failure
        for number, each in enumerate(attempts)
        for reason, _ in _followed(each, attempts[:number])
    }
    nodes: dict[str, LeftOut] = {}
    for each in reversed(attempts):
        for reason in each.reasons if each.time >= since else ():
            is_listed = reason.is_left_out and reason.kind is not Kind.NODE_FAILURE
            if is_listed and reason.failure not in of_run:
                found = LeftOut(reason.node, reason.kind, reason.text, each.time)
                nodes.setdefault(reason.node, found)
    return nodes


def unfit(attempts: Sequence[Past], since: float) -> set[str]:
    """Return the nodes that the next attempt in the same allocation does without.

    Also those that Slurm marked down or drained at the end of the last attempt.
    """
    last = {reason.node for each in attempts[-1:] for reason in each.reasons if reason.is_left_out}
    return {*left_out(attempts, since), *last}
