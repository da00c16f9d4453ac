"""What the runs are doing, as their directories, Slurm and the local kernel say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jobs import records
from jobs.attempt import history, run_lock
from jobs.commands import live_progress
from jobs.records import Result
from jobs.rundir import RunDir
from jobs.runs import lookup
from jobs.slurm import client
from jobs.spec import FormatError, Spec

MAX_LISTED = 20


def status(run_dirs: Sequence[RunDir], as_json: bool) -> int:
    """List runs, newest first."""
    listed = run_dirs[:MAX_LISTED]
    jobs = (job for run_dir in listed for job in (lookup.job_id_of(run_dir), waiting_job(run_dir)))
    states = client.job_states(job_id for job_id in jobs if job_id is not None)
    rows = [describe(run_dir, states) for run_dir in listed]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    if not rows:
        print(f"no runs in {lookup.runs_root()} yet: make submit CONFIG=configs/resnet.yaml")
        return 0
    header = ("NAME", "RUN", "JOB", "STATE", "ATTEMPT", "PROGRESS")
    keys = ("name", "run_id", "jobs", "state", "attempt", "progress")
    shown_rows = [row | {"jobs": jobs_in_words(row)} for row in rows]
    table = [header, *(tuple(str(row[key] or "-") for key in keys) for row in shown_rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return 0


def waiting_job(run_dir: RunDir) -> str | None:
    """The id of the job that waits for the end of the run's present one."""
    job_id = lookup.job_id_of(run_dir)
    return None if job_id is None else lookup.successor_of(run_dir, job_id)


def jobs_in_words(row: dict[str, Any]) -> str | None:
    """`12, then 13` where another job waits to go on."""
    job_id, successor = row["job_id"], row["successor"]
    return f"{job_id}, then {successor}" if successor else job_id


def describe(run_dir: RunDir, states: dict[str, str]) -> dict[str, Any]:
    """One run's state: its result, else what Slurm says, else whether its owner lives."""
    try:
        Spec.read(run_dir.spec)
    except FormatError as error:
        return of_another_kit(run_dir, str(error))
    except (OSError, ValueError, TypeError, KeyError):
        pass  # the other files show how the run ended
    job_id, waiting = lookup.job_id_of(run_dir), waiting_job(run_dir)
    if waiting is not None and not is_in_queue(states.get(waiting)):
        waiting = None
    if waiting is not None and not is_in_queue(states.get(job_id or "")):
        job_id, waiting = waiting, None  # the first one has ended
    result = records.read(Result, run_dir.result)
    metrics = result and result.metrics and {each.name: each.value for each in result.metrics}
    now = live_progress.read(run_dir)
    return {
        "name": run_dir.path.parent.name,
        "run_id": run_dir.run_id,
        "run_dir": str(run_dir.path),
        "job_id": job_id,
        "successor": waiting,
        "state": state_of(run_dir, result, states.get(job_id or "")),
        "attempt": history.newest_attempt(run_dir),
        "step": now.step if now else None,
        "progress": (result and result.reason) or (live_progress.words(now) if now else None),
        "reason": result and result.reason,
        "metrics": metrics,
    }


def of_another_kit(run_dir: RunDir, reason: str) -> dict[str, Any]:
    """The row of a run whose files this version of the kit does not read."""
    unknown = ("job_id", "successor", "attempt", "step", "metrics")
    return {
        "name": run_dir.path.parent.name,
        "run_id": run_dir.run_id,
        "run_dir": str(run_dir.path),
        "state": "unreadable",
        "progress": reason.partition("\n")[0].partition(": ")[2],
        "reason": reason,
    } | dict.fromkeys(unknown)


def state_of(run_dir: RunDir, result: Result | None, slurm_state: str | None) -> str:
    """A run's state in one word."""
    if result and (result.status == "completed" or not is_in_queue(slurm_state)):
        return result.status
    if slurm_state is not None:
        return slurm_state.lower()
    present = run_lock.read(run_dir)
    if present is None:
        return "stopped" if history.newest_attempt(run_dir) else "frozen"
    return {True: "running", False: "lost", None: "unknown"}[run_lock.is_alive(present)]


def is_in_queue(state: str | None) -> bool:
    """Whether a job of this state is queued or runs."""
    return state is not None and state not in client.ENDED_STATES
