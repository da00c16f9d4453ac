"""Submits a run directory to Slurm: the same batch script as `sbatch slurm/ddp.sbatch`, by argv.

Options travel as arguments, never as text in the script: a newline in an `#SBATCH` line would
end it and run the rest. submitit's executor runs sbatch and reads the job id; nothing of ours
runs under submitit inside the job (it swallows the SIGTERM of a preemption).
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs import runs, slurm
from jobs.errors import FailedError
from jobs.rundir import RunDir, Timeline, write_json
from jobs.spec import Spec

if TYPE_CHECKING:
    from submitit import SlurmExecutor

SCRIPT = Path("slurm/ddp.sbatch")
CLIENT_VARIABLES = ("SLURM_CONF", "SLURM_JWT")


def sbatch_options(spec: Spec, run_dir: RunDir) -> list[str]:
    """sbatch's options for a run, one argument each. Source: sbatch(1)."""
    values: dict[str, str | int | float | bool | None] = {
        "job-name": spec.name,
        "nodes": spec.slurm.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": spec.slurm.cpus_per_task,
        # Some sites reject a request for no GPUs.
        "gpus-per-node": spec.slurm.gpus_per_node or None,
        "time": spec.slurm.time,
        "partition": spec.slurm.partition,
        "account": spec.slurm.account,
        "qos": spec.slurm.qos,
        "mem": spec.slurm.mem,
        "constraint": spec.slurm.constraint,
        "exclude": spec.slurm.exclude,
        "signal": f"USR1@{spec.slurm.signal_lead_s}",
        "requeue": True,
        "open-mode": "append",
        # A relative output path, because sbatch replaces %-patterns in it and a run's name may
        # hold a percent sign.
        "chdir": str(run_dir.path),
        "output": run_dir.job_log.name,
        **{key.replace("_", "-"): value for key, value in spec.slurm.extra.items()},
    }
    # By identity: 0 is a value, as in --nice=0, and equals False.
    chosen = {k: value for k, value in values.items() if value is not None and value is not False}
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in chosen.items()]


def sbatch_argv(spec: Spec, run_dir: RunDir) -> list[str]:
    """The command line that queues a run directory."""
    script = run_dir.code / SCRIPT
    return ["sbatch", *sbatch_options(spec, run_dir), str(script), str(run_dir.path)]


def queue(spec: Spec, run_dir: RunDir) -> str:
    """Queue the run and write down how; returns the job id.

    Raises: FailedError; then nothing is queued.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    argv = sbatch_argv(spec, run_dir)
    write_json(run_dir.command, {"argv": argv, "job_id": None})
    said = io.StringIO()
    try:
        with uninterrupted(), outside_of_any_job(), contextlib.redirect_stderr(said):
            job_id = make_executor(argv, run_dir)._submit_command("").job_id
    except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as error:
        failed = getattr(error, "__cause__", None)
        code = getattr(failed, "returncode", None)
        text = said.getvalue().strip() or str(error)
        refused = f"Slurm refused the job (exit code {code}), nothing is queued"
        hint = "  hint: --cluster local (make: FLAGS='--cluster local') runs right here instead"
        raise FailedError(f"{refused}\n{shlex.join(argv)}\n{text}\n{hint}") from error
    try:
        write_json(run_dir.command, {"argv": argv, "job_id": job_id})
        runs.remember(run_dir, job_id)
    except OSError as error:
        slurm.call(["scancel", job_id])
        raise FailedError(f"job {job_id} is cancelled, it cannot be noted: {error}") from error
    Timeline(run_dir, "submit").event("submit", job_id=job_id)
    return str(job_id)


def make_executor(argv: list[str], run_dir: RunDir) -> SlurmExecutor:
    """submitit's Slurm executor, submitting `argv` as it is."""
    from submitit import SlurmExecutor

    class Executor(SlurmExecutor):
        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return Path(argv[-2]).read_text(encoding="utf-8")  # the record that submitit keeps

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return argv

    return Executor(run_dir.submitit)


@contextlib.contextmanager
def outside_of_any_job() -> Iterator[None]:
    """Hide an enclosing job's variables from sbatch, which would take them for options."""
    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    from submitit.helpers import clean_env

    # They say which Slurm, and who asks; clean_env takes them for a job's variables.
    kept = {name: os.environ[name] for name in CLIENT_VARIABLES if name in os.environ}
    with clean_env():
        os.environ.update(kept)
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C: half-way through nobody could tell whether the job is queued."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class Verdict:
    """What `sbatch --test-only` says of a job."""

    is_accepted: bool
    text: str


def test_only(spec: Spec, run_dir: RunDir, script: Path) -> Verdict | None:
    """Ask Slurm whether it would take the job; None where there is no sbatch."""
    options = sbatch_options(spec, run_dir)
    with outside_of_any_job():
        answer = slurm.call(["sbatch", "--test-only", *options, str(script), str(run_dir.path)])
    if answer is None:
        return None
    return Verdict(answer.returncode == 0, (answer.stderr + answer.stdout).strip())
