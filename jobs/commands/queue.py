"""Submits a run directory to Slurm with the batch script that plain sbatch uses.

Options are arguments of sbatch, never text in the script: a newline in an `#SBATCH` line would
end it, and the shell would run the rest. submitit's executor runs sbatch and reads the job id;
no part of the kit runs under submitit in the job (it swallows the SIGTERM of a preemption).
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs import records
from jobs.attempt import exclude_nodes
from jobs.commands.submit_claim import uninterrupted
from jobs.console import BestEffort, say
from jobs.errors import FailedError
from jobs.records import Submission
from jobs.rundir import RunDir, Timeline
from jobs.runs import lookup
from jobs.slurm import client, site, site_warnings
from jobs.slurm.sbatch import sbatch_argv, sbatch_options, without_job
from jobs.spec import Spec

if TYPE_CHECKING:
    from submitit import SlurmExecutor


def queue(spec: Spec, run_dir: RunDir) -> str:
    """Queue the run and record sbatch's arguments; returns the job id.

    Raises: FailedError; then nothing is queued.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    check_site(spec, run_dir)
    argv = sbatch_argv(exclude_nodes.without_bad_nodes(run_dir, spec), run_dir)
    records.write(run_dir.submission, Submission(tuple(argv)))
    messages = io.StringIO()
    with uninterrupted():
        try:
            with outside_of_any_job(), contextlib.redirect_stderr(messages):
                job_id = make_executor(argv, run_dir)._submit_command("").job_id
        except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as error:
            failed = getattr(error, "__cause__", None)
            code = getattr(failed, "returncode", None)
            text = messages.getvalue().strip() or str(error)
            refused = f"Slurm refused the job (exit code {code}), nothing is queued"
            hint = "  hint: --cluster local (make: FLAGS='--cluster local') trains on this machine"
            raise FailedError(f"{refused}\n{shlex.join(argv)}\n{text}\n{hint}") from error
        try:
            records.write(run_dir.submission, Submission(tuple(argv), job_id))
            lookup.remember(run_dir, job_id)
        except OSError as error:
            client.cancel(job_id)
            raise FailedError(f"job {job_id} is cancelled, recording it failed: {error}") from error
        with BestEffort("submit")():
            Timeline(run_dir, "submit").event("submit", job_id=job_id)
    return str(job_id)


def check_site(spec: Spec, run_dir: RunDir) -> None:
    """Print the warnings of this site, and record the site in the run directory.

    Raises: FailedError for a job that could never run there.
    """
    sites = site.look(spec.slurm)
    remarks = site_warnings.check(spec.slurm, sites, site_warnings.slowest_stop_s(run_dir))
    errors = [str(remark) for remark in remarks if remark.is_error]
    if errors:
        raise FailedError("nothing is queued, it could never run\n" + "\n".join(errors))
    for remark in remarks:
        say(remark.in_one_line)
    site_warnings.note(run_dir, spec.slurm, sites)


def show_site(spec: Spec) -> bool:
    """Print sites and warnings to stderr; False for a job that could never run there."""
    sites = site.look(spec.slurm)
    remarks = site_warnings.check(spec.slurm, sites)
    for line in [each.in_words() for each in sites] + [each.in_one_line for each in remarks]:
        print(line, file=sys.stderr)
    return not any(remark.is_error for remark in remarks)


def make_executor(argv: list[str], run_dir: RunDir) -> SlurmExecutor:
    """submitit's Slurm executor with `argv` as its whole sbatch command."""
    from submitit import SlurmExecutor

    class Executor(SlurmExecutor):
        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return Path(argv[-2]).read_text(encoding="utf-8")  # the record that submitit keeps

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return argv

    return Executor(run_dir.submitit)


@contextlib.contextmanager
def outside_of_any_job() -> Iterator[None]:
    """A block without the variables of an enclosing job, which sbatch would take for options."""
    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    before = dict(os.environ)
    hidden = before.keys() - without_job(before).keys() | {lookup.SUCCEEDS}
    for name in hidden:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.update(before)


@dataclass(frozen=True)
class Verdict:
    """The answer of `sbatch --test-only`."""

    is_accepted: bool
    text: str


def test_only(spec: Spec, run_dir: RunDir, script: Path) -> Verdict | None:
    """The answer of Slurm whether it would accept the job; None without sbatch."""
    options = sbatch_options(spec, run_dir)
    with outside_of_any_job():
        answer = client.test_only(["sbatch", *options, str(script), str(run_dir.path)])
    if answer is None:
        return None
    return Verdict(answer.returncode == 0, (answer.stderr + answer.stdout).strip())
