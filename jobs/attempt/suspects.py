"""Which nodes the next attempts of a run do without, from what its attempts say against nodes.

A sign that only the node can be at fault for leaves it out at once. A crash or a hang of one node
leaves it out when the attempt before has the same sign. A failure that follows the run onto
another node, before a new checkpoint, is the run's: no node is left out for it. Pure functions;
their table is tests/core/attempt/test_suspects.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..kinds import Kind
from ..records.ended import ENDS, AttemptRecord, Evidence, Sign
from ..spec import Slurm


class DatedSign(NamedTuple):
    """What speaks against a node, and when its attempt ended, in seconds since the epoch."""

    time: float
    sign: Sign


def confirmed(
    signs: Iterable[Sign],
    attempts: Sequence[AttemptRecord],
    since: float,
    can_do_without: Callable[[str], bool],
) -> tuple[Sign, ...]:
    """Return the signs; one that the attempt before has, too, leaves its node out.

    attempts: before this one. Where crashes move from node to node, no node is at fault; nor where
    an attempt between was well, or a user has resumed the run since. since: as in `left_out`.
    can_do_without: whether there are enough nodes beside a node.
    """
    last = [each for each in attempts[-1:] if each.decision not in ENDS and each.stop >= since]
    before = [(sign.node, sign.kind) for each in last for sign in each.evidence.signs]
    return tuple(
        replace(sign, is_left_out=True, text=f"{sign.text} (the second time in a row)")
        if not sign.is_left_out and (sign.node, sign.kind) in before and can_do_without(sign.node)
        else sign
        for sign in signs
    )


def standing(attempts: Sequence[AttemptRecord], since: float) -> list[DatedSign]:
    """Return the signs of one run that are no older than `since` and still stand, newest first.

    since: seconds since the epoch.
    """
    signs: list[DatedSign] = []
    episode: list[Sign] = []  # since the last new checkpoint
    of_run: set[str] = set()  # failures
    for record in attempts:
        episode = [] if record.evidence.has_progress else episode
        for sign in record.evidence.signs:
            of_run |= {sign.failure for earlier in episode if is_same_elsewhere(sign, earlier)}
        episode += record.evidence.signs
        if record.stop >= since:
            signs += [DatedSign(record.stop, sign) for sign in record.evidence.signs]
    return [each for each in reversed(signs) if each.sign.failure not in of_run]


def is_same_elsewhere(sign: Sign, other: Sign) -> bool:
    """Return whether two signs are the same failure on two nodes."""
    return sign.failure != "" and sign.failure == other.failure and sign.node != other.node


def followed(evidence: Evidence, attempts: Sequence[AttemptRecord]) -> str | None:
    """Return the sentence about a failure that followed the run onto another node, else None.

    attempts: before this one. Those before a resume, or before a new checkpoint, do not count.
    """
    if evidence.has_progress:
        return None
    for record in reversed(attempts):
        if record.decision in ENDS:
            break
        for sign, earlier in itertools.product(evidence.signs, record.evidence.signs):
            if is_same_elsewhere(sign, earlier):
                nodes = f"{earlier.node} and {sign.node}"
                return f"the same failure on {nodes}: it is the run's, not a node's: {sign.text}"
        if record.evidence.has_progress:
            break
    return None


def left_out(attempts: Sequence[AttemptRecord], since: float) -> dict[str, DatedSign]:
    """Return the nodes that a run does without, each with its newest sign; the newest come first.

    Without those that failed or are drained: Slurm itself gives such a node to no job until it is
    well, and a cut network may have many of them. attempts: of the run. since: seconds since the
    epoch; older signs do not count.
    """
    nodes: dict[str, DatedSign] = {}
    for each in standing(attempts, since):
        if each.sign.is_left_out and each.sign.kind is not Kind.NODE_FAILURE:
            nodes.setdefault(each.sign.node, each)
    return nodes


class Chosen(NamedTuple):
    """The nodes of an attempt, and those of the job that wait: fit ones, and those left out."""

    nodes: tuple[str, ...]
    spares: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def choose_nodes(
    slurm: Slurm, nodes: Sequence[str], lost: Collection[str], unfit: Collection[str]
) -> Chosen:
    """Choose the nodes of an attempt from those of the job, in their order.

    lost: do not answer. unfit: are left out. Both are taken where there are too few others, lost
    ones last: results depend on the number of nodes.
    """
    num_fit = len({*nodes} - {*unfit, *lost})
    wanted = min(slurm.most_nodes, max(slurm.fewest_nodes, num_fit))
    by_fitness = sorted(nodes, key=lambda node: (node in lost, node in unfit))[:wanted]
    waiting = [node for node in nodes if node not in (*by_fitness, *lost)]
    return Chosen(
        tuple(node for node in nodes if node in by_fitness),
        tuple(node for node in waiting if node not in unfit),
        tuple(node for node in waiting if node in unfit),
    )


def unfit(attempts: Sequence[AttemptRecord], since: float) -> set[str]:
    """Return the nodes that the next attempt in the same allocation does without.

    Also those that Slurm marked down or drained at the end of the last attempt.
    """
    last = {
        sign.node for record in attempts[-1:] for sign in record.evidence.signs if sign.is_left_out
    }
    return {*left_out(attempts, since), *last}
