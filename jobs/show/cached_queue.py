"""Asks Slurm about the jobs of runs, and not again before some time has passed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from slurm_job_kit.jobs.records.queued import RecordedJob
from slurm_job_kit.jobs.show.run_view import Jobs, RunView, is_in_queue, users_of
from slurm_job_kit.jobs.slurm import job_list
from slurm_job_kit.jobs.slurm.job_list import QueueEntry

ASK_AGAIN_S = 30
UNKNOWN = "UNKNOWN"
NOT_ASKED = QueueEntry(UNKNOWN)


class CachedQueue:
    """Slurm's last answer, which is used for ASK_AGAIN_S. Runs without a job need no answer."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._wanted: set[str] = set()
        self._answer: Jobs = None

    def jobs(self, views: Sequence[RunView]) -> Jobs:
        """The jobs of these runs by id, and perhaps others; None if Slurm gave no answer."""
        jobs = {job.job_id: job for view in views for job in view.jobs}
        wanted = set(jobs)
        if not wanted:
            return {}
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at >= ASK_AGAIN_S:
            self._asked_at, self._wanted = now, wanted
            self._answer = self._ask(views, jobs)
        if self._answer is None:
            return None
        # A job that was queued after the answer is not one that Slurm no longer has.
        return dict.fromkeys(wanted - self._wanted, NOT_ASKED) | dict(self._answer)

    @staticmethod
    def _ask(views: Sequence[RunView], jobs: Mapping[str, RecordedJob]) -> Jobs:
        """Slurm's answer, with an entry for each job that it may have and does not show."""
        answer = job_list.queue({os.getuid(), *users_of(views)})
        if answer is None:
            return None
        absent = [job for job_id, job in jobs.items() if job_id not in answer]
        hidden = job_list.hidden(absent)
        unknown = {job_id: QueueEntry(UNKNOWN, life.why) for job_id, life in hidden.items()}
        gone = [job.job_id for job in absent if job.job_id not in hidden]
        past = job_list.past_states(gone) if gone else {}
        ended = {job_id: QueueEntry(state) for job_id, state in past.items() if job_id in gone}
        ended = {job_id: each for job_id, each in ended.items() if not is_in_queue(each)}
        return ended | unknown | answer
