"""The command cancel: stop a run, its Slurm job or its local processes."""

from __future__ import annotations

import os
import signal

from jobs.attempt import history, run_lock
from jobs.attempt.decision import Action, Cause
from jobs.commands.status import waiting_job
from jobs.errors import FailedError, UserError
from jobs.rundir import RunDir
from jobs.runs import lookup
from jobs.slurm import client


def cancel(run_dir: RunDir) -> int:
    """Stop a run: its Slurm job, or its local processes."""
    if history.is_complete(run_dir):
        raise UserError(f"{run_dir.run_id} is complete, there is nothing to cancel")
    present, job_id = run_lock.read(run_dir), lookup.job_id_of(run_dir)
    if present is not None and present.is_local and run_lock.is_alive(present) is not False:
        if run_lock.is_alive(present) is None:
            raise UserError(f"{run_dir.run_id} runs on {present.host}: cancel it there")
        os.kill(present.pid, signal.SIGTERM)
        print(f"{run_dir.run_id}: stopping after this step and saving")
        return 0
    jobs = [each for each in (job_id, waiting_job(run_dir)) if each is not None]
    jobs = [each for each in jobs if client.is_alive(each) is not False]
    if not jobs:
        raise UserError(f"{run_dir.run_id} is neither queued nor running")
    job = client.show_job(jobs[0])
    answer = client.call(["scancel", *jobs])
    if answer is None or answer.returncode != 0:
        said = answer.stderr.strip() if answer else "scancel is missing or does not answer"
        raise FailedError(f"scancel {' '.join(jobs)}: {said}")
    if job is not None and job.state == "PENDING":  # no attempt is there to write it
        history.end_between(run_dir, Action.CANCEL, Cause.CANCELLED, "the job was cancelled")
        run_dir.owner.unlink(missing_ok=True)
    print(f"{run_dir.run_id}: job {' and job '.join(jobs)} cancelled")
    return 0
