"""The command for what a person does about a kind: its values come from the run's spec."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ...kinds import KINDS, Kind
from ...slurm import duration
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


def _more_time(spec: Spec) -> str:
    minutes, seconds = divmod(2 * duration.parse_or_zero(spec.slurm.time), 60)
    return (
        f"slurm.time={minutes // 60}:{minutes % 60:02}:{seconds:02}"
        if minutes
        else "slurm.time=..."
    )


def _more_memory(spec: Spec) -> str:
    """Return twice slurm.mem; if it is unset or all that a node has, the user knows the nodes."""
    parts = re.fullmatch(r"0*([1-9]\d*)([KMGT]?)B?", (spec.slurm.mem or "").upper())
    return f"slurm.mem={2 * int(parts[1])}{parts[2]}" if parts else "slurm.mem=..."


def _smaller_batch(spec: Spec) -> str:
    """Return half of the samples at a time, and the same number in a step if it can be divided."""
    size, steps = spec.train.micro_batch_size, spec.train.grad_accum_steps
    if size == 1:
        return "KEY=VALUE"
    return f"train.micro_batch_size={size // 2} train.grad_accum_steps={2 * steps}"


def _lower_rate(spec: Spec) -> str:
    return f"train.lr={spec.train.lr / 10:g}"


def _more_restarts(spec: Spec) -> str:
    return f"slurm.max_restarts={2 * max(100, spec.slurm.max_restarts)}"


CHANGES: dict[str, Callable[[Spec], str]] = {
    "<more time>": _more_time,
    "<more memory>": _more_memory,
    "<smaller batch>": _smaller_batch,
    "<lower rate>": _lower_rate,
    "<more restarts>": _more_restarts,
}


def remedy_of(kind: Kind, spec: Spec) -> Remedy:
    """Return what to do about a kind that ended a run with this spec."""
    row = KINDS[kind]
    change = CHANGES[row.change](spec) if row.change in CHANGES else row.change
    return Remedy(row.advice, row.command, change, row.flags)
