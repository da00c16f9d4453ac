"""The command cancel: stop a run or a group of runs, Slurm jobs and local processes."""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from .. import hooks
from ..attempt.close import end_cancelled
from ..base import answer, files, installation
from ..base.console import BestEffort, print_line, quantity
from ..base.errors import FailedError, UserError
from ..contract.records import RecordError
from ..contract.rundir import RunDir
from ..runs import lookup, run_lock, state
from ..runs.state import RunPhase, RunState
from ..slurm import job_state
from ..slurm.job import Job, run_scancel
from . import arguments
from .submit_claim import block_signals, hold_claim

CLAIM_WAIT_S = 60.0  # a resume that is just queueing its job: longer than sbatch usually takes
MAKE = ("RUN", "FLAGS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=arguments.RUN)


def command(args: argparse.Namespace) -> int:
    if (group := hooks.group(args.run)) is not None:
        return cancel(group.runs(), group.path.name)
    run_dir = lookup.find(args.run)
    return cancel([run_dir], run_dir.run_id)


def cancel(run_dirs: Sequence[RunDir], name: str) -> int:
    """Stop runs, which only a later resume continues; returns the exit code 0.

    name: of the run, or of the group that has these runs.
    Raises: UserError where none is queued or runs, or a process is not stopped; FailedError if
    scancel fails.
    """
    record = BestEffort("cancel")  # a full disk must not keep a job alive
    with contextlib.ExitStack() as stack:
        deadline = time.monotonic() + CLAIM_WAIT_S  # one command may hold the claims of all points
        present = [run_dir for run_dir in run_dirs if files.is_dir(run_dir.path)]
        for run_dir in present:
            claim_patiently(stack, run_dir, record, deadline - time.monotonic())
        # Now that no other command can queue a job.
        found = state.read_all(present, is_for_change=True)
        unfinished = [run for run in found if run.phase is not RunPhase.COMPLETED]
        if found and not unfinished:
            raise UserError(f"{name} is complete, there is nothing to cancel")
        here = [run for run in unfinished if run.process is not None]
        problems = [problem for run in here if (problem := stop_local(run)) is not None]
        runs = [run for run in unfinished if run.process is None]
        jobs = live_jobs(runs)
        if not jobs and not here:
            words = " or ".join(sorted({run.word for run in runs}))
            what = f"{name} is neither queued nor running, but {words}: nothing is left to cancel"
            raise UserError(what, f"{installation.command('why', name)} shows more")
        if jobs:
            scancel(jobs, record)
        for run in runs:
            if run.run_dir in jobs:
                end_pending(run, jobs[run.run_dir].values())
    ended = [run.run_dir.run_id for run in unfinished if run in here or run.run_dir in jobs]
    if not problems:
        answer.give(run_ids=ended, job_ids=[job for ids in jobs.values() for job in ids])
    if name not in [run_dir.run_id for run_dir in run_dirs]:
        number = len(jobs) + len(here) - len(problems)
        print(f"{name}: {quantity(number, 'point')} cancelled", flush=True)
        jobs = {}
    for ids in jobs.values():
        print(f"{name}: job {' and job '.join(ids)} cancelled")
    for problem in problems[1:]:
        print_line(str(problem))
    if problems:
        raise problems[0]
    return 0


def live_jobs(runs: Sequence[RunState]) -> dict[RunDir, dict[str, Job | None]]:
    """Return the jobs of runs that are queued or run, or of which Slurm gives no answer.

    By run, then by id. Prints of which other runs it is unknown whether their jobs live; raises
    that as UserError where no run has another job.
    """
    jobs_of: dict[RunDir, dict[str, Job | None]] = {}
    unknown: list[UserError | FailedError] = []
    for run in runs:
        lives = run.lives.items()
        if jobs := {job_id: life.job for job_id, life in lives if life.is_alive or life.is_silent}:
            jobs_of[run.run_dir] = jobs
        else:
            unknown += [state.unknown(run.run_dir, x) for _, x in lives if x.is_alive is None]
    if unknown and not jobs_of:
        raise unknown[0]
    for error in unknown:
        print_line(str(error))
    return jobs_of


def claim_patiently(
    stack: contextlib.ExitStack, run_dir: RunDir, record: BestEffort, wait_s: float
) -> None:
    """Claim a run until the end of the stack; print it if another command keeps the claim.

    wait_s: how long to wait for that command.
    """
    try:
        with record():
            stack.enter_context(hold_claim(run_dir, wait_s))
    except UserError as error:  # a job that its holder queues now is refused at its start
        print(f"cancel: continuing without the claim: {error}", file=sys.stderr)


def stop_local(run: RunState) -> UserError | FailedError | None:
    """Ask the process that runs this run to stop and save; returns why it was not asked."""
    owner, run_dir = run.process, run.run_dir
    assert owner is not None
    life = run_lock.life_of(owner)  # now: the pid may be another process's
    if life.is_alive is None:
        return state.unknown(run_dir, life)
    if not life.is_alive:
        return UserError(f"{run_dir.run_id}: process {owner.pid} has ended: nothing is stopped")
    os.kill(owner.pid, signal.SIGTERM)
    print(f"{run_dir.run_id}: stopping after this step and saving")
    return None


def scancel(jobs: Mapping[RunDir, Iterable[str]], record: BestEffort) -> None:
    """Mark runs as cancelled, and cancel all their Slurm jobs by one command.

    Raises: FailedError if scancel fails; then no run has a new mark.
    """
    ids = [job_id for of_run in jobs.values() for job_id in of_run]
    unmarked = [run_dir for run_dir in jobs if not files.exists(run_dir.cancelled)]
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    with block_signals():  # a mark without a scancel would end the run at its next start
        for run_dir, of_run in jobs.items():
            with record():  # before scancel: a job that starts meanwhile must find it
                files.write_atomic(run_dir.cancelled, f"{now}: jobs cancel: {' '.join(of_run)}\n")
        answer = run_scancel(*ids)
        if answer is None or answer.returncode != 0:
            for run_dir in unmarked:
                run_dir.cancelled.unlink(missing_ok=True)
            error = answer.stderr.strip() if answer else "scancel is missing or does not answer"
            raise FailedError(f"scancel {' '.join(ids)}: {error}")


def end_pending(run: RunState, jobs: Iterable[Job | None]) -> None:
    """Record the end of a run whose jobs were cancelled, if no batch script is left to record it.

    Such a job waited, or Slurm had begun to requeue it after the end of its attempt was recorded.
    """
    silent = job_state.WAITING | (job_state.ENDING if run.files.is_closed else frozenset())
    if any(job is None or job.state not in silent for job in jobs):
        return
    owner = run.files.owner
    try:
        end_cancelled(run.run_dir)
    except RecordError as error:  # the jobs are cancelled all the same
        print(f"cancel: the end of the run is not recorded: {error}", file=sys.stderr)
    if owner is not None:  # of an earlier start of a job that had been requeued
        run_lock.release(run.run_dir, owner)
