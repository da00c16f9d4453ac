"""Which nodes the next attempts of a run do without, from what its attempts say against nodes.

If only the node can be to blame, it is left out at once. After a crash or a hang of one node it is
left out if the attempt before has the same reason. A failure that follows the run onto another
node, before a new checkpoint, is the run's: no node is left out for it. Pure functions; their
table is tests/rooms/nodes/test_suspects.py.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ...kinds import Kind
from ...records.ended import LeftOut
from ...spec import Slurm
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


def is_same_elsewhere(reason: Reason, other: Reason) -> bool:
    """Return whether two reasons are the same failure on two nodes."""
    return reason.failure != "" and reason.failure == other.failure and reason.node != other.node


def followed(now: Past, attempts: Sequence[Past]) -> str | None:
    """Return the sentence about a failure that followed the run onto another node, else None.

    attempts: before this one. Those before a resume, or before a new checkpoint, do not count.
    """
    if now.has_progress:
        return None
    for before in reversed(attempts):
        if before.is_end:
            break
        for reason, earlier in itertools.product(now.reasons, before.reasons):
            if is_same_elsewhere(reason, earlier):
                nodes = f"{earlier.node} and {reason.node}"
                return f"the same failure on {nodes}: the run is at fault, no node: {reason.text}"
        if before.has_progress:
            break
    return None


def left_out(attempts: Sequence[Past], since: float) -> dict[str, LeftOut]:
    """Return the nodes that a run does without, the newest first, each with its newest reason.

    Without those that failed or are drained: Slurm itself gives such a node to no job until it is
    well, and a cut network may have many of them. since: seconds since the epoch; older reasons do
    not count.
    """
    reasons: list[tuple[float, Reason]] = []
    episode: list[Reason] = []  # since the last new checkpoint
    of_run: set[str] = set()  # failures
    for each in attempts:
        episode = [] if each.has_progress else episode
        for reason in each.reasons:
            of_run |= {reason.failure for earlier in episode if is_same_elsewhere(reason, earlier)}
        episode += each.reasons
        reasons += [(each.time, reason) for reason in each.reasons if each.time >= since]
    nodes: dict[str, LeftOut] = {}
    for time, reason in reversed(reasons):
        is_listed = reason.is_left_out and reason.kind is not Kind.NODE_FAILURE
        if is_listed and reason.failure not in of_run:
            nodes.setdefault(reason.node, LeftOut(reason.node, reason.kind, reason.text, time))
    return nodes


def choose_nodes(
    slurm: Slurm, nodes: Sequence[str], lost: Collection[str], unfit: Collection[str]
) -> tuple[str, ...]:
    """Choose the nodes of an attempt from those of the job, in their order.

    lost: do not answer. unfit: are left out. Both are taken where there are too few others, lost
    ones last: results depend on the number of nodes.
    """
    num_fit = len({*nodes} - {*unfit, *lost})
    wanted = min(slurm.most_nodes, max(slurm.fewest_nodes, num_fit))
    by_fitness = sorted(nodes, key=lambda node: (node in lost, node in unfit))[:wanted]
    return tuple(node for node in nodes if node in by_fitness)


def unfit(attempts: Sequence[Past], since: float) -> set[str]:
    """Return the nodes that the next attempt in the same allocation does without.

    Also those that Slurm marked down or drained at the end of the last attempt.
    """
    last = {reason.node for each in attempts[-1:] for reason in each.reasons if reason.is_left_out}
    return {*left_out(attempts, since), *last}
