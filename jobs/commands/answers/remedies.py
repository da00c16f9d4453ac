"""The command for what a person does about a kind: its values come from the run's spec."""

from __future__ import annotations

from dataclasses import dataclass

from ...kinds import KINDS, Kind
from ...spec import Spec


@dataclass(frozen=True)
class Remedy:
    """What to do after the end of a run, and the command for it.

    change: the `KEY=VALUE` of the command; `...` stands for what the user must choose.
    flags: as for `installation.command`.
    """

    text: str
    command: str = "resume"
    change: str = ""
    flags: tuple[str, ...] = ()


def remedy_of(kind: Kind, spec: Spec) -> Remedy:
    """Return what to do about a kind that ended a run with this spec."""
    row = KINDS[kind]
    return Remedy(row.advice, row.command, row.change, row.flags)
