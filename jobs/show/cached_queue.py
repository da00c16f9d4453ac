"""Asks Slurm about the jobs of runs, and not again before some time has passed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from slurm_job_kit.jobs.show.run_view import Jobs, RunView, users_of
from slurm_job_kit.jobs.slurm import job_list
from slurm_job_kit.jobs.slurm.job_list import QueueEntry

ASK_AGAIN_S = 30
NOT_ASKED = QueueEntry("UNKNOWN")


class CachedQueue:
    """Slurm's last answer, which is used for ASK_AGAIN_S. Runs without a job need no answer."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._wanted: set[str] = set()
        self._answer: Jobs = None

    def jobs(self, views: Sequence[RunView]) -> Jobs:
        """The jobs of these runs by id, and perhaps others; None if Slurm gave no answer."""
        wanted = {job_id for view in views for job_id in view.job_ids}
        if not wanted:
            return {}
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at >= ASK_AGAIN_S:
            self._asked_at, self._wanted = now, wanted
            self._answer = job_list.queue({os.getuid(), *users_of(views)})
        if self._answer is None:
            return None
        # A job that was queued after the answer is not one that Slurm no longer has.
        return dict.fromkeys(wanted - self._wanted, NOT_ASKED) | dict(self._answer)
