"""Lets one job at a time write to a run directory: the owner, whose claim is `owner.json`.

File locks are unreliable on network file systems. Creating a hard link is reliable: it fails if
the name exists. Slurm answers whether an owner still runs, or the local kernel for a local run.
Clocks are not compared.

Each claim has its own token. To replace or remove a claim, a process must first create the claim's
change lock, the file `.owner-after-<token>`, in the same exclusive way. So one process only can
change a claim, and it can change only the claim that it has read.
"""

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ..base import files, installation
from ..base.console import user_name
from ..base.errors import FailedError, UserError
from ..base.procfs import may_be_same, start_of
from ..contract import records
from ..contract.known_causes import way_out
from ..contract.records.queued import Claim
from ..contract.records.queued import Owner as Owner
from ..contract.rundir import RunDir
from ..slurm import ask, job_list
from ..slurm.job import restart_count
from ..slurm.job_list import Liveness


class OwnedError(UserError):
    """Another job owns the run directory; the text names the job and has a hint."""


def this_process(job_id: str | None) -> Owner:
    """Return the owner for this process; without a job id a local one."""
    return process(os.getpid(), job_id)


def process(pid: int, job_id: str | None = None) -> Owner:
    """Return the owner for a process of this host."""
    host = socket.gethostname()
    restarts = restart_count() if job_id else 0
    cluster = os.environ.get("SLURM_CLUSTER_NAME") if job_id else None
    name = job_id or f"local-{host}-{pid}"
    return Owner(name, host, pid, start_of(pid), restarts, os.getuid(), cluster)


def life_of(owner: Owner, patience_s: float = 0.0) -> Liveness:
    """Return whether the owner may still write, and why that is unknown where it is."""
    if not owner.is_local:
        return job_list.life_of(owner.job, patience_s)
    if owner.host != socket.gethostname():
        why = f"this host cannot find out whether process {owner.pid} on {owner.host} still runs"
        return Liveness(None, why, f"use {owner.host}")
    is_alive = may_be_same(start_of(owner.pid), owner.pid_start)
    if is_alive or owner.uid in (None, os.getuid()):
        return Liveness(is_alive)
    user = f"user {user_name(owner.uid)}"
    why = f"process {owner.pid} here is of {user}, and may be hidden"
    return Liveness(None, why, f"ask {user}")


def read(run_dir: RunDir) -> Claim | None:
    """Return the claim of the current owner, which may be dead; None without an owner."""
    return records.read(Claim, run_dir.owner)


def claim(run_dir: RunDir, me: Owner, attempt: int) -> None:
    """Make `me` the owner for an attempt; replaces a dead owner.

    Raises: OwnedError if another job, or a later start of this one, may write.
    """
    mine, current = _new_claim(me, attempt), read(run_dir)
    if current is None:
        with _file_of(run_dir, mine) as file:
            if _link(file, run_dir.owner, mine):
                return
        current = read(run_dir)
    if current is None:
        # The owner released the run after our _link() and before our read: refuse, although a new
        # try would succeed.
        raise _lost_race(run_dir)
    _refuse_if_alive(run_dir, current, me)
    with _change_lock(run_dir, current, mine) as lock:
        try:
            os.replace(lock, run_dir.owner)  # the lock file holds this process's claim
        except FileNotFoundError:
            # The answer of an NFS server was lost, and the client's repeated call failed.
            if read(run_dir) != mine:
                raise
        files.fsync_directory(run_dir.path)


def is_superseded(run_dir: RunDir, job_id: str, attempt: int) -> bool:
    """Return whether another attempt has claimed the run; False if there is no claim at all."""
    current = read(run_dir)
    return current is not None and (current.job_id, current.attempt) != (job_id, attempt)


def check_owned(run_dir: RunDir, me: Owner, attempt: int) -> None:
    """Raises OwnedError for an attempt that no longer owns the run."""
    current = read(run_dir)
    if current is None or (current.job_id, current.attempt) != (me.job_id, attempt):
        raise OwnedError(f"{run_dir.path}: attempt {attempt} is superseded, nothing recorded")


def is_owned_by_start(run_dir: RunDir, me: Owner) -> bool:
    """Return whether this start of this job owns the run, with any of its attempts."""
    current = read(run_dir)
    return current is not None and current.is_same_start(me)


def release(run_dir: RunDir, me: Owner) -> None:
    """Remove the claim if it belongs to this start of this job."""
    current = read(run_dir)
    if current is not None and current.is_same_start(me):
        mine = _new_claim(me, current.attempt)
        with contextlib.suppress(OwnedError), _change_lock(run_dir, current, mine) as lock:
            run_dir.owner.unlink()
            lock.unlink(missing_ok=True)


