"""What a run has saved so far: its checkpoints, and those that were found damaged."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from jobs import records
from jobs.records import AttemptPlan
from jobs.rundir import RunDir
from jobs.spec import Spec

PREFIX = "step-"
QUARANTINE_PREFIX = f"quarantined-{PREFIX}"


def newest(run_dir: RunDir) -> str | None:
    """What names the newest checkpoint, and sorts by age; None if there is none.

    Of the trainer's, committed ones alone have their final name. A script of one's own names its
    files as it likes: there it is the time and path of the newest one.
    """
    if is_foreign(run_dir):
        return _newest_file(run_dir.checkpoints)
    names = (path.name for path in run_dir.checkpoints.glob(f"{PREFIX}*"))
    return max((name for name in names if name.removeprefix(PREFIX).isdigit()), default=None)


def quarantined(run_dir: RunDir) -> list[str]:
    """The names of the checkpoints that were found damaged and put aside, oldest first."""
    return sorted(path.name for path in run_dir.checkpoints.glob(f"{QUARANTINE_PREFIX}*"))


def newly_quarantined(run_dir: RunDir, attempt: int) -> list[str]:
    """Those that were put aside since the attempt was opened: by names, as clocks may differ."""
    plan = records.read(AttemptPlan, run_dir.attempt(attempt).plan)
    before = () if plan is None else plan.quarantined
    return [name for name in quarantined(run_dir) if name not in before]


def _newest_file(folder: Path) -> str | None:
    """The time and path of the newest file below a folder but hidden and .tmp ones.

    The times are the file system's own, and are compared with nothing else.
    """
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(".") and not name.endswith(".tmp"):
                path = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):  # the script replaces it right now
                    found.append(f"{path.stat().st_mtime_ns:020d} {path.relative_to(folder)}")
    return max(found, default=None)


def is_foreign(run_dir: RunDir) -> bool:
    """Whether the ranks run a user's script, not the kit's trainer; False without a spec.json."""
    try:
        return not Spec.read(run_dir.spec).launch.is_trainer
    except FileNotFoundError:
        return False
