"""The claim under which one command at a time queues or cancels the jobs of a run.

Two `resume` at once would both find no job and queue one each. The claim is the file
`.submit-claim.json` in the run directory, created exclusively by the protocol of
`jobs.runs.run_lock`. It names host and process. A claim of a process that died is taken over on
its own host; on another host a process cannot be looked up, so there a user deletes the file.
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..base.errors import UserError
from ..contract.rundir import File, RunDir
from ..runs import ownership, run_lock

POLL_S = 0.2


@dataclass(frozen=True)
class _SubmitClaim(RunDir):
    """A run directory whose exclusively created file is the claim in place of owner.json."""

    owner = File(".submit-claim.json")


@contextlib.contextmanager
def hold_claim(run_dir: RunDir, wait_s: float = 0.0) -> Iterator[None]:
    """Run a block in which no other command queues or cancels a job of this run.

    `wait_s`: how long to wait for another command, in seconds.
    Raises: UserError for a run that is not this user's, and if another command still has the claim;
        OSError.
    """
    ownership.check(run_dir)
    claim, me = _SubmitClaim(run_dir.path), run_lock.this_process(None)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            run_lock.claim(claim, me, 0)
            break
        except run_lock.OwnedError as error:
            if time.monotonic() >= deadline:
                raise _refusal(claim) from error
        time.sleep(POLL_S)
    try:
        yield
    finally:
        # A claim that a failing disk leaves behind is taken over: its process is dead by then.
        with contextlib.suppress(OSError):
            run_lock.release(claim, me)


def _refusal(claim: _SubmitClaim) -> UserError:
    who, hint = "another command", "wait for it, then try again"
    if (holder := run_lock.read(claim)) is not None:
        who = f"process {holder.pid} on {holder.host}"
        if run_lock.life_of(holder).is_alive is None:
            hint += f"; if it has died, delete {claim.owner}"
    return UserError(f"{claim.run_id}: {who} is submitting or cancelling it\n  hint: {hint}")


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Run a block without Ctrl-C, SIGTERM, SIGHUP: no run directory lacks its queued job."""
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
