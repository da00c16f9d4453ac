"""The command status: lists runs and their states, from run directories, Slurm and processes."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import installation, log_text
from ..console import (
    display_path,
    format_duration,
    format_metric,
    format_metrics,
)
from ..errors import UserError
from ..log_text import further_lines
from ..records.ended import AttemptRecord
from ..rundir import RunDir
from ..runs import lookup, state
from ..runs.state import ASK_AGAIN_S, AnswerCache, Ask, RunState
from . import arguments
from .views import live_progress, table, tensorboard, words
from .views.left_out import left_out_of

MAX_LISTED = 20
MAX_ATTEMPTS = 5
LOOK_AGAIN_S = 5
COLUMNS = (
    *("NAME", "RUN", "JOB", "STATE", "ATTEMPT", "PROGRESS", "METRICS", "CHECKPOINT", "NODES"),
    "LAST END",
)
# How a rank reports the error that ends it. Source: trainer.errors.
RANK_ERROR = re.compile(r"trainer: .*?\berror: (.+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of status."""
    arguments.add_run(parser)
    arguments.add_json(parser)
    parser.add_argument("--all", action="store_true", help="list all of them (--json always does)")
    help_of_watch = "show it again until Ctrl-C, or until RUN has ended"
    parser.add_argument("--watch", action="store_true", help=help_of_watch)


def command(args: argparse.Namespace) -> int:
    """Run status; returns the exit code."""
    if args.json and args.watch:
        raise UserError("--watch prints no JSON\n  hint: leave out one of --json and --watch")
    wanted = StatusQuery(args.run, args.json, args.all)
    if args.watch:
        return watch(wanted)
    print(wanted.text(*wanted.look(AnswerCache())))
    return 0


@dataclass(frozen=True)
class StatusQuery:
    """What the user asked to see."""

    run: str | None = None
    as_json: bool = False
    is_all: bool = False

    def look(self, ask: Ask) -> tuple[list[Seen], int]:
        """Return the runs as they are now, newest first, and their number.

        Without a run and without --all and --json only the MAX_LISTED newest are looked at.
        """
        run_dirs = lookup.find_all(self.run)
        is_short = not (self.as_json or self.is_all or self.run)
        return look(run_dirs[:MAX_LISTED] if is_short else run_dirs, ask), len(run_dirs)

    def text(self, seen: Sequence[Seen], num_runs: int, max_lines: int | None = None) -> str:
        """Return what `look` returned as JSON or as a table. One run that was asked for: in detail.

        max_lines: what fits on the terminal; runs are left out until the text does, and counted.
        """
        if self.as_json:
            return json.dumps([each.as_json() for each in seen], indent=2)
        if not seen:
            return f"no runs in {lookup.runs_root()} yet; begin with {installation.FIRST_SUBMIT}"
        if self.run and len(seen) == 1:
            return detail(seen[0])
        return listing(seen, num_runs, max_lines)


def listing(seen: Sequence[Seen], num_runs: int, max_lines: int | None) -> str:
    """Return a table of as many runs as fit `max_lines`, at least one, and how many it leaves out.

    num_runs: of the whole list, of which `seen` are the newest.
    """
    if max_lines is None:
        return "\n".join(_table_lines(seen, num_runs))
    # Each run takes a line or more, so more runs never fit. A table takes rich some ms per run.
    fits, most = 1, min(len(seen), max(1, max_lines))
    while fits < most:
        number = (fits + most + 1) // 2
        if len(_table_lines(seen[:number], num_runs)) <= max_lines:
            fits = number
        else:
            most = number - 1
    return "\n".join(_table_lines(seen[:fits], num_runs))


def _table_lines(seen: Sequence[Seen], num_runs: int) -> list[str]:
    """Return a table of runs as lines, how many of `num_runs` it leaves out, and their warnings."""
    lines = table.text([each.row() for each in seen], COLUMNS).split("\n")
    if len(seen) < num_runs:
        lines.append(f"{len(seen)} of {num_runs} runs, all: {_with_flags('--all')}")
    return lines


