"""The checkpoints of a run: the newest one, and those that were found damaged."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from jobs.checkpoint_names import QUARANTINE_PREFIX, checkpoint_names, checkpoint_step
from jobs.rundir import RunDir
from jobs.spec import Spec


def newest(run_dir: RunDir, is_users: bool) -> str | None:
    """Return the name of the newest committed checkpoint; None if there is none.

    A user's script (`is_users`) names its files as it likes: then it is the time and path of its
    newest file. `is_newer` compares two of either kind.
    """
    if is_users:
        return _newest_file(run_dir.checkpoints)
    return next(iter(committed(run_dir)), None)


def committed(run_dir: RunDir) -> list[str]:
    """Return the names of the trainer's committed checkpoints, newest first."""
    try:
        return checkpoint_names(run_dir.checkpoints)
    except FileNotFoundError:
        return []


def quarantined(run_dir: RunDir) -> list[str]:
    """Return the names of the damaged checkpoints that were renamed, the oldest step first."""
    names = (path.name for path in run_dir.checkpoints.glob(f"{QUARANTINE_PREFIX}*"))
    return sorted(names, key=lambda name: (_quarantined_step(name), name))


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
