"""What a sweep is on disk: its folder, and the record of its points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ... import records
from ...errors import UserError
from ...runs.lookup import POINTS


@dataclass(frozen=True)
class SweepDir:
    """The paths of a sweep, below `<runs_root>/<name>/<sweep id>`; its runs lie beside it."""

    path: Path

    @property
    def sweep_id(self) -> str:
        return self.path.name

    @property
    def record(self) -> Path:
        """The points, and by which keys they differ."""
        return self.path / "sweep.json"

    @property
    def submitit(self) -> Path:
        return self.path / "submitit"

    @property
    def points(self) -> Path:
        """Links to the run directories, named by the numbers; the batch script follows them."""
        return self.path / POINTS


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
    """Return the points of a sweep. Raises: RecordError, UserError where the file is gone."""
    path = SweepDir(sweep).record
    record = records.read(SweepRecord, path)
    if record is None:
        raise UserError(f"{path} is gone\n  hint: each point is a run with its own run id")
    return record
