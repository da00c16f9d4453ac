"""The command cancel: stop a run, all its Slurm jobs or its local processes."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from slurm_job_kit.jobs import arguments, installation, shared_files
from slurm_job_kit.jobs.attempt.close import end_between_attempts, find_run
from slurm_job_kit.jobs.attempt.decision import Action, Cause
from slurm_job_kit.jobs.commands import run_jobs
from slurm_job_kit.jobs.commands.submit_claim import claimed, uninterrupted
from slurm_job_kit.jobs.console import BestEffort, counted
from slurm_job_kit.jobs.errors import FailedError, UserError
from slurm_job_kit.jobs.records import RecordError
from slurm_job_kit.jobs.records.queued import RecordedJob
from slurm_job_kit.jobs.rundir import RunDir, SweepDir, write_atomic
from slurm_job_kit.jobs.runs import facts, lookup, run_lock
from slurm_job_kit.jobs.slurm import client, job_list, job_state

CLAIM_WAIT_S = 60.0  # a resume that is just queueing its job: longer than sbatch usually takes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of cancel."""
    parser.add_argument("run", metavar="RUN", help=arguments.RUN)


def command(args: argparse.Namespace) -> int:
    """Run cancel; returns the exit code. Raises: UserError for a name that means two runs."""
    if (sweep := lookup.find_sweep(args.run)) is not None:
        return cancel_sweep(sweep)
    run_dir = find_run(args.run)
    if args.run == run_dir.path.parent.name and (newer := lookup.newer_not_begun(run_dir)):
        raise UserError(
            f"{newer.run_id} is newer, but the kit did not queue it: which run is meant?\n"
            f"  hint: {installation.command('cancel', run_dir.run_id)}, or {newer.run_id}"
        )
    return cancel(run_dir)


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
        claim_patiently(stack, run_dir, record, CLAIM_WAIT_S)
        jobs = run_jobs.unended(run_dir)
        if not jobs:
            raise UserError(f"{run_dir.run_id} is neither queued nor running")
        cancel_jobs(run_dir, jobs, record)
    print(f"{run_dir.run_id}: job {' and job '.join(jobs)} cancelled")
    return 0


def claim_patiently(
    stack: contextlib.ExitStack, run_dir: RunDir, record: BestEffort, wait_s: float
) -> None:
    """Claim a run until the end of the stack; print it if another command keeps the claim.

    wait_s: how long to wait for that command.
    """
    try:
        with record():
            stack.enter_context(claimed(run_dir, wait_s))
    except UserError as error:  # a job that its holder queues now is refused at its start
        print(f"cancel: continuing without the claim: {error}", file=sys.stderr)


def stop_local(run_dir: RunDir, owner: run_lock.Owner) -> int:
    """Ask the process that runs this run to stop and save. Raises: UserError on another host."""
    if run_lock.is_alive(owner) is None:
        raise UserError(f"{run_dir.run_id} runs on {owner.host}: cancel it there")
    os.kill(owner.pid, signal.SIGTERM)
    print(f"{run_dir.run_id}: stopping after this step and saving")
    return 0


def cancel_jobs(run_dir: RunDir, jobs: list[str], record: BestEffort) -> None:
    """Cancel Slurm jobs, and record the end of the run where no attempt is running to do it."""
    shown = [client.show_job(job_id) for job_id in jobs]
    scancel({run_dir: jobs}, record)
    if all(job is not None and job.state in job_state.WAITING for job in shown):
        end_pending(run_dir)


def scancel(jobs: Mapping[RunDir, Sequence[str]], record: BestEffort) -> None:
    """Mark runs as cancelled, and cancel all their Slurm jobs by one command.

    Raises: FailedError if scancel fails; then no run has a new mark.
    """
    ids = [job_id for of_run in jobs.values() for job_id in of_run]
    unmarked = [run_dir for run_dir in jobs if not shared_files.exists(run_dir.cancelled)]
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    with uninterrupted():  # a mark without a scancel would end the run at its next start
        for run_dir, of_run in jobs.items():
            with record():  # before scancel: a job that starts meanwhile must find it
                write_atomic(run_dir.cancelled, f"{now}: jobs cancel: {' '.join(of_run)}\n")
        answer = client.cancel(*ids)
        if answer is None or answer.returncode != 0:
            for run_dir in unmarked:
                run_dir.cancelled.unlink(missing_ok=True)
            error = answer.stderr.strip() if answer else "scancel is missing or does not answer"
            raise FailedError(f"scancel {' '.join(ids)}: {error}")


