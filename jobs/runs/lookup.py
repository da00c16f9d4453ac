"""Finds runs, by directory, run id, job id or name, and their jobs.

Standard library only, and no Slurm call.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jobs import records
from jobs.errors import UserError
from jobs.records import Submission, Successor
from jobs.rundir import RunDir, relink

# RUN_ID:JOBID of the job that a job succeeds: it is a successor by this, even if nobody noted it.
SUCCEEDS = "KIT_SUCCEEDS"


class NoSuchRunError(UserError):
    """No run is meant by a user's word; the text says what there is."""


def runs_root(configured: str | None = None) -> Path:
    """Where run directories go: the spec's choice, else KIT_RUNS, else `runs` here. Absolute."""
    return Path(configured or os.environ.get("KIT_RUNS") or "runs").expanduser().absolute()


def remember(
    run_dir: RunDir, job_id: str, cluster: str = "slurm", root: Path | None = None
) -> None:
    """Let a run be found by its job: `.jobs/<cluster>-<jobid>` in the default runs root.

    In the default one, because a requeued job looks there before it has read any spec.
    """
    folder = (root or runs_root()) / ".jobs"
    folder.mkdir(parents=True, exist_ok=True)
    relink(folder / f"{cluster}-{job_id}", os.path.relpath(run_dir.path, folder))


def note_job(run_dir: RunDir, submission: Submission, job_id: str, cluster: str) -> None:
    """Note the job that runs this run directory now, if its submitter did not."""
    if submission.job_id != job_id:
        records.write(run_dir.submission, replace(submission, job_id=job_id))
        remember(run_dir, job_id, cluster, run_dir.path.parent.parent)


def recall(job_id: str, cluster: str = "*") -> RunDir | None:
    """The newest run directory of a job id, as `remember` noted it."""
    links = [link for link in (runs_root() / ".jobs").glob(f"{cluster}-{job_id}") if link.exists()]
    newest = max(links, key=lambda link: link.lstat().st_mtime, default=None)
    return None if newest is None else RunDir(newest.resolve())


def all_runs() -> list[RunDir]:
    """Every run in the default runs root, newest first."""
    found = runs_root().glob("[!.]*/*/spec.json")
    runs = [RunDir(path.parent) for path in found if path.parent.name != "latest"]
    return sorted(runs, key=lambda run_dir: run_dir.run_id, reverse=True)


def find(text: str | None) -> RunDir:
    """The run that a user means: a run directory, run id, job id, or a name's newest run.

    None means the newest run of all. Raises: NoSuchRunError.
    """
    runs = all_runs()
    if text is None:
        if not runs:
            raise NoSuchRunError(f"no runs in {runs_root()} yet\n  hint: make submit starts one")
        return runs[0]
    if is_run_dir(Path(text)):
        return RunDir(Path(text).resolve())
    by_job = recall(text) if text.replace("_", "").isdigit() else None
    if by_job is not None:
        return by_job
    for run_dir in runs:
        if text in (run_dir.run_id, run_dir.path.parent.name):
            return run_dir
    names = sorted({run_dir.path.parent.name for run_dir in runs} | {run.run_id for run in runs})
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "make status lists the runs"
    raise NoSuchRunError(f"no run {text!r} in {runs_root()}\n  hint: {hint}")


def is_run_dir(path: Path) -> bool:
    """Whether it is a run directory, though its spec be lost; False for what is no path."""
    has_remains = os.path.lexists(path / "code") and os.path.isdir(path / "checkpoints")
    return os.path.isfile(path / "spec.json") or has_remains


def job_id_of(run_dir: RunDir) -> str | None:
    """The id of the Slurm job that was last submitted for a run; None for a local run."""
    submission = records.read(Submission, run_dir.submission)
    return None if submission is None else submission.job_id


def successor_of(run_dir: RunDir, job_id: str) -> str | None:
    """The id of the job that waits for the end of this one, as it was noted."""
    record = records.read(Successor, run_dir.successor)
    return record.job_id if record is not None and record.after == job_id else None


def predecessor(run_dir: RunDir, environ: Mapping[str, str] = os.environ) -> str | None:
    """The id of the job of the run that this job succeeds; None if it was submitted by a user."""
    run_id, _, job_id = environ.get(SUCCEEDS, "").partition(":")
    return job_id if job_id and run_id == run_dir.run_id else None
