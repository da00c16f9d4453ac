"""The folder of a sweep, `<runs_root>/<name>/sweep-ID`, beside its runs, and its record there.

`points/0`, `points/1` ... in it lead to the runs.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from ...base import files
from ...base.errors import RecordError, UserError
from ...contract import records
from ...contract.rundir import RunDir
from ...runs import lookup

NAME = "sweep.json"
PREFIX = "sweep-"
POINTS = "points"


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
        raise UserError(f"{sweep / NAME} is gone", "each point is a run with its own run id")
    if len(record.points) != len(points_of(sweep)):
        raise RecordError(f"{sweep / NAME} has other points than {sweep / POINTS}")
    return record


def points_of(sweep: Path) -> list[RunDir]:
    points = sweep / POINTS
    numbers = sorted(int(x) for x in files.names_in(points) if x.isdecimal())
    return [RunDir(Path(os.path.realpath(points / str(number)))) for number in numbers]


def find(text: str) -> Path | None:
    """Return the real folder of a sweep, by its folder, its id or its job array's id."""
    if (sweep := _at(Path(os.path.expanduser(text)))) is not None:
        return sweep
    if text.isdecimal():
        folder = lookup.recall(text, roots=map(lookup.own_root, lookup.all_runs()))
        return None if folder is None else _at(folder.path)
    return next(filter(None, (_at(path) for path in lookup.children() if path.name == text)), None)


def _at(path: Path) -> Path | None:
    """Return the real folder of the sweep to which a path leads, perhaps by a link."""
    if not files.is_dir(path / POINTS):
        return None
    real = Path(os.path.realpath(path))
    return real if real.name.startswith(PREFIX) else None
