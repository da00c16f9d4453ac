"""Submits an sbatch command line through submitit's executor. Only this file uses submitit.

submitit runs sbatch and reads the job id. Its public `submit(function)` does not serve: it pickles
a Python function and runs it in the job under submitit, which swallows the SIGTERM of a preemption.
So this file uses three private methods of `SlurmExecutor` (submitit 1.5.4):

- `_make_submission_command`, replaced: submitit's is `sbatch FILE`, with the options as `#SBATCH`
  lines in FILE. A newline in such a line would end it, and the shell would run the rest. Ours is
  the command line of `jobs.slurm.sbatch`, with each option as one argument.
- `_make_submission_file_text`, replaced: submitit's is a batch script that starts submitit. Ours is
  a copy of the frozen batch script; submitit keeps it in its folder.
- `_submit_command`, called: writes that file, runs the command and reads the job id.

Only the commands of a user import submitit. A job queues its successor with the
standard library alone, by `jobs.slurm.client.submit`, from the same command line.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shlex
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..console import print_line
from ..errors import FailedError
from . import client, job_list

FIND_S = 10.0  # how long squeue is asked for a job whose id sbatch did not print


class SubmissionError(FailedError):
    """sbatch failed. message: what it printed; the text also has its command line."""

    def __init__(
        self, what: str, argv: Sequence[str], message: str, may_be_queued: bool = False
    ) -> None:
        if may_be_queued:
            then = (
                f"the job may be queued, so {argv[-1]} is kept: if squeue --me shows the job, it "
                "runs; else resume queues another one"
            )
        else:
            then = "nothing is queued"
        super().__init__(f"{what}, {then}\n{shlex.join(argv)}\n{message}")
        self.message = message
        self.may_be_queued = may_be_queued


def begin_import() -> None:
    """Begin to import submitit in a thread, while this process waits for git and Slurm.

    submitit imports asyncio: that takes longer than to freeze the code. `submit` waits for the end
    of the import and raises its error.
    """

    def load() -> None:
        with contextlib.suppress(Exception):
            importlib.import_module("submitit")

    threading.Thread(target=load, name="import submitit").start()


def _executor(argv: Sequence[str], folder: Path, others: Collection[str], queued: list[str]) -> Any:
    """Return submitit's executor with our command line, script and reader of sbatch's answer.

    queued: gets the id of the job.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedSubmissionError

    class Executor(SlurmExecutor):
        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return list(argv)

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return Path(argv[-2]).read_text(encoding="utf-8")

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            text = string if isinstance(string, str) else string.decode(errors="replace")
            job_id = client.submitted_job(text, find=lambda ids: _in_queue(argv, others, ids))
            if job_id is None:
                raise FailedSubmissionError(text)
            queued.append(job_id)
            return job_id

    return Executor(folder)


def submit(
    argv: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    others: Collection[str] = (),
) -> str:
    """Run an sbatch command line and return the job id.

    argv: as of `jobs.slurm.sbatch.sbatch_argv`, the batch script second to last.
    environ: the whole environment of sbatch, and so of the job.
    folder: exists; submitit writes its copy of the batch script there.
    others: older jobs of the same run or sweep, should the id have to be looked up in the queue.
    Raises: SubmissionError, with whether the job may be queued all the same; FailedError if the job
        was cancelled again, because the disk is full.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    queued: list[str] = []
    messages = io.StringIO()
    try:
        # submitit prints sbatch's error, and gives sbatch the environment of this process.
        with (
            _process_environment(environ),
            contextlib.redirect_stderr(messages),
            client.say_if_slow(argv[0]),
        ):
            return str(_executor(argv, folder, others, queued)._submit_command("").job_id)
    except FailedSubmissionError as error:
        raise SubmissionError("sbatch's answer has no job id", argv, str(error), True) from error
    except (FailedJobError, RuntimeError, OSError) as error:
        if queued:
            raise cancel_unrecorded(queued[0], error) from error
        text = messages.getvalue().strip() or str(error)
        # A wrapper of the site may fail after sbatch; an answer may be lost behind the request.
        job_id = client.submitted_job("", str(getattr(error.__cause__, "output", "")))
        if job_id is None and client.NO_ANSWER_IN_TIME.search(text):
            job_id = _in_queue(argv, others)
        if job_id is None:
            raise _failure(argv, getattr(error.__cause__, "returncode", None), text) from error
        print_line(f"job {job_id} is queued, but sbatch failed: {text}")
        return job_id


def cancel_unrecorded(job_id: str, error: OSError | RuntimeError) -> FailedError:
    """Cancel a job that could not be recorded, and return the error of its submission."""
    answer = client.cancel(job_id)
    if answer is not None and answer.returncode == 0:
        return FailedError(f"job {job_id} was cancelled: it could not be recorded: {error}")
    failed = FailedError(
        f"job {job_id} is queued and could not be recorded: {error}\n"
        f"  hint: scancel {job_id}: the kit could not cancel it"
    )
    failed.may_be_queued = True
    return failed


def _in_queue(
    argv: Sequence[str], others: Collection[str], ids: Collection[str] = ()
) -> str | None:
    """Return the job of an sbatch command line whose answer cannot be read, from squeue."""
    folder = next((each[8:] for each in argv if each.startswith("--chdir=")), argv[-1])
    return job_list.newest_in(Path(folder), FIND_S, others) or job_list.one_in(Path(folder), ids)


def _failure(argv: Sequence[str], code: int | None, text: str) -> SubmissionError:
    """Return the error of a failed sbatch. code: its exit code; None if it was not started."""
    if client.NO_ANSWER_IN_TIME.search(text):
        return SubmissionError("Slurm does not answer", argv, text, may_be_queued=True)
    if client.NO_CONTACT.search(text):
        return SubmissionError("Slurm does not answer", argv, text)
    what = "sbatch was not started" if code is None else f"Slurm refused the job (exit code {code})"
    return SubmissionError(what, argv, text)


@contextlib.contextmanager
def _process_environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Run the block with `environ` as the environment of this process."""
    before, after = dict(os.environ), dict(environ)
    os.environ.clear()
    os.environ.update(after)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