def _with_flags(flags: str) -> str:
    typed = f"FLAGS={shlex.quote(flags)}" if installation.IS_BY_MAKE else flags
    return f"{'make' if installation.IS_BY_MAKE else 'kit'} status {typed}"


def look(run_dirs: Sequence[RunDir], ask: Ask) -> list[Seen]:
    """Return what there is to show of each run. Slurm is asked once, if one of them needs it."""
    now = time.time()
    return [Seen(run, _reason(run), now) for run in state.read_all(run_dirs, ask)]


def _reason(run: RunState) -> str | None:
    """Return why a run ended, or cannot be read; None where that is not known."""
    problem = run.files.problem
    if problem is not None:
        place, _, what = problem.partition("\n")[0].partition(": ")
        in_file = f"{Path(place).name}: " if Path(place) != run.run_dir.path else ""
        return f"{in_file}{what}" if what else problem
    if run.result is not None:
        return run.result.reason
    return rank_error(run.run_dir) if run.is_ended and run.files.newest else None


@dataclass(frozen=True)
class Seen:
    """A run at a time (`now`, seconds since the epoch): its files, its state and the reason."""

    run: RunState
    reason: str | None
    now: float

    @property
    def name(self) -> str:
        return f"{self.run.run_dir.path.parent.name} {self.run.run_dir.run_id}"

    @property
    def state(self) -> str:
        return words.state(self.run, self.reason, self.now)

    @property
    def is_running(self) -> bool:
        return self.run.word == "running"

    def metrics(self) -> dict[str, float | None]:
        """Return the metrics of the result, else those of the last evaluation."""
        result, now = self.run.result, self.run.files.progress
        metrics = (result and result.metrics) or (now and now.metrics) or ()
        return {each.name: each.value for each in metrics}

    def row(self) -> table.Row:
        """Return the texts of the columns."""
        now, path = self.run.files.progress, self.run.run_dir.path
        job, then = self.run.job_id, self.run.successor
        pace = live_progress.format_pace(now) if now and self.is_running else ""
        metrics = self.metrics()
        # The result has those of the last training step, too, under the same short names.
        names = [name for name in metrics if name.startswith("eval_")] or list(metrics)
        values = format_metrics({name: metrics[name] for name in names}) if names else ""
        if now and now.loss is not None and not names:
            values = format_metric("loss", now.loss)
        cells = {
            "NAME": path.parent.name,
            "RUN": path.name,
            "JOB": f"{job}, then {then}" if then else job,
            "STATE": self.state,
            "ATTEMPT": str(self.run.files.newest or ""),
            "PROGRESS": now and f"{live_progress.format_position(now)}  {pace}".rstrip(),
            "METRICS": values,
            "CHECKPOINT": words.checkpoint(self.run.files, self.now),
            "NODES": words.nodes(self.run),
            "LAST END": words.last_end(self.run.files),
        }
        return {column: value or "" for column, value in cells.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the row of `status --json`; what is not known is null."""
        run, files, now = self.run, self.run.files, self.run.files.progress
        job, last = run.job, files.last
        is_pending = run.is_waiting
        return {
            "name": files.run_dir.path.parent.name,
            "run_id": files.run_dir.run_id,
            "run_dir": str(files.run_dir.path),
            "job_id": run.job_id,
            "successor": run.successor,
            "state": run.word,
            "state_text": self.state,
            "pending_reason": job.reason if job and is_pending else None,
            "expected_start": job.start if job and is_pending else None,
            "time_limit_left_s": job.left_s if job and self.is_running else None,
            "nodes": words.nodes(self.run),
            "attempt": None if files.problem else files.newest,
            "last_cause": last and last.cause,
            "step": now and now.step,
            "total_steps": now and now.total,
            "epoch": now and now.epoch,
            "eta_s": now.eta_s if now and self.is_running else None,
            "progress": now and live_progress.format_progress(now, self.is_running),
            "reason": files.problem or self.reason,
            "metrics": self.metrics() or None,
            "checkpoint": files.checkpoint,
            "checkpoint_time": files.checkpoint_time,
            "left_out": [each.as_json() for each in left_out_of(files)],
        }


def detail(seen: Seen) -> str:
    """Return all that there is to show of one run, a line or more for each field."""
    files, job, row = seen.run.files, seen.run.job, seen.row()
    running_on = f", attempt {files.newest} on {row['NODES']}" if row["NODES"] else ""
    fields = {"": seen.name, "STATE": row["STATE"]}
    if seen.is_running and files.newest:
        fields["STATE"] += running_on
    elif row["NODES"]:
        fields["NODES"] = row["NODES"]
    if job is not None and seen.run.is_waiting:
        if job.reason != "None":
            fields["SLURM'S REASON"] = job.reason
        if job.start is not None:
            fields["EXPECTED START"] = words.date(job.start)
    elif job is not None and job.left_s is not None and seen.is_running:
        fields["TIME LIMIT"] = f"in {format_duration(job.left_s, 2)}"
    fields |= {name: row[name] for name in ("JOB", "PROGRESS", "METRICS", "CHECKPOINT")}
    for record in files.attempts[-MAX_ATTEMPTS:]:
        fields[f"ATTEMPT {record.attempt}"] = _attempt_line(record)
    if len(files.attempts) > MAX_ATTEMPTS:
        left_out = f"{len(files.attempts) - MAX_ATTEMPTS} more, all: "
        fields["EARLIER"] = left_out + display_path(files.run_dir.attempts)
    fields["LEFT OUT"] = "; ".join(map(str, left_out_of(files)))
    fields["DIRECTORY"] = display_path(files.run_dir.path)
    for place, line in enumerate((tensorboard.command(files.run_dir) or "").splitlines()):
        fields["TENSORBOARD" if place == 0 else "ITS TUNNEL"] = line
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    shown = table.stacked_lines([fields], list(fields), width)
    # Of an error of several lines the state has the first one.
    further = further_lines(seen.reason) if seen.reason and seen.run.is_ended else []
    return "\n".join([shown, *(f"  {line}" for line in further)])


def _attempt_line(record: AttemptRecord) -> str:
    """Return an attempt that was closed: where, how long, which steps, and what ended it."""
    parts = [words.node_list(record.nodes or ()), words.end_reason(record)]
    if record.start is not None:
        parts.insert(1, format_duration(max(0, record.stop - record.start), 2))
    if record.first_step is not None:
        parts.insert(-1, f"steps {record.first_step} to {record.last_step}")
    return "  ".join(filter(None, parts))


def watch(wanted: StatusQuery) -> int:
    """Show the runs again and again, on a terminal in place, until Ctrl-C; returns 0.

    Files are read every LOOK_AGAIN_S, Slurm is asked at most every ASK_AGAIN_S. Where the user
    named runs, it returns when all of them have ended.
    """
    ask, is_terminal = AnswerCache(), sys.stdout.isatty()
    try:
        while True:
            now = time.strftime("%H:%M:%S")
            seen, num_runs = wanted.look(ask)
            is_last = wanted.run is not None and all(each.run.is_over for each in seen)
            note = f"{now}, Slurm is asked every {ASK_AGAIN_S} s, Ctrl-C ends this"
            if is_terminal:
                max_lines = shutil.get_terminal_size().lines - 2
                lines = wanted.text(seen, num_runs, max_lines).split("\n")
                lines.append(now if is_last else note)
                # Home; each line replaces the old one to its end; then clear what is below.
                print("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J", end="")
            else:
                print(f"{now}\n{wanted.text(seen, num_runs)}\n")
            sys.stdout.flush()
            if is_last:
                return 0
            time.sleep(LOOK_AGAIN_S if is_terminal else ASK_AGAIN_S)
    except KeyboardInterrupt:
        return 0


def rank_error(run_dir: RunDir) -> str | None:
    """Return the last error in rank 0's log of the newest attempt; None if there is none.

    A full disk keeps the attempt from writing its reason anywhere else.
    """
    text = log_text.read_end(run_dir.rank_log(0)).text
    errors = RANK_ERROR.findall(text)
    return str(errors[-1]) if errors else None
