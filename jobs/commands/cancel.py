"""The command cancel: stop a run, all its Slurm jobs or its local processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from slurm_job_kit.jobs.attempt import facts, run_lock
from slurm_job_kit.jobs.attempt.close import end_between_attempts
from slurm_job_kit.jobs.attempt.decision import Action, Cause
from slurm_job_kit.jobs.commands import run_jobs
from slurm_job_kit.jobs.commands.submit_claim import claimed, uninterrupted
from slurm_job_kit.jobs.console import BestEffort
from slurm_job_kit.jobs.errors import FailedError, UserError
from slurm_job_kit.jobs.records import RecordError
from slurm_job_kit.jobs.rundir import RunDir, write_atomic
from slurm_job_kit.jobs.slurm import client

CLAIM_WAIT_S = 60.0  # a resume that is just queueing its job: longer than sbatch usually takes


def cancel(run_dir: RunDir) -> int:
    """Stop a run; only a later resume continues it. Returns the exit code 0.

    Raises: UserError for a run that does not run; FailedError if scancel fails.
    """
    if facts.is_complete(run_dir):
        raise UserError(f"{run_dir.run_id} is complete, there is nothing to cancel")
    owner = run_lock.read(run_dir)
    if owner is not None and owner.is_local and run_lock.is_alive(owner) is not False:
        return stop_local(run_dir, owner)
    record = BestEffort("cancel")  # a full disk must not keep a job alive
    with contextlib.ExitStack() as stack:
        try:
            with record():
                stack.enter_context(claimed(run_dir, CLAIM_WAIT_S))
        except UserError as error:  # a job that its holder queues now is refused at its start
            print(f"cancel: not waiting any longer: {error}", file=sys.stderr)
        jobs = run_jobs.unended(run_dir)
        if not jobs:
            raise UserError(f"{run_dir.run_id} is neither queued nor running")
        cancel_jobs(run_dir, jobs, record)
    print(f"{run_dir.run_id}: job {' and job '.join(jobs)} cancelled")
    return 0


def stop_local(run_dir: RunDir, owner: run_lock.Owner) -> int:
    """Ask the process that runs this run to stop and save. Raises: UserError on another host."""
    if run_lock.is_alive(owner) is None:
        raise UserError(f"{run_dir.run_id} runs on {owner.host}: cancel it there")
    os.kill(owner.pid, signal.SIGTERM)
    print(f"{run_dir.run_id}: stopping after this step and saving")
    return 0


def cancel_jobs(run_dir: RunDir, jobs: list[str], record: BestEffort) -> None:
    """Cancel Slurm jobs, and record the end of the run where no attempt is running to do it."""
    owner = run_lock.read(run_dir)
    shown = [client.show_job(job_id) for job_id in jobs]
    was_cancelled = run_dir.cancelled.exists()
    with uninterrupted():  # a mark without a scancel would end the run at its next start
        with record():  # before scancel: a job that starts meanwhile must find it
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            write_atomic(run_dir.cancelled, f"{now}: jobs cancel: {' '.join(jobs)}\n")
        answer = client.cancel(*jobs)
        if answer is None or answer.returncode != 0:
            if not was_cancelled:
                run_dir.cancelled.unlink(missing_ok=True)
            error = answer.stderr.strip() if answer else "scancel is missing or does not answer"
            raise FailedError(f"scancel {' '.join(jobs)}: {error}")
    if all(job is not None and job.state == "PENDING" for job in shown):
        try:
            end_between_attempts(run_dir, Action.CANCEL, Cause.CANCELLED, "the job was cancelled")
        except RecordError as error:  # the jobs are cancelled all the same
            print(f"cancel: the end of the run is not recorded: {error}", file=sys.stderr)
        if owner is not None:  # of an earlier start of a job that had been requeued
            run_lock.release(run_dir, owner)
