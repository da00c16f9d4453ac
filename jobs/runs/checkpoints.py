"""The checkpoints of a run: the newest one, and those that were found damaged."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from jobs import records
from jobs.records import AttemptPlan
from jobs.rundir import QUARANTINE_PREFIX, RunDir, checkpoint_names, checkpoint_step
from jobs.spec import Spec


def newest(run_dir: RunDir) -> str | None:
    """Return the name of the newest committed checkpoint; None if there is none.

    The user's own script names its files as it likes: then it is the time and path of its newest
    file. `is_newer` compares two of either kind.
    """
    if is_foreign(run_dir):
        return _newest_file(run_dir.checkpoints)
    return next(iter(committed(run_dir)), None)


def committed(run_dir: RunDir) -> list[str]:
    """Return the names of the trainer's committed checkpoints, newest first."""
    try:
        return checkpoint_names(run_dir.checkpoints)
    except FileNotFoundError:
        return []


def is_newer(checkpoint: str | None, other: str | None) -> bool:
    """Return whether `checkpoint` is newer than `other`; both come from `newest`."""
    if checkpoint is None or other is None:
        return checkpoint is not None
    steps = checkpoint_step(checkpoint), checkpoint_step(other)
    if steps[0] is None or steps[1] is None:
        return checkpoint > other  # of a user's own script: the times have a fixed width
    return steps[0] > steps[1]


def quarantined(run_dir: RunDir) -> list[str]:
    """Return the names of the damaged checkpoints that were renamed, the oldest step first."""
    names = (path.name for path in run_dir.checkpoints.glob(f"{QUARANTINE_PREFIX}*"))
    return sorted(names, key=lambda name: (_quarantined_step(name), name))


def newly_quarantined(run_dir: RunDir, attempt: int) -> list[str]:
    """Return those that were renamed since the attempt was opened.

    By their names: the clocks of the nodes and of the file server may differ.
    """
    plan = records.read(AttemptPlan, run_dir.attempt(attempt).plan)
    before = () if plan is None else plan.quarantined
    return [name for name in quarantined(run_dir) if name not in before]


def _quarantined_step(name: str) -> int:
    """Return the step of a damaged checkpoint, whose name may end in a number such as `.2`."""
    return checkpoint_step(name.removeprefix(QUARANTINE_PREFIX).partition(".")[0]) or 0


def _newest_file(folder: Path) -> str | None:
    """Return the time and path of the newest file in a folder, except hidden and .tmp files.

    The times come from the file system alone and are compared with each other only.
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
