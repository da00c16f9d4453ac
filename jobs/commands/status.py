"""The command status: lists runs and their states, from run directories, Slurm and processes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from slurm_job_kit.jobs import installation, records
from slurm_job_kit.jobs.attempt import facts, run_lock
from slurm_job_kit.jobs.attempt.close import write_missing_result
from slurm_job_kit.jobs.attempt.interpret import start_up_warning
from slurm_job_kit.jobs.commands import live_progress
from slurm_job_kit.jobs.commands.run_jobs import waiting_job
from slurm_job_kit.jobs.records import RecordError
from slurm_job_kit.jobs.records.ended import read_attempts
from slurm_job_kit.jobs.records.training import Progress, Result
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import lookup
from slurm_job_kit.jobs.slurm import client
from slurm_job_kit.jobs.spec import FormatError, Spec

MAX_LISTED = 20
COLUMNS = {
    "NAME": "name",
    "RUN": "run_id",
    "JOB": "jobs",
    "STATE": "state",
    "ATTEMPT": "attempt",
    "PROGRESS": "progress",
}
# How a rank reports the error that ends it. Source: trainer.errors.
RANK_ERROR = re.compile(r"trainer: .*?\berror: (.+)")
LOG_TAIL_BYTES = 65536


def status(run_dirs: Sequence[RunDir], as_json: bool, is_all: bool = False) -> int:
    """Print runs, newest first: all as JSON, else the MAX_LISTED newest or all; returns 0."""
    listed = run_dirs if as_json or is_all else run_dirs[:MAX_LISTED]
    states = client.job_states(job_id for run_dir in listed for job_id in jobs_of(run_dir))
    rows = [describe(run_dir, states) for run_dir in listed]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print(f"no runs in {lookup.runs_root()} yet; begin with {installation.FIRST_SUBMIT}")
    else:
        print("\n".join(format_table(rows)))
        if len(rows) < len(run_dirs):
            show = "make status FLAGS=--all" if installation.IS_BY_MAKE else "kit status --all"
            print(f"{len(rows)} of {len(run_dirs)} runs, all: {show}")
        for row in rows:
            if row["warning"]:
                print(f"warning: {row['name']} {row['run_id']}: {row['warning']}")
    return 0


def jobs_of(run_dir: RunDir) -> list[str]:
    """The ids of a run's job and of its successor, as far as its files can be read."""
    try:
        found = (lookup.job_id_of(run_dir), waiting_job(run_dir))
    except RecordError:
        return []
    return [job_id for job_id in found if job_id is not None]


def format_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a table with a header and a line for each run."""
    shown = [row | {"jobs": format_jobs(row)} for row in rows]
    table = [tuple(COLUMNS)]
    table += [tuple(str(row[key] or "-") for key in COLUMNS.values()) for row in shown]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [zip(row, widths, strict=True) for row in table]
    return ["  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines]


def format_jobs(row: dict[str, Any]) -> str | None:
    """`12, then 13` where job 13 is the successor of job 12."""
    job_id, successor = row["job_id"], row["successor"]
    return f"{job_id}, then {successor}" if successor else job_id


def describe(run_dir: RunDir, states: dict[str, str]) -> dict[str, Any]:
    """One run as a row of `status --json`. `states`: Slurm's state of each job that it knows."""
    try:
        Spec.read(run_dir.spec)
    except FormatError as error:
        return unreadable(run_dir, str(error))
    except (OSError, ValueError, TypeError, KeyError):
        pass  # the other files show how the run ended
    try:
        return describe_readable(run_dir, states)
    except RecordError as error:  # one damaged run hides no other
        return unreadable(run_dir, str(error))


def describe_readable(run_dir: RunDir, states: dict[str, str]) -> dict[str, Any]:
    """`describe` of a run whose files this version reads. Raises: RecordError."""
    job_id, waiting = lookup.job_id_of(run_dir), waiting_job(run_dir)
    if waiting is not None and not is_in_queue(states.get(waiting)):
        waiting = None
    if waiting is not None and not is_in_queue(states.get(job_id or "")):
        job_id, waiting = waiting, None  # the first one has ended
    if not is_in_queue(states.get(job_id or "")):
        write_missing_result(run_dir)
    result = records.read(Result, run_dir.result)
    metrics = result and result.metrics and {each.name: each.value for each in result.metrics}
    now = live_progress.read(run_dir)
    state = state_of(run_dir, result, states.get(job_id or ""))
    reason = None if result is None else result.reason
    if result is None and has_failed(state):
        reason = rank_error(run_dir)
    return {
        "name": run_dir.path.parent.name,
        "run_id": run_dir.run_id,
        "run_dir": str(run_dir.path),
        "job_id": job_id,
        "successor": waiting,
        "state": state,
        "attempt": facts.newest_attempt(run_dir),
        "step": now.step if now else None,
        "progress": format_state(now, reason, is_running=state == "running"),
        "reason": reason,
        "metrics": metrics,
        "warning": start_up_warning(read_attempts(run_dir)),
    }


def format_state(now: Progress | None, reason: str | None, is_running: bool) -> str | None:
    """How far the run is, or at which step it ended and why."""
    if now is None:
        return reason
    if reason is not None:
        return f"at step {now.step}: {reason}"
    return live_progress.format_progress(now, is_running)


def unreadable(run_dir: RunDir, reason: str) -> dict[str, Any]:
    """The row of a run whose files this version of the kit does not read."""
    unknown = ("job_id", "successor", "attempt", "step", "metrics", "warning")
    return {
        "name": run_dir.path.parent.name,
        "run_id": run_dir.run_id,
        "run_dir": str(run_dir.path),
        "state": "unreadable",
        "progress": reason.partition("\n")[0].partition(": ")[2] or reason,
        "reason": reason,
    } | dict.fromkeys(unknown)


def state_of(run_dir: RunDir, result: Result | None, slurm_state: str | None) -> str:
    """The run's state: that of its result, else of its job, else of its owner's process."""
    if result and (result.status == "completed" or not is_in_queue(slurm_state)):
        return result.status
    if slurm_state is not None:
        return slurm_state.lower()
    owner = run_lock.read(run_dir)
    if owner is None:
        return "stopped" if facts.newest_attempt(run_dir) else "frozen"
    return {True: "running", False: "lost", None: "unknown"}[run_lock.is_alive(owner)]


def is_in_queue(state: str | None) -> bool:
    """Whether a job of this state is queued or runs."""
    return state is not None and state not in client.ENDED_STATES


def has_failed(state: str) -> bool:
    """Whether a run without a result.json has ended in this state."""
    return state in ("stopped", "lost") or state.upper() in client.ENDED_STATES


def rank_error(run_dir: RunDir) -> str | None:
    """The last error in rank 0's log of the newest attempt; None if there is none.

    A full disk keeps the attempt from writing its reason anywhere else.
    """
    try:
        with open(run_dir.rank_log(0), "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return None
    errors = RANK_ERROR.findall(text)
    return str(errors[-1]) if errors else None
