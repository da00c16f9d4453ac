"""Queues a run directory in Slurm, with the batch script that plain sbatch uses."""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .. import hooks
from ..base import installation
from ..base.console import BestEffort
from ..base.environment import Program
from ..base.errors import FailedError
from ..contract import records
from ..contract.records.ended import read_attempts
from ..contract.records.queued import Submission
from ..contract.records.timeline import Timeline
from ..contract.rundir import RunDir
from ..contract.spec import Spec
from ..runs import lookup
from ..slurm import ask, executor, refusals
from ..slurm.cluster import expand_hostlist, record_settings
from ..slurm.sbatch import sbatch_argv
from .submit_claim import block_signals

LOCAL = f"{installation.option('--cluster local')} trains on this machine"


def queue(spec: Spec, run_dir: RunDir, before: Submission) -> str:
    """Queue the run and record sbatch's arguments; returns the job id.

    before: the run's submission so far.
    Raises: FailedError; then nothing is queued.
    """
    listed = expand_hostlist(spec.slurm.exclude or "")
    nodes = hooks.exclude(run_dir, spec, before, read_attempts(run_dir), listed)
    if {*nodes} != {*listed}:
        spec = replace(spec, slurm=replace(spec.slurm, exclude=",".join(nodes)))
    argv = sbatch_argv(spec, run_dir)
    if run_dir.job_log.is_symlink():  # of a job of plain sbatch: jobs.attempt.open
        run_dir.job_log.unlink()
    submission = replace(before, argv=tuple(argv))  # with the last job, if this one is refused
    records.write(run_dir.submission, submission)
    record = functools.partial(record_job, run_dir, submission, record_settings(run_dir).cluster)
    return call_sbatch(argv, run_dir.submitit, record)


def call_sbatch(argv: Sequence[str], folder: Path, record: Callable[[str], None]) -> str:
    """Queue a job or a job array, and record it; returns its id.

    folder: for submitit's copy of the batch script. record: writes the id into the run directories.
    Raises: FailedError; then nothing is queued.
    """
    argv, environ = hooks.launch_command(Program.SBATCH, argv, os.environ)
    with block_signals():
        try:
            job_id = executor.submit(argv, environ, folder)
        except executor.SubmissionError as error:
            if error.may_be_queued:
                raise
            hints = filter(None, (refusals.hint(error.message), LOCAL))
            raise FailedError(str(error), *hints) from error
        try:
            record(job_id)
        except OSError as error:
            raise executor.cancel_unrecorded(job_id, error) from error
    return job_id


def record_job(run_dir: RunDir, submission: Submission, cluster: str | None, job_id: str) -> None:
    """Record the job of a run. submission: with the command line that queues this run alone."""
    of_job = replace(submission, job_id=job_id, uid=os.getuid(), cluster=cluster)
    records.write(run_dir.submission, of_job)
    lookup.remember(run_dir, job_id)
    with BestEffort("submit")():
        Timeline(run_dir, "submit").event("submit", job_id=job_id)


def test_only(spec: Spec, run_dir: RunDir, script: Path | None = None) -> tuple[bool | None, str]:
    """Return whether Slurm would accept the job, and its words; None if sbatch does not answer.

    script: the batch script; by default the run directory's frozen one.
    """
    argv = sbatch_argv(spec, run_dir, script)
    argv, environ = hooks.launch_command(Program.SBATCH, argv, os.environ, spec)
    answer = ask.call([argv[0], "--test-only", *argv[1:]], environ)  # it queues nothing
    if answer is None or not ask.is_answered(answer):
        return None, ""
    return answer.returncode == 0, (answer.stderr + answer.stdout).strip()