def _new_claim(me: Owner, attempt: int) -> Claim:
    return Claim(**asdict(me) | {"attempt": attempt, "token": secrets.token_hex(8)})


def _refuse_if_alive(run_dir: RunDir, other: Owner, me: Owner) -> None:
    """Raises OwnedError if `other` may be alive, or is a later start of our own job."""
    if other.job_id == me.job_id:
        if me.is_restarted_as(other):
            raise OwnedError(f"{run_dir.path}: job {me.job_id} was started again meanwhile")
        return
    # A job that is refused here ends, and nothing starts it again: ask Slurm patiently. A person at
    # a terminal can try again.
    life = life_of(other, 0.0 if me.is_local else ask.PATIENCE_S)
    if life.is_alive:
        state, hint = "is still running it", f"cancel {run_dir.run_id} first"
    elif life.is_alive is None:
        state = f"owns it on {other.host}, and {life.why}"
        hint = f"{life.hint}; if it has ended, delete {run_dir.owner}"
    else:
        return
    raise OwnedError(f"{run_dir.path}: job {other.job_id} {state}\n  hint: {hint}")


@contextlib.contextmanager
def _change_lock(run_dir: RunDir, current: Claim, mine: Claim) -> Iterator[Path]:
    """Run a block in which no other process may replace or remove the claim `current`.

    Yields: the lock file, which holds the claim `mine`. The block renames or removes it as the last
    change that it makes.

    Each lock file holds a claim, too. If the process that created a lock is dead, its claim has a
    change lock in turn, and this process creates that one.

    Raises: OwnedError if a live process holds the lock, or `current` is not the claim any more.
    """
    locks = [_lock_path(run_dir, current)]
    with _file_of(run_dir, mine) as file:
        while not _link(file, locks[-1], mine):
            holder = records.read(Claim, locks[-1])
            if holder is None or not _may_take_over(holder, mine):
                raise _lost_race(run_dir)
            locks.append(_lock_path(run_dir, holder))  # `holder` died inside its block
    *abandoned, own = locks
    try:
        if read(run_dir) != current:
            raise _lost_race(run_dir)
        yield own
    except BaseException:
        # Only the lock of this process. The locks of dead processes stay, so that the next process
        # takes them over in the same order.
        own.unlink(missing_ok=True)
        raise
    # `current` is replaced, and its token is never used again: no process needs these locks.
    for lock in reversed(abandoned):
        lock.unlink(missing_ok=True)


def _may_take_over(holder: Owner, me: Owner) -> bool:
    """Return whether `me` gets the lock: `holder` is dead or the same job's, of no later start."""
    if holder.job_id == me.job_id:
        return holder.restart_count <= me.restart_count
    return life_of(holder).is_alive is False


def _lock_path(run_dir: RunDir, claim: Claim) -> Path:
    return run_dir.owner.with_name(f".owner-after-{claim.token}")


def _lost_race(run_dir: RunDir) -> OwnedError:
    return OwnedError(f"{run_dir.path}: another job took this run just now")


@contextlib.contextmanager
def _file_of(run_dir: RunDir, mine: Claim) -> Iterator[Path]:
    """Run a block with a durable file of a claim, under a name that only this process uses."""
    file = run_dir.owner.with_name(f".owner-{mine.token}.json")
    try:
        files.write_durable(file, records.text(mine))
        yield file
    finally:
        file.unlink(missing_ok=True)


def _link(file: Path, path: Path, mine: Claim) -> bool:
    """Create `path` with the content of `file` in one step; False if it exists already."""
    try:
        os.link(file, path)  # not a rename, which would replace another process's file
    except FileExistsError:
        # The answer of an NFS server may be lost: then the first call made the link, and the
        # client's repeated call fails.
        return records.read(Claim, path) == mine
    return True


@contextlib.contextmanager
def release_on_disk_error(run_dir: RunDir, me: Owner) -> Iterator[None]:
    """Run a block after whose OSError the run is released and the user gets one line, no traceback.

    Raises: FailedError for any OSError. If the disk does not allow the release, the claim stays.
    """
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            release(run_dir, me)
        what = f"{error.filename or run_dir.path}: {error.strerror or error}"
        hint = f"{way_out(error) or 'repair the disk'}; then {installation.command('resume')} "
        hint += "continues from the last checkpoint"
        raise FailedError(f"{what}; cannot record what happens to the run", hint) from error
