"""Runs notify.command of the spec once a run has ended. Standard library only.

The command is a shell line of the user's spec, like the lines of setup, and runs as the user. What
it does or fails to do changes nothing: the end of the run is recorded before.
"""

import contextlib
import os
import signal
import subprocess

from ...base.console import STDERR, print_line
from ...base.stop_signals import end_at_stop_signals
from ...contract.records.training import Result
from ...contract.rundir import RunDir
from ...runs.facts import AttemptFacts
from ...runs.run_lock import Owner

LIMIT_S = 30.0


def end(run_dir: RunDir, facts: AttemptFacts, me: Owner | None) -> None:
    """Run the command of the spec, if it has one, for this result, and for LIMIT_S at most."""
    command = facts.spec.notify.command
    if command is None or facts.result is None:
        return
    if problem := _run(command, run_dir, facts.result):
        print_line(f"notify.command {problem}; the run is not affected")


def _run(command: str, run_dir: RunDir, result: Result) -> str:
    """Run a command for LIMIT_S at most; returns what went wrong, or an empty text."""
    environ = {
        "KIT_RUN_ID": run_dir.run_id,
        "KIT_RUN_DIR": str(run_dir.path),
        "KIT_STATE": result.status,
        "KIT_REASON": result.reason or "",
    }
    try:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=run_dir.path,
            env=os.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=STDERR,  # to job.log; the stdout of a local run may be JSON
            stderr=STDERR,
            start_new_session=True,
            preexec_fn=end_at_stop_signals,  # `timeout 5 curl ...` must end its command
        )
    except (OSError, ValueError) as error:
        return f"could not be started: {error}"
    try:
        status = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"was ended after {LIMIT_S:.0f} s"
    return f"failed with exit code {status}" if status else ""