def end_pending(run_dir: RunDir) -> None:
    """Record the end of a cancelled run, no job of which was running."""
    owner = run_lock.read(run_dir)
    try:
        end_between_attempts(run_dir, Action.CANCEL, Cause.CANCELLED, "the job was cancelled")
    except RecordError as error:  # the jobs are cancelled all the same
        print(f"cancel: the end of the run is not recorded: {error}", file=sys.stderr)
    if owner is not None:  # of an earlier start of a job that had been requeued
        run_lock.release(run_dir, owner)


def living_jobs(run_dirs: Sequence[RunDir]) -> tuple[dict[RunDir, list[str]], dict[str, str]]:
    """The queued and running jobs of those runs that have one, and the states of all jobs.

    Slurm is asked once. Raises: FailedError if it does not answer.
    """
    jobs = {run_dir: lookup.jobs_of(run_dir) for run_dir in run_dirs}
    states = job_list.job_states(job for of_run in jobs.values() for job in of_run)
    living = {job_id for job_id, state in states.items() if job_state.is_alive(state)}
    found = {
        run_dir: [job.job_id for job in of_run if job.job_id in living]
        for run_dir, of_run in jobs.items()
    }
    found = {run_dir: of_run for run_dir, of_run in found.items() if of_run}
    refuse_unknown(jobs, states, is_needed=not found)
    return found, states


def refuse_unknown(
    jobs: Mapping[RunDir, Sequence[RecordedJob]], states: Mapping[str, str], is_needed: bool
) -> None:
    """Print which runs have a job that Slurm may hide; raise it where no other job is left.

    states: of the jobs that Slurm shows. Raises: UserError, FailedError.
    """
    absent = {
        job.job_id: (run_dir, job)
        for run_dir, of_run in jobs.items()
        for job in of_run
        if job.job_id not in states and not run_jobs.has_recorded_end(run_dir, of_run[0].job_id)
    }
    unknown = job_list.hidden(job for _, job in absent.values())
    if not states:
        for job_id, (_, job) in list(absent.items())[:1]:
            if (life := job_list.life_of(job)).is_silent:
                unknown = {job_id: life}
    for job_id, life in unknown.items():
        error = run_jobs.refusal(absent[job_id][0], [life])
        if is_needed:
            raise error
        print(f"cancel: {error}", file=sys.stderr)


def cancel_sweep(sweep: SweepDir) -> int:
    """Stop all points of a sweep that are queued or run; returns the exit code 0.

    Raises: UserError where none is; FailedError if scancel fails.
    """
    points = [run_dir for run_dir in lookup.points_of(sweep) if shared_files.is_dir(run_dir.path)]
    run_dirs = [run_dir for run_dir in points if not facts.is_complete(run_dir)]
    owners = {run_dir: run_lock.read(run_dir) for run_dir in run_dirs}
    here = {
        run_dir: owner
        for run_dir, owner in owners.items()
        if owner is not None and owner.is_local and run_lock.is_alive(owner) is not False
    }
    for run_dir, owner in here.items():
        stop_local(run_dir, owner)
    record = BestEffort("cancel")
    with contextlib.ExitStack() as stack:
        deadline = time.monotonic() + CLAIM_WAIT_S  # one command may hold the claims of all points
        for run_dir in run_dirs:
            claim_patiently(stack, run_dir, record, deadline - time.monotonic())
        jobs, states = living_jobs(run_dirs)
        if not jobs and not here:
            raise UserError(f"no point of {sweep.sweep_id} is queued or running")
        if jobs:
            scancel(jobs, record)
        for run_dir, of_run in jobs.items():
            if all(states[job] in job_state.WAITING for job in of_run):
                end_pending(run_dir)
    print(f"{sweep.sweep_id}: {counted(len(jobs) + len(here), 'point')} cancelled")
    return 0
