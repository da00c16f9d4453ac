"""The record of a sweep in its folder, `<runs_root>/<name>/sweep-ID`; the runs lie beside that."""

from dataclasses import dataclass
from pathlib import Path

from ... import records
from ...errors import RecordError, UserError
from ...runs import lookup

NAME = "sweep.json"


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep. overrides: the `KEY=VALUE` by which it differs from the user's spec."""

    run_id: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class SweepRecord:
    """sweep.json: the points of a sweep; the number of a point is its position.

    A point's job is in the submission.json of its run.
    """

    points: tuple[SweepPoint, ...]
    metric: str | None = None  # ranks the points; None: the one that chose the best checkpoints
    max_parallel: int | None = None  # None: no limit


def read(sweep: Path) -> SweepRecord:
    """Return the record of a sweep. Raises: RecordError, UserError where the file is gone."""
    record = records.read(SweepRecord, sweep / NAME)
    if record is None:
        hint = "each point is a run with its own run id"
        raise UserError(f"{sweep / NAME} is gone\n  hint: {hint}")
    if len(record.points) != len(lookup.points_of(sweep)):
        raise RecordError(f"{sweep / NAME} has other points than {sweep / lookup.POINTS}")
    return record
