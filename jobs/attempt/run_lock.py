"""Who writes into a run directory: one job at a time, by an exclusively created `owner.json`.

Locks are not to be trusted on network file systems; a hard link that must not exist yet is.
Whether an owner is stale is asked of Slurm (or of the local kernel), never of clocks.

Every claim has a token of its own. Whoever wants to end a claim, to replace or to release it, first
creates its ticket, `.owner-after-<token>`: so nobody removes a claim that he did not read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs import records
from jobs.errors import FailedError, UserError
from jobs.procfs import start_of
from jobs.records import Claim
from jobs.rundir import RunDir
from jobs.slurm import client


class OwnedError(UserError):
    """Another job owns the run directory; the text says which, and the way out."""


@dataclass(frozen=True)
class Owner:
    """A job that may write: a Slurm job by its id, a local one by host, pid and its start.

    restart_count: a requeued job keeps its id, and its start before may still be alive on a node
    that was cut off.
    """

    job_id: str
    host: str
    pid: int
    pid_start: str
    restart_count: int = 0

    @property
    def is_local(self) -> bool:
        return self.job_id.startswith("local-")

    def is_same_start(self, other: Owner) -> bool:
        """Whether both are of one start of one job, in whichever of its processes."""
        return (self.job_id, self.restart_count) == (other.job_id, other.restart_count)


def this_process(job_id: str | None) -> Owner:
    """The owner that this process stands for; without a job id a local one."""
    return process(os.getpid(), job_id)


def process(pid: int, job_id: str | None = None) -> Owner:
    """The owner that a process of this host stands for."""
    host = socket.gethostname()
    restart_count = client.restart_count() if job_id else 0
    return Owner(job_id or f"local-{host}-{pid}", host, pid, start_of(pid), restart_count)


def is_alive(owner: Owner, patience_s: float = 0.0) -> bool | None:
    """Whether the owner may still write; None where nobody can tell from here."""
    if not owner.is_local:
        return client.is_alive(owner.job_id, patience_s)
    if owner.host != socket.gethostname():
        return None
    return start_of(owner.pid) == owner.pid_start


def read(run_dir: RunDir) -> Owner | None:
    """The present owner, alive or not."""
    present = read_claim(run_dir)
    return None if present is None else _owner(present)


def read_claim(run_dir: RunDir) -> Claim | None:
    """The present owner's claim; None without an owner."""
    return records.read(Claim, run_dir.owner)


def _owner(claim: Claim) -> Owner:
    return Owner(claim.job_id, claim.host, claim.pid, claim.pid_start, claim.restart_count)


def claim(run_dir: RunDir, me: Owner, attempt: int) -> None:
    """Make `me` the owner for an attempt; a dead owner is replaced.

    Raises: OwnedError if another job, or a later start of this one, may write.
    """
    mine = _claim(me, attempt)
    if _create(run_dir.owner, mine):
        return
    present = read_claim(run_dir)
    if present is None:
        raise _taken(run_dir)  # and released: only the next one to come is told to go on
    _refuse_living(run_dir, _owner(present), me)
    with _turn(run_dir, present, mine):
        records.write(run_dir.owner, mine)


def is_owned(run_dir: RunDir, me: Owner, attempt: int) -> bool:
    """Whether this attempt of this job still owns the run: no newer one took it."""
    present = read_claim(run_dir)
    return present is not None and (present.job_id, present.attempt) == (me.job_id, attempt)


def is_superseded(run_dir: RunDir, job_id: str, attempt: int) -> bool:
    """Whether another attempt has taken the run; not where the claim is merely gone."""
    present = read_claim(run_dir)
    return present is not None and (present.job_id, present.attempt) != (job_id, attempt)


def check_owned(run_dir: RunDir, me: Owner, attempt: int) -> None:
    """Raises OwnedError for an attempt that was superseded meanwhile."""
    if not is_owned(run_dir, me, attempt):
        raise OwnedError(f"{run_dir.path}: attempt {attempt} is superseded, nothing recorded")


