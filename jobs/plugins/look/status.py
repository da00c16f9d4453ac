"""The command status: lists runs and their states, from run directories, Slurm and processes."""

import argparse
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...base import answer, installation
from ...base.console import display_path, format_duration, format_metric, format_metrics
from ...commands import arguments, table
from ...commands.local_lines import format_progress
from ...contract.records.ended import Cause
from ...runs import lookup, state
from ...runs.state import RunState
from . import words

MAX_LISTED = 20
MAX_ATTEMPTS = 5
COLUMNS = (
    *("NAME", "RUN", "JOB", "STATE", "ATTEMPT", "PROGRESS", "METRICS", "CHECKPOINT", "NODES"),
    "LAST END",
)
MAKE = ("", "RUN FLAGS")
ONLY_PRINTS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser)
    parser.add_argument("--all", action="store_true", help="list all of them (--json always does)")


def command(args: argparse.Namespace) -> int:
    """Run status; returns the exit code. Slurm is asked once, if one of the runs needs it."""
    run_dirs = lookup.find_all(args.run)
    is_short = not (args.json or args.all or args.run)
    shown, now = run_dirs[:MAX_LISTED] if is_short else run_dirs, time.time()
    seen = [Seen(run, now) for run in state.read_all(shown)]
    if answer.give(runs=[each.as_json() for each in seen]):
        return 0
    if not seen:
        print(f"no runs in {lookup.runs_root()} yet; begin with {installation.FIRST_SUBMIT}")
    elif args.run and len(seen) == 1:
        print(detail(seen[0]))
    else:
        print(table.text([each.row() for each in seen], COLUMNS))
    if len(shown) < len(run_dirs):
        how = f"{installation.command('status')} {installation.option('--all')}"
        print(f"{len(shown)} of {len(run_dirs)} runs; {how} lists all")
    return 0


@dataclass(frozen=True)
class Seen:
    """A run at a time (`now`, seconds since the epoch)."""

    run: RunState
    now: float

    @property
    def is_running(self) -> bool:
        return self.run.word == "running"

    def metrics(self) -> Mapping[str, float | None]:
        result, now = self.run.result, self.run.files.progress
        return (result and result.metrics) or (now and now.metrics) or {}

    def row(self) -> table.Row:
        now, path = self.run.files.progress, self.run.run_dir.path
        job, then = self.run.job_id, self.run.successor
        position = f"step {now.step}/{'?' if now.total is None else now.total}" if now else ""
        if now and now.epoch is not None and now.epochs is not None:
            # The present epoch, where the file counts finished ones.
            position = f"epoch {min(now.epoch + 1, now.epochs)}/{now.epochs}  {position}"
        if now and self.is_running:  # `921 samples/s  8 s left`
            left = "" if now.eta_s is None else f"{format_duration(now.eta_s, 2)} left"
            position = "  ".join(filter(None, [position, format_metrics(now.speed or {}), left]))
        metrics = self.metrics()
        last, end = self.run.files.last, ""
        if last is not None and last.cause is not Cause.COMPLETED:
            end = f"{words.CAUSES[last.cause]} (attempt {last.attempt})"
        # The result has those of the last training step, too, under the same short names.
        names = [name for name in metrics if name.startswith("eval_")] or list(metrics)
        values = format_metrics({name: metrics[name] for name in names}) if names else ""
        if now and now.loss is not None and not names:
            values = format_metric("loss", now.loss)
        cells = {
            "NAME": path.parent.name,
            "RUN": path.name,
            "JOB": f"{job}, then {then}" if then else job,
            "STATE": words.state(self.run, self.now),
            "ATTEMPT": str(self.run.files.newest or ""),
            "PROGRESS": position,
            "METRICS": values,
            "CHECKPOINT": words.checkpoint(self.run.files, self.now),
            "NODES": words.nodes(self.run),
            "LAST END": end,
        }
        return {column: value or "" for column, value in cells.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the row of `status --json`; what is not known is null."""
        run, files, now = self.run, self.run.files, self.run.files.progress
        job, last = run.job, files.last
        waiting = job if run.is_waiting else None
        left_s = now.eta_s if now and self.is_running else None
        return {
            "name": files.run_dir.path.parent.name,
            **files.run_dir.names(),
            "job_id": run.job_id,
            "successor": run.successor,
            "state": run.word,
            "state_text": words.state(run, self.now),
            "pending_reason": waiting and waiting.reason,
            "expected_start": waiting and waiting.start,
            "time_limit_left_s": job.left_s if job and self.is_running else None,
            "nodes": words.nodes(self.run),
            "attempt": None if files.problem else files.newest,
            "last_cause": last and last.cause,
            "step": now and now.step,
            "total_steps": now and now.total,
            "epoch": now and now.epoch,
            "eta_s": left_s,
            "speed": now and now.speed,
            "progress": now and format_progress(replace(now, eta_s=left_s), None, 0.0),
            "reason": words.reason(run),
            "metrics": self.metrics() or None,
            "checkpoint": files.saved.checkpoint,
            "checkpoint_time": files.checkpoint_time,
            "left_out": words.left_out_of(files),
        }


def detail(seen: Seen) -> str:
    """Return all that there is to show of one run, a line or more for each field."""
    files, job, row = seen.run.files, seen.run.job, seen.row()
    fields = {"": f"{row['NAME']} {row['RUN']}", "STATE": row["STATE"], "NODES": row["NODES"]}
    if job is not None and job.left_s is not None and seen.is_running:
        fields["TIME LIMIT"] = f"in {format_duration(job.left_s, 2)}"
    fields |= {name: row[name] for name in ("JOB", "PROGRESS", "METRICS", "CHECKPOINT")}
    for record in files.attempts[-MAX_ATTEMPTS:]:  # where, how long, which steps, what ended it
        parts = [words.node_list(record.nodes or ()), words.end_reason(record)]
        if (start := record.times.start) is not None:
            parts.insert(1, format_duration(max(0, record.times.stop - start), 2))
        if record.first_step is not None:
            parts.insert(-1, f"steps {record.first_step} to {record.last_step}")
        fields[f"ATTEMPT {record.attempt}"] = "  ".join(filter(None, parts))
    if seen.is_running and files.newest:
        fields[f"ATTEMPT {files.newest}"] = "runs"
    fields["LEFT OUT"] = "; ".join(
        f"{each['node']} until {time.strftime('%Y-%m-%d %H:%M', until)}: {each['text']}"
        for each in words.left_out_of(files)
        for until in [time.localtime(each["until"])]
    )
    fields["DIRECTORY"] = display_path(files.run_dir.path)
    if (folder := files.run_dir.tensorboard).is_dir():
        fields["TENSORBOARD"] = f"tensorboard --logdir {shlex.quote(str(folder))}"
    return table.stacked([fields], list(fields))
