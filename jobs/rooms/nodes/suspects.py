"""Which nodes the next attempts of a run do without, from what its attempts say against nodes.

A sign that only the node can be at fault for leaves it out at once. A crash or a hang of one node
leaves it out when the attempt before has the same sign. A failure that follows the run onto
another node, before a new checkpoint, is the run's: no node is left out for it. Pure functions;
their table is tests/rooms/nodes/test_suspects.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ...kinds import Kind
from ...records.ended import LeftOut
from ...spec import Slurm
from .records import Past, Sign


def confirmed(
    signs: Iterable[Sign],
    attempts: Sequence[Past],
    since: float,
    can_do_without: Callable[[str], bool],
) -> tuple[Sign, ...]:
    """Return the signs; one that the attempt before has, too, leaves its node out.

    attempts: before this one. Where crashes move from node to node, no node is at fault; nor where
    an attempt between was well, or a user has resumed the run since. since: as in `left_out`.
    can_do_without: whether there are enough nodes beside a node.
    """
    last = [each for each in attempts[-1:] if not each.is_end and each.time >= since]
    before = [(sign.node, sign.kind) for each in last for sign in each.signs]
    return tuple(
        replace(sign, is_left_out=True, text=f"{sign.text} (the second time in a row)")
        if not sign.is_left_out and (sign.node, sign.kind) in before and can_do_without(sign.node)
        else sign
        for sign in signs
    )


def is_same_elsewhere(sign: Sign, other: Sign) -> bool:
    """Return whether two signs are the same failure on two nodes."""
    return sign.failure != "" and sign.failure == other.failure and sign.node != other.node


def followed(now: Past, attempts: Sequence[Past]) -> str | None:
    """Return the sentence about a failure that followed the run onto another node, else None.

    attempts: before this one. Those before a resume, or before a new checkpoint, do not count.
    """
    if now.has_progress:
        return None
    for before in reversed(attempts):
        if before.is_end:
            break
        for sign, earlier in itertools.product(now.signs, before.signs):
            if is_same_elsewhere(sign, earlier):
                nodes = f"{earlier.node} and {sign.node}"
                return f"the same failure on {nodes}: it is the run's, not a node's: {sign.text}"
        if before.has_progress:
            break
    return None


def left_out(attempts: Sequence[Past], since: float) -> dict[str, LeftOut]:
    """Return the nodes that a run does without, each with its newest sign; the newest come first.

    Without those that failed or are drained: Slurm itself gives such a node to no job until it is
    well, and a cut network may have many of them. since: seconds since the epoch; older signs do
    not count.
    """
    signs: list[tuple[float, Sign]] = []
    episode: list[Sign] = []  # since the last new checkpoint
    of_run: set[str] = set()  # failures
    for each in attempts:
        episode = [] if each.has_progress else episode
        for sign in each.signs:
            of_run |= {sign.failure for earlier in episode if is_same_elsewhere(sign, earlier)}
        episode += each.signs
        signs += [(each.time, sign) for sign in each.signs if each.time >= since]
    nodes: dict[str, LeftOut] = {}
    for time, sign in reversed(signs):
        is_listed = sign.is_left_out and sign.kind is not Kind.NODE_FAILURE
        if is_listed and sign.failure not in of_run:
            nodes.setdefault(sign.node, LeftOut(sign.node, sign.kind, sign.text, time))
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
    last = {sign.node for each in attempts[-1:] for sign in each.signs if sign.is_left_out}
    return {*left_out(attempts, since), *last}
