"""Lists many jobs at once: squeue has those in the queue, sacct also those that are gone.

A missing answer is no exception, as in jobs.slurm.client. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_job_kit.jobs.slurm import duration, job_state
from slurm_job_kit.jobs.slurm.client import call
from slurm_job_kit.jobs.slurm.sbatch import SCRIPT

# The reason comes last: it may be any text.
QUEUE_FORMAT = "%i|%T|%S|%L|%D|%N|%r"
# The kit's batch script, and the arguments behind it.
_OURS = re.compile(rf"(?:^|[/ ]){re.escape(SCRIPT.name)}(?: (.*))?$")


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
    # The kit's batch script, of which Slurm shows no arguments: 23.02 to 25.05 without accounting.
    is_cut: bool = False

    @property
    def target(self) -> Path | None:
        """The argument of the kit's batch script: a run directory, a sweep or a spec."""
        words = _argument(self.command)
        return Path(self.work_dir, words).resolve() if words else None


def queued_jobs() -> list[QueuedJob]:
    """The user's jobs that are queued or run; empty where squeue does not answer."""
    return known_queue() or []


def known_queue() -> list[QueuedJob] | None:
    """The user's jobs that are queued or run; None where squeue does not answer.

    Each task of an array is a job. Source: squeue(1), --array, %Z (working directory) and %o
    (command).
    """
    # Since 23.02 %o has no arguments. Source: slurmctld/job_mgr.c, _pack_default_job_details.
    user = f"--user={os.getuid()}"
    answer = call(["squeue", "--noheader", "--array", user, "--format=%i|%Z|%o"])
    if answer is None or answer.returncode != 0:
        return None
    rows = [line.split("|", 2) for line in answer.stdout.splitlines()]
    jobs = [QueuedJob(row[0], row[1], row[2]) for row in rows if len(row) == 3]
    bare = {_array_id(job.job_id) for job in jobs if _argument(job.command) == ""}
    lines = _submit_lines(bare) if bare else {}
    return [_completed(job, lines) if _array_id(job.job_id) in bare else job for job in jobs]


def _argument(command: str) -> str | None:
    """Return what follows the kit's batch script on a command line; None for another script."""
    found = _OURS.search(command)
    return None if found is None else (found[1] or "").strip()


def _completed(job: QueuedJob, lines: Mapping[str, str]) -> QueuedJob:
    """Return a job with the command line of sbatch in place of its script."""
    line = lines.get(_array_id(job.job_id))
    return replace(job, is_cut=True) if line is None else replace(job, command=line)


def _array_id(job_id: str) -> str:
    """Return 12 of `12_3`: the tasks of an array have one command line."""
    return job_id.partition("_")[0]


def _submit_lines(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the command lines of sbatch for jobs: from sacct, else from scontrol (Slurm 25.11)."""
    wanted = sorted(job_ids)
    rows = _accounted(wanted, "JobID,SubmitLine")
    found = {_array_id(job_id): line for job_id, line in rows}
    for job_id in wanted:
        if job_id not in found and (answer := call(["scontrol", "show", "job", job_id])):
            line = re.search(r"^   SubmitLine=(.+)$", answer.stdout, re.MULTILINE)
            found |= {job_id: line[1]} if line is not None else {}
    return found


def past_states(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the state of each job in the accounting database; empty if the site has none.

    Source: sacct(1).
    """
    rows = _accounted(job_ids, "JobID,State")
    return {job_id: job_state.read(state) for job_id, state in rows}


def _accounted(job_ids: Iterable[str], columns: str) -> list[tuple[str, str]]:
    """Return two columns of sacct for jobs; empty if the site has no accounting database."""
    if shutil.which("sacct") is None:
        return []
    options = ("--noheader", "--parsable2", "--allocations", f"--format={columns}")
    answer = call(["sacct", *options, f"--jobs={','.join(job_ids)}"])
    lines = answer.stdout.splitlines() if answer and answer.returncode == 0 else []
    rows = (line.partition("|") for line in lines if "|" in line)
    return [(first, second) for first, _, second in rows]


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
