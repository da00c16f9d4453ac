"""Submits an sbatch command line through submitit's executor. Only this file uses submitit.

Its public `submit(function)` does not serve: it pickles a Python function and runs it in the job
under submitit, which swallows the SIGTERM of a preemption. So this file calls `_submit_command` of
submitit 1.5.4, and replaces the script, the command line and the reading of the job id. submitit
writes options as `#SBATCH` lines into a file: a newline in such a line would end it, and the shell
would run the rest. In our command line each option is one argument (`jobs.slurm.sbatch`).

A job queues its successor with the standard library alone, by `jobs.slurm.sbatch.submit`.
"""

import contextlib
import io
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.errors import FailedError
from . import ask
from .job import run_scancel
from .sbatch import submitted_job


class SubmissionError(FailedError):
    """sbatch failed. message: what it printed; the text also has its command line."""

    def __init__(
        self, what: str, argv: Sequence[str], message: str, may_be_queued: bool = False
    ) -> None:
        then = "nothing is queued"
        if may_be_queued:
            then = (
                f"the job may be queued, so {argv[-1]} is kept: if squeue --me shows the job, it "
                "runs; if not, resume queues another one"
            )
        super().__init__(f"{what}, {then}\n{shlex.join(argv)}\n{message}")
        self.message = message
        self.may_be_queued = may_be_queued


def _executor(argv: Sequence[str], folder: Path, queued: list[str]) -> Any:
    """Return submitit's executor with our command line and script. queued: gets the job's id."""
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedSubmissionError

    class Executor(SlurmExecutor):
        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return list(argv)

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return Path(argv[-2]).read_text(encoding="utf-8")

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            if (job_id := submitted_job(str(string))) is None:
                raise FailedSubmissionError(string)
            queued.append(job_id)
            return job_id

    return Executor(folder)


def submit(argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> str:
    """Run an sbatch command line and return the job id.

    argv: as of `jobs.slurm.sbatch.sbatch_argv`, the batch script second to last.
    environ: the whole environment of sbatch, and so of the job.
    folder: exists; submitit writes its copy of the batch script there.
    Raises: SubmissionError; FailedError if the job was cancelled, because the disk is full.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    queued: list[str] = []
    messages, before = io.StringIO(), {**os.environ}
    try:
        # submitit prints sbatch's error, and gives sbatch the environment of this process.
        with contextlib.redirect_stderr(messages), ask.say_if_slow(argv[0]):
            _replace_environment({**environ})
            return str(_executor(argv, folder, queued)._submit_command("").job_id)
    except FailedSubmissionError as error:
        raise SubmissionError("sbatch's answer has no job id", argv, str(error), True) from error
    except (FailedJobError, RuntimeError, OSError) as error:
        if queued:
            raise cancel_unrecorded(queued[0], error) from error
        text = messages.getvalue().strip() or str(error)
        code = getattr(error.__cause__, "returncode", None)
        is_lost = ask.NO_ANSWER_IN_TIME.search(text) is not None
        what = "sbatch was not started" if code is None else "Slurm refused the job"
        if code is not None and code < 0:
            is_lost, what = True, "sbatch was killed or has crashed"
        elif is_lost or ask.NO_CONTACT.search(text):
            what = "Slurm does not answer"
        raise SubmissionError(what, argv, text, may_be_queued=is_lost) from error
    finally:
        _replace_environment(before)


def _replace_environment(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)


def cancel_unrecorded(job_id: str, error: OSError | RuntimeError) -> FailedError:
    """Cancel a job that could not be recorded, and return the error of its submission."""
    answer = run_scancel(job_id)
    if answer is not None and answer.returncode == 0:
        return FailedError(f"job {job_id} was cancelled: it could not be recorded: {error}")
    what = f"job {job_id} is queued and could not be recorded: {error}"
    failed = FailedError(what, f"scancel {job_id}: the kit could not cancel it")
    failed.may_be_queued = True
    return failed
