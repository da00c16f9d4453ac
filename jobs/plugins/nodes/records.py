"""What the plugin keeps in the evidence of an attempt."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...contract.kinds import Kind
from ...contract.records import OMIT_NONE, of_plugin
from ...contract.records.ended import ENDS, AttemptRecord, Evidence, LeftOut

PLUGIN = "nodes"


@dataclass(frozen=True)
class Reason:
    """What speaks against a node after an attempt.

    node: Slurm's name. is_left_out: the next attempts do without the node. failure: equal for two
    attempts that failed in the same way, so that it is the run's if the nodes differ; "" for what
    only a node can be at fault for, or where nothing is known.
    """

    node: str
    kind: Kind
    text: str
    is_left_out: bool
    failure: str = ""


@dataclass(frozen=True)
class NodesFound:
    """What an attempt says of nodes.

    has_spares: the job has enough other nodes for the next attempt. followed: the sentence about a
    failure that ended an attempt on another node, too, without a checkpoint between. left_out:
    after this attempt.
    """

    reasons: tuple[Reason, ...] = ()
    has_spares: bool = False
    followed: str | None = field(default=None, metadata=OMIT_NONE)
    left_out: tuple[LeftOut, ...] = ()

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of the reasons by which the next attempts do without nodes."""
        return [reason.kind for reason in self.reasons if reason.is_left_out]


def found_in(evidence: Evidence) -> NodesFound:
    """Return what the plugin keeps in the evidence of an attempt."""
    return of_plugin(NodesFound, evidence.plugins, PLUGIN) or NodesFound()


class Past(NamedTuple):
    """A closed attempt. time: seconds since the epoch. is_end: the run ended with it."""

    time: float
    is_end: bool
    has_progress: bool
    reasons: tuple[Reason, ...]


def past_of(attempts: Sequence[AttemptRecord]) -> list[Past]:
    """Return the closed attempts of a run, oldest first."""
    return [
        past(each.evidence, each.times.stop, each.decision in ENDS, found_in(each.evidence).reasons)
        for each in attempts
    ]


def past(evidence: Evidence, time: float, is_end: bool, reasons: tuple[Reason, ...]) -> Past:
    """Return an attempt.

    An attempt without Slurm has no name of Slurm for its node, so it speaks against none.
    """
    is_local = evidence.job_state == "LOCAL"
    return Past(time, is_end, evidence.has_progress, () if is_local else reasons)
