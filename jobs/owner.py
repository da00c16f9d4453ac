"""Who writes into a run directory: one job at a time, by an exclusively created `owner.json`.

Locks are not to be trusted on network file systems; a hard link that must not exist yet is.
Whether an owner is stale is asked of Slurm (or of the local kernel), never of clocks.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs import slurm
from jobs.errors import UserError
from jobs.rundir import RunDir, read_json, write_json


class OwnedError(UserError):
    """Another job owns the run directory; the text says which, and the way out."""


@dataclass(frozen=True)
class Owner:
    """A job that may write: a Slurm job by its id, a local one by host, pid and its start."""

    job_id: str
    host: str
    pid: int
    pid_start: str

    @property
    def is_local(self) -> bool:
        return self.job_id.startswith("local-")


def this_process(job_id: str | None) -> Owner:
    """The owner that this process stands for; without a job id a local one."""
    return process(os.getpid(), job_id)


def process(pid: int, job_id: str | None = None) -> Owner:
    """The owner that a process of this host stands for."""
    host = socket.gethostname()
    return Owner(job_id or f"local-{host}-{pid}", host, pid, start_of(pid))


def start_of(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def is_alive(owner: Owner) -> bool | None:
    """Whether the owner may still write; None where nobody can tell from here."""
    if not owner.is_local:
        return slurm.is_alive(owner.job_id)
    if owner.host != socket.gethostname():
        return None
    return start_of(owner.pid) == owner.pid_start


def read(run_dir: RunDir) -> Owner | None:
    """The present owner, alive or not."""
    record = read_json(run_dir.owner)
    return None if record is None else _owner(record)


def _owner(record: dict[str, Any]) -> Owner:
    return Owner(**{name: record[name] for name in Owner.__dataclass_fields__})


def claim(run_dir: RunDir, me: Owner, attempt: int) -> None:
    """Make `me` the owner for an attempt; a dead owner is replaced.

    Raises: OwnedError if another job may still write.
    """
    record = asdict(me) | {"attempt": attempt}
    if _create(run_dir, record):
        return
    present = read_json(run_dir.owner)
    if present is not None and _owner(present).job_id != me.job_id:
        _evict(run_dir, present, me)
    if present is not None and _owner(present).job_id == me.job_id:
        write_json(run_dir.owner, record)
    elif not _create(run_dir, record):
        raise OwnedError(f"{run_dir.path}: another job took this run just now")


def is_owned(run_dir: RunDir, me: Owner, attempt: int) -> bool:
    """Whether this attempt of this job still owns the run: no newer one took it."""
    present = read_json(run_dir.owner)
    return present is not None and (present["job_id"], present["attempt"]) == (me.job_id, attempt)


def release(run_dir: RunDir, me: Owner) -> None:
    """Give the run up, if it is still ours."""
    present = read(run_dir)
    if present is not None and present.job_id == me.job_id:
        run_dir.owner.unlink(missing_ok=True)


def _create(run_dir: RunDir, record: dict[str, Any]) -> bool:
    """Create owner.json with its whole content at once; False if there is one already."""
    mine = run_dir.owner.with_name(f".owner-{record['job_id']}.json")
    write_json(mine, record)
    try:
        os.link(mine, run_dir.owner)
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return True


def _evict(run_dir: RunDir, present: dict[str, Any], me: Owner) -> None:
    """Move a dead owner's file aside.

    Raises: OwnedError if that owner lives, or nobody can tell.
    """
    other = _owner(present)
    alive = is_alive(other)
    if alive is not False:
        state = "is still running it" if alive else f"owned it on {other.host}, and may run still"
        way_out = f"cancel job {other.job_id} first" if alive else f"if not, delete {run_dir.owner}"
        raise OwnedError(f"{run_dir.path}: job {other.job_id} {state}\n  hint: {way_out}")
    aside = run_dir.owner.with_name(f".owner-evicted-by-{me.job_id}.json")
    with contextlib.suppress(FileNotFoundError):  # somebody else is evicting it right now
        os.replace(run_dir.owner, aside)
    moved = read_json(aside)
    if moved is not None and moved != present:  # somebody evicted it before us and is the owner
        with contextlib.suppress(FileExistsError):
            os.link(aside, run_dir.owner)
    aside.unlink(missing_ok=True)
    if moved != present:
        raise OwnedError(f"{run_dir.path}: another job took this run just now")
