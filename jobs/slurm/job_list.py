"""Lists many jobs at once: squeue has those in the queue, sacct also those that are gone.

A missing answer is no exception, as in jobs.slurm.client. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_job_kit.jobs.slurm import duration, job_state
from slurm_job_kit.jobs.slurm.client import call

# The reason comes last: it may be any text.
QUEUE_FORMAT = "%i|%T|%S|%L|%D|%N|%r"


@dataclass(frozen=True)
class QueueEntry:
    """One job in Slurm's queue, from squeue; also one that ended in the last minutes."""

    state: str
    reason: str = "None"
    start: float | None = None  # seconds since the epoch; of a pending job the expected start
    left_s: int | None = None  # until the time limit; None without one
    num_nodes: int = 0
    nodes: str = ""  # as Slurm writes a list, n[1-2]; empty for a pending job


def queue(users: Iterable[int]) -> dict[str, QueueEntry] | None:
    """Return the jobs of these users (uids) by id; None if there is no squeue or no answer.

    A task of a job array has the id ARRAYJOB_TASK. All jobs of the users, because squeue fails as
    a whole if it does not know a single id. Source: squeue(1); %S of a pending job is the start
    that the backfill scheduler expects, which `squeue --start` prints, too.
    """
    of_users = f"--user={','.join(map(str, sorted(set(users))))}"
    columns = ("--noheader", "--array", "--states=all", f"--format={QUEUE_FORMAT}")
    answer = call(["squeue", *columns, of_users], SLURM_TIME_FORMAT="%s")
    if answer is None or answer.returncode != 0:
        return None
    rows = (line.split("|", 6) for line in answer.stdout.splitlines())
    return {row[0]: _queue_entry(row[1:]) for row in rows if len(row) == 7}


def _queue_entry(row: list[str]) -> QueueEntry:
    """The entry of a line of squeue, without its job id."""
    state, start, left, num_nodes, nodes, reason = row
    left_s = duration.parse_or_zero(left)
    return QueueEntry(
        state=job_state.read(state),
        reason=reason,
        start=float(start) if start.isdecimal() else None,
        left_s=left_s or None,
        num_nodes=int(num_nodes) if num_nodes.isdecimal() else 0,
        nodes=nodes,
    )


def job_states(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the state of each of the user's jobs that Slurm knows: from squeue, else sacct."""
    wanted = set(job_ids)
    if not wanted:
        return {}
    entries = queue([os.getuid()]) or {}
    states = {job_id: entry.state for job_id, entry in entries.items() if job_id in wanted}
    return states if len(states) == len(wanted) else past_states(sorted(wanted)) | states


@dataclass(frozen=True)
class QueuedJob:
    """One queued or running job: its working directory and its script with arguments."""

    job_id: str
    work_dir: str
    command: str


def queued_jobs() -> list[QueuedJob]:
    """The user's jobs that are queued or run; empty where squeue does not answer."""
    return known_queue() or []


def known_queue() -> list[QueuedJob] | None:
    """The user's jobs that are queued or run; None where squeue does not answer.

    Each task of an array is a job. Source: squeue(1), --array, %Z (working directory) and %o
    (command).
    """
    user = f"--user={os.getuid()}"
    answer = call(["squeue", "--noheader", "--array", user, "--format=%i|%Z|%o"])
    if answer is None or answer.returncode != 0:
        return None
    fields = [line.split("|", 2) for line in answer.stdout.splitlines()]
    return [QueuedJob(*values) for values in fields if len(values) == 3]


def past_states(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the state of each job in the accounting database; empty if the site has none.

    Source: sacct(1).
    """
    if shutil.which("sacct") is None:
        return {}
    columns = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State")
    answer = call(["sacct", *columns, f"--jobs={','.join(job_ids)}"])
    lines = answer.stdout.splitlines() if answer and answer.returncode == 0 else []
    pairs = [line.split("|", 1) for line in lines if "|" in line]
    return {job_id: job_state.read(state) for job_id, state in pairs}


def cancelled_by(job_id: str) -> str | None:
    """Return the name of the user who cancelled a job; None where the accounting has none.

    It is the uid where this host does not know the user. Source: sacct(1), State: `CANCELLED by
    UID`.
    """
    import pwd  # status, which is often called, does without

    if shutil.which("sacct") is None:
        return None
    columns = ("--noheader", "--parsable2", "--allocations", "--format=State")
    answer = call(["sacct", *columns, f"--jobs={job_id}"])
    found = re.search(r"^CANCELLED by (\d+)$", answer.stdout if answer else "", re.MULTILINE)
    if found is None:
        return None
    try:
        return pwd.getpwuid(int(found[1])).pw_name
    except KeyError:
        return found[1]
