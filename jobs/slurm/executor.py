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
    """sbatch failed. message: what it printed; the text has its command line, too."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(text)
        self.message = message


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
    Raises: SubmissionError; then nothing is queued, or its text says that this is not known.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    class Executor(SlurmExecutor):
        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return list(argv)

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return Path(argv[-2]).read_text(encoding="utf-8")

    messages = io.StringIO()
    try:
        # submitit prints sbatch's error, and gives sbatch the environment of this process.
        with (
            _process_environment(environ),
            contextlib.redirect_stderr(messages),
            client.say_if_slow(argv[0]),
        ):
            return str(Executor(folder)._submit_command("").job_id)
    except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as error:
        code = getattr(error.__cause__, "returncode", None)
        text = messages.getvalue().strip() or str(error)
        what = _what_failed(code, text)
        raise SubmissionError(f"{what}\n{shlex.join(argv)}\n{text}", text) from error


def _what_failed(code: int | None, text: str) -> str:
    """Whether Slurm refused the job or did not answer. text: sbatch's messages."""
    if client.NO_ANSWER_IN_TIME.search(text):
        seen = "if squeue --me shows it, cancel it; then try again"
        return f"Slurm did not answer in time and may have queued the job: {seen}"
    if client.NO_CONTACT.search(text):
        return "Slurm does not answer, nothing is queued"
    return f"Slurm refused the job (exit code {code}), nothing is queued"


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
