"""Files of a run directory, most as JSON values; a test gives only the keys that it needs."""

import os
import time
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.rundir import RunDir, write_json
from slurm_job_kit.jobs.spec import Spec

EVIDENCE: dict[str, Any] = {
    "outcome": None,
    "job_state": "RUNNING",
    "job_reason": "None",
    "signals": [],
    "is_preempted": False,
    "has_progress": False,
    "error": None,
}


def unlock(code: Path) -> None:
    """Let an ordinary user do to frozen code what root, or a purge of the disk, always can."""
    for folder, _, _ in os.walk(code):
        os.chmod(folder, 0o700)


def plan(**fields):
    """plan.json of attempt 1 of job 7 on the nodes a and b."""
    return {
        "attempt": 1,
        "job_id": "7",
        "nodes": ["a", "b"],
        "head_address": "10.0.0.1",
        "head_address_is": "address of a",
        "rdzv_endpoint": "10.0.0.1:15000",
        "rdzv_id": "7-1",
        "start": 1.0,
        "deadline": None,
        **fields,
    }


def run_with_a_plan(folder: Path) -> RunDir:
    """The run directory `folder`, with attempt 1 on the nodes a and b."""
    run = RunDir(folder)
    run.attempt(1).path.mkdir()
    run.spec.write_text(Spec().to_json())
    write_json(run.attempt(1).plan, plan())
    return run


def attempt(evidence=(), **fields):
    """A line of attempts.jsonl: attempt 1 of job 7, which crashed just now."""
    return {
        "attempt": 1,
        "job_id": "7",
        "nodes": ["a", "b"],
        "start": 1.0,
        "stop": time.time(),
        "cause": "crash",
        "first_step": None,
        "last_step": None,
        "stop_s": None,
        "start_s": None,
        "checkpoint": None,
        "quarantined": [],
        "decision": "retry",
        "reason": "x",
        "evidence": EVIDENCE | dict(evidence),
        **fields,
    }


def claim(**fields):
    """owner.json of attempt 1 of job 7."""
    owner = {"job_id": "7", "host": "a", "pid": 1, "pid_start": "1", "restart_count": 0}
    return owner | {"attempt": 1, "token": "x"} | fields
