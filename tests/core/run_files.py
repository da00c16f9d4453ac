"""Build run directories for the tests: the directory, and the files that its attempts leave.

`plan`, `attempt` and `claim` return JSON values, in which a test changes the keys that it needs.
The others write files of a run directory.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.files import append_jsonl, write_atomic
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.checkpoint.manifest import FileDigest, Manifest
from slurm_job_kit.jobs.contract.records.frozen import Overrides
from slurm_job_kit.jobs.contract.records.training import Best, Progress
from slurm_job_kit.jobs.contract.rundir import AttemptDir, RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import code_snapshot
from slurm_job_kit.jobs.slurm.sbatch import SCRIPT

Completed = subprocess.CompletedProcess[str]
REPOSITORY = Path(__file__).resolve().parents[2]
COMMANDS = REPOSITORY / "docs/commands.md"
TINY = "name: tiny\nslurm: {nodes: 2}\n"
EVIDENCE: dict[str, Any] = {
    "outcome": None,
    "job_state": "RUNNING",
    "job_reason": "None",
    "signals": [],
    "is_preempted": False,
    "has_progress": False,
    "error": None,
}


def answered(text: str) -> dict[str, Any]:
    """Return what a command has answered with --json, in the form of docs/commands.md."""
    found: dict[str, Any] = json.loads(text)
    assert found.pop("version") == 1
    name = found.pop("command")
    rows = re.findall(r"^\| (`[a-z`, -]+`) \| ((?:`\w+` ?)+) \|$", COMMANDS.read_text(), re.M)
    forms = [set(re.findall(r"\w+", values)) for names, values in rows if f"`{name}" in names]
    assert {*found} in [*forms, {"error"}], name
    return found


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, as a whole."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def plan(**fields):
    """plan.json of attempt 1 of job 7 on the nodes a and b."""
    return {
        "attempt": 1,
        "job_id": "7",
        "nodes": ["a", "b"],
        "head": {"address": "10.0.0.1", "how": "address of a", "port": 15000},
        "start": 1.0,
        "deadline": None,
        **fields,
    }


def attempt(evidence=(), **fields):
    """A line of attempts.jsonl: attempt 1 of job 7, which crashed just now."""
    of_times, of_why = ("start", "stop", "stop_s"), ("kind", "log", "budget", "requeue")
    times, why = ({x: fields.pop(x) for x in names if x in fields} for names in (of_times, of_why))
    return {
        "attempt": 1,
        "job_id": "7",
        "nodes": ["a", "b"],
        "times": {"start": 1.0, "stop": time.time()} | times,
        "cause": "crash",
        "first_step": None,
        "last_step": None,
        "checkpoint": None,
        "quarantined": [],
        "decision": "retry",
        "reason": "x",
        "evidence": EVIDENCE | dict(evidence),
        "why": why,
        **fields,
    }


def recorded(run, evidence=(), **fields):
    """Append the line of an attempt to attempts.jsonl."""
    append_jsonl(run.attempts, attempt(evidence, **fields))


def claim(**fields):
    """owner.json of attempt 1 of job 7."""
    owner = {"job_id": "7", "host": "a", "pid": 1, "pid_start": "1", "restart_count": 0}
    return owner | {"attempt": 1, "token": "x"} | fields


def frozen(folder: Path, spec: Spec | None = None) -> RunDir:
    """Create the run directory `folder` with its spec and the folders that `freeze` creates."""
    run = RunDir(folder)
    for each in (run.checkpoints, run.timeline("x").parent, run.rank_log(0).parent):
        each.mkdir(parents=True, exist_ok=True)
    run.spec.write_text((spec or Spec()).to_json())
    return run


def make_run(here, run_id="20260101", name="tiny", root="runs"):
    """Create a run below a folder of `here`, by default its runs root."""
    run = frozen(here / root / name / run_id, Spec(name=name))
    run.spec_yaml.write_text(f"name: {name}\n")
    records.write(run.overrides, Overrides(()))
    return run


def make_kit(folder: Path) -> Path:
    """Create a repository with the two files by which the kit is known, both empty."""
    for file in (SCRIPT, Path(installation.NAME, "jobs/contract/rundir.py")):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("#!/usr/bin/env bash\n")
    return folder


def freeze_code(checkout: Path, run: RunDir) -> Path:
    """Freeze the checkout for a run; return the frozen code."""
    code = code_snapshot.take(checkout, run.path.parent.parent)
    run.code.symlink_to(os.path.relpath(code, run.path))
    run.kit.symlink_to(run.code.name)
    return code


def make_code(here, run, **texts):
    """Freeze the checkout `here/checkout` for a run. texts: of its files, as `model="x = 1"`."""
    checkout = make_kit(here / "checkout")
    for name, text in (texts or {"model": "x = 1"}).items():
        (checkout / f"{name}.py").write_text(f"{text}\n")
    freeze_code(checkout, run)
    return checkout


def make_checkpoint(run, step, best=None):
    """Write a committed checkpoint with one file; return its folder."""
    directory = run.checkpoints / f"step-{step:08d}"
    directory.mkdir(parents=True)
    content = f"state {step}".encode()
    (directory / "state.pt").write_bytes(content)
    digest = FileDigest(len(content), hashlib.sha256(content).hexdigest())
    manifest = Manifest(step, files={"state.pt": digest}, best=Best(step=best))
    (directory / "manifest.json").write_bytes(manifest.to_bytes())
    (run.checkpoints / "latest").write_text(f"{directory.name}\n")
    return directory


def opened(run: RunDir, number: int = 1, **fields: Any) -> AttemptDir:
    """Open an attempt on the nodes a and b: its folder and its plan.json with these fields."""
    folder = run.attempt(number)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_json(folder.plan, plan(attempt=number) | fields)
    return folder


def node(folder, rank, *signals, torchrun_exit=0, end=9.0, **fields):
    """Write the record of a node's agent. signals: (time, name) of each that it received."""
    seen = [{"t": t, "signal": name} for t, name in signals]
    record = {"host": f"n{rank}", "signals": seen, "torchrun_exit": torchrun_exit, "end": end}
    write_json(folder.agent(rank), record | fields)


def failed(folder, rank, time, error="ValueError: x", **fields):
    """Write the error record of a rank."""
    record = {"rank": rank, "host": f"n{rank}", "time": time, "error": error, "traceback": ""}
    write_json(folder.rank_error(rank), record | fields)


def kit(*words: str, python: Sequence[str] = (), **variables: str) -> Completed:
    """The ended process of a command. python: words in place of the interpreter."""
    command = [*(python or [sys.executable]), "-m", f"{installation.NAME}.jobs", *words]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)} | variables
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def unlock(code: Path) -> None:
    """Let an ordinary user do to frozen code what root, or a purge of the disk, always can."""
    for folder, _, _ in os.walk(code):
        os.chmod(folder, 0o700)


def tree(root: Path) -> list[tuple[str, int, int, int]]:
    """(path, mode, size, time of change) of everything below a folder; what is read leaves them."""
    paths = [root, *root.rglob("*")]
    return sorted(
        (str(path), info.st_mode, info.st_size, info.st_mtime_ns)
        for path in paths
        for info in [path.lstat()]
    )


def read_progress_steps(path: Path) -> tuple[int | None, int | None]:
    """Return the last finished optimizer step in progress.json, and the number of all."""
    progress = records.read_leniently(Progress, path)
    return (None, None) if progress is None else (progress.step, progress.total)
