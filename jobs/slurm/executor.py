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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_job_kit.jobs.errors import FailedError
from slurm_job_kit.jobs.slurm import client


class SubmissionError(FailedError):
    """sbatch failed. message: what it printed; the text also has its command line."""

    def __init__(
        self, what: str, argv: Sequence[str], message: str, may_be_queued: bool = False
    ) -> None:
        if may_be_queued:
            then = "the job may be queued: if squeue --me shows it, cancel it"
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


def submit(argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> str:
    """Run an sbatch command line and return the job id.

    argv: as of `jobs.slurm.sbatch.sbatch_argv`, the batch script second to last.
    environ: the whole environment of sbatch, and so of the job.
    folder: exists; submitit writes its copy of the batch script there.
    Raises: SubmissionError, with whether the job may be queued all the same; FailedError if the job
        was cancelled again, because the disk is full.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    queued: list[str] = []

    class Executor(SlurmExecutor):
        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return list(argv)

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return Path(argv[-2]).read_text(encoding="utf-8")

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            queued.append(SlurmExecutor._get_job_id_from_submission_command(string))
            return queued[0]

    messages = io.StringIO()
    try:
        # submitit prints sbatch's error, and gives sbatch the environment of this process.
        with (
            _process_environment(environ),
            contextlib.redirect_stderr(messages),
            client.say_if_slow(argv[0]),
        ):
            return str(Executor(folder)._submit_command("").job_id)
    except FailedSubmissionError as error:
        raise SubmissionError("sbatch printed no job id", argv, str(error), True) from error
    except (FailedJobError, RuntimeError, OSError) as error:
        if queued:
            client.cancel(*queued)
            raise FailedError(
                f"job {queued[0]} was cancelled: it could not be recorded: {error}"
            ) from error
        code = getattr(error.__cause__, "returncode", None)
        text = messages.getvalue().strip() or str(error)
        raise _failure(argv, code, text) from error


def _failure(argv: Sequence[str], code: int | None, text: str) -> SubmissionError:
    """The error of an sbatch that failed. code: its exit code; None if it was not started."""
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