def is_ours(run_dir: RunDir, me: Owner) -> bool:
    """Whether this start of this job owns the run, whatever the attempt."""
    present = read(run_dir)
    return present is not None and present.is_same_start(me)


def release(run_dir: RunDir, me: Owner) -> None:
    """Give the run up, if it is still ours."""
    present = read_claim(run_dir)
    if present is not None and _owner(present).is_same_start(me):
        with (
            contextlib.suppress(OwnedError),
            _turn(run_dir, present, _claim(me, present.attempt)),
        ):
            run_dir.owner.unlink()


def _claim(me: Owner, attempt: int) -> Claim:
    return Claim(**asdict(me), attempt=attempt, token=secrets.token_hex(8))


def _refuse_living(run_dir: RunDir, other: Owner, me: Owner) -> None:
    """Raises OwnedError if that owner lives, or nobody can tell, or it is our own later start."""
    if other.job_id == me.job_id:
        if other.restart_count > me.restart_count:
            raise OwnedError(f"{run_dir.path}: job {me.job_id} was started again meanwhile")
        return
    # Nobody starts a job again that gives up here; a person at a terminal can try again.
    alive = is_alive(other, 0.0 if me.is_local else client.PATIENCE_S)
    if alive is not False:
        state = "is still running it" if alive else f"owned it on {other.host}, and may run still"
        way_out = f"cancel job {other.job_id} first" if alive else f"if not, delete {run_dir.owner}"
        raise OwnedError(f"{run_dir.path}: job {other.job_id} {state}\n  hint: {way_out}")


@contextlib.contextmanager
def _turn(run_dir: RunDir, present: Claim, mine: Claim) -> Iterator[None]:
    """A block in which nobody else may replace or remove the claim `present`.

    Raises: OwnedError if it is another's turn, or `present` is no longer the owner's claim.
    """
    tickets = [_ticket(run_dir, present)]
    while not _create(tickets[-1], mine):
        holder = records.read(Claim, tickets[-1])
        if holder is None or not _may_inherit(_owner(holder), _owner(mine)):
            raise _taken(run_dir)
        tickets.append(_ticket(run_dir, holder))  # it died before its turn was over
    try:
        if read_claim(run_dir) != present:
            raise _taken(run_dir)
        yield
    except BaseException:
        tickets[-1].unlink()  # only our own: the turn of one that died still waits for an heir
        raise
    # After the turn nobody can make use of them: `present` does not come back.
    for ticket in reversed(tickets):
        ticket.unlink(missing_ok=True)


def _may_inherit(holder: Owner, me: Owner) -> bool:
    """Whether the turn of `holder` is ours: it is dead, or was of an earlier start of our job."""
    if holder.job_id == me.job_id:
        return holder.restart_count <= me.restart_count
    return is_alive(holder) is False


def _ticket(run_dir: RunDir, claim: Claim) -> Path:
    return run_dir.owner.with_name(f".owner-after-{claim.token}")


def _taken(run_dir: RunDir) -> OwnedError:
    return OwnedError(f"{run_dir.path}: another job took this run just now")


def _create(path: Path, mine: Claim) -> bool:
    """Create a file with its whole content at once; False if there is one already."""
    temporary = path.with_name(f".owner-{mine.token}.json")
    records.write(temporary, mine)
    try:
        os.link(temporary, path)  # not a rename, which would replace another process's file
    except FileExistsError:
        # An NFS server's answer may be lost: then the link is there, and the repeated call fails.
        return records.read(Claim, path) == mine
    finally:
        temporary.unlink()
    return True


@contextlib.contextmanager
def told_in_one_line(run_dir: RunDir, me: Owner) -> Iterator[None]:
    """A block in which a disk that fails ends this run's work here, not with a traceback.

    Raises: FailedError for any OSError, once the run is given up as far as the disk allows.
    """
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            release(run_dir, me)
        raise FailedError(
            f"{error.filename or run_dir.path}: {error.strerror or error}; cannot record what "
            "happens to the run\n"
            "  hint: mend that, then make resume goes on from the last checkpoint"
        ) from error
