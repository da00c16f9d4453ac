"""Whether this attempt still owns the run, or a newer one replaced it. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contract import OwningAttempt, records
from ..errors import Superseded

if TYPE_CHECKING:
    from ..process.run_handle import RunHandle


def check_owner(run: RunHandle) -> None:
    """Raise Superseded unless owner.json names this attempt of this job.

    A node that lost its network may come back after its job was requeued, or after the run was
    given to another job. Its ranks must then change nothing in the run directory.
    """
    owner = records.read(OwningAttempt, run.dir.owner)
    if owner is None:
        now = f"{run.dir.owner} is missing, so no attempt"
    elif (owner.job_id, owner.attempt) != (run.job_id, run.attempt):
        now = f"attempt {owner.attempt} of job {owner.job_id}"
    else:
        return
    raise Superseded(
        f"{now} owns {run.dir.path} now, this is attempt {run.attempt} of job {run.job_id}: "
        "nothing is committed"
    )
