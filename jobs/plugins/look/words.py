"""States, causes, nodes, times and progress of a run in plain words."""

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...base.console import format_duration, number_ranges, quantity
from ...base.log_text import first_line
from ...contract import records
from ...contract.checkpoint.names import checkpoint_step
from ...contract.kinds import Kind
from ...contract.records.ended import FINAL, AttemptRecord, Cause, LeftOut
from ...contract.records.queued import Submission
from ...runs.state import RunFiles, RunPhase, RunState
from .pending import explain

CAUSES = {cause: cause.replace("_", " ") for cause in Cause} | {
    Cause.MANUAL_STOP: "stop signal sent by hand",
    Cause.INTERRUPTED: "Ctrl-C or cancel",
    Cause.REQUEUED: "requeue by Slurm or an administrator",
    Cause.NODE: "bad or lost node",
    Cause.LOST: "batch script killed",
}
_STATES = {
    "completed": "completed",
    "unknown": "unknown: neither Slurm nor this host knows whether it still runs",
    "completing": "ending: Slurm waits for the job's processes",
    "configuring": "starting: Slurm prepares the job's nodes",
    "stage_out": "ending: Slurm copies files out of the burst buffer",
    "suspended": "suspended by Slurm",
}
_NUMBERED = re.compile(r"(.*?)(\d+)")


def reason(run: RunState) -> str | None:
    """Return why a run ended, or cannot be read; None where that is not known."""
    return run.files.problem or (None if run.result is None else run.result.reason)


def state(run: RunState, now: float) -> str:
    """Return the state of a run in one line of plain words; now: seconds since the epoch."""
    files, word = run.files, run.word
    end = None if (why := reason(run)) is None else first_line(why)
    if run.is_waiting and run.job is not None:
        start, why = run.job.start, explain(run.job.reason) or run.job.reason
        text = f"{_restarting(files) or 'waiting in the queue'}: {why}"
        if start is not None and start > now:
            text += f", expected start in {format_duration(start - now, 2)}"
        return text
    if word == "running" and files.is_closed:  # before the first attempt, or between two
        return _restarting(files) or "starting"
    if word == "running":
        return word if files.newest or files.job_id is None else "starting"
    if word == "unknown" and run.life is not None and run.life.why:
        return f"unknown: {run.life.why}"
    if word == "completed" and files.last and files.last.why.kind is Kind.SEPARATE_TRAININGS:
        return f"{word}: {files.last.reason}"
    if word in ("held", "cancelled", "unreadable"):
        return f"{word}: {end}" if end else word
    if run.phase is RunPhase.FROZEN:
        gone = f", and Slurm does not have its job {files.job_id}" if files.job_id else ""
        return f"{word}{gone}"
    if word in ("stopped", "lost") or (run.is_ended and word not in _STATES):
        how = "no record shows why" if end is None else end
        what = {"stopped": "stopped", "lost": "lost: its process or job is gone"}
        return f"{what.get(word, f'ended, {word.upper()} to Slurm')}: {how}"
    return _STATES.get(word, f"{word.upper()} to Slurm")


def _restarting(files: RunFiles) -> str | None:
    """Return `restarting after preemption` of a run that continues by itself; None of any other."""
    last = files.last
    if files.newest == 0 or (last and last.decision in FINAL):
        return None
    return f"restarting after {CAUSES[last.cause]}" if last and files.is_closed else "restarting"


def nodes(run: RunState) -> str | None:
    """Return the nodes on which a run runs, or how many it waits for; None after its end."""
    if run.job is not None and run.job.nodes:
        return None if run.is_ended else run.job.nodes
    if run.job is not None and run.is_waiting:
        return quantity(run.job.num_nodes, "node") + " wanted"
    if run.word == "running" and run.files.plan is not None:
        return node_list(run.files.plan.nodes)
    return None


def node_list(names: Sequence[str]) -> str:
    """Return names of nodes as Slurm writes them: `n[1-3,7],login`. No name is left out."""
    groups: dict[tuple[str, int], list[int]] = {}
    others = []
    for name in dict.fromkeys(names):
        if match := _NUMBERED.fullmatch(name):
            groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
        else:
            others.append(name)
    texts = []
    for (prefix, width), numbers in groups.items():
        ranges = number_ranges(numbers, width)
        texts.append(prefix + (f"[{ranges}]" if len(numbers) > 1 else ranges))
    return ",".join([*texts, *others])


def checkpoint(files: RunFiles, now: float) -> str | None:
    """Return the newest checkpoint and its age: `step 1200, 5 min ago`."""
    if files.saved.checkpoint is None:
        return None
    text = f"step {checkpoint_step(files.saved.checkpoint)}"
    if files.checkpoint_time is None:
        return text
    return f"{text}, {format_duration(max(0, now - files.checkpoint_time), 1)} ago"


def end_reason(record: AttemptRecord) -> str:
    """Return what ended an attempt, with the first line of the reason of the decision."""
    return ": ".join(filter(None, [CAUSES[record.cause], first_line(record.reason)]))


@dataclass(frozen=True)
class _Shown:
    """What the commands show of what a plugin keeps in the record of an attempt."""

    left_out: tuple[LeftOut, ...] = ()


def left_out_of(files: RunFiles) -> list[dict[str, Any]]:
    """Return the nodes that a run does without now, as --json prints them; the newest first.

    `until`: seconds since the epoch. Raises: RecordError.
    """
    found: list[LeftOut] = []
    for name, value in ({} if files.last is None else files.last.evidence.plugins).items():
        with contextlib.suppress(records.RecordError):  # a list goes on
            found += records.decode(_Shown, records.encode(value), name).left_out
    if not found:
        return []
    submission = records.read(Submission, files.run_dir.submission) or Submission()
    lasts_s = files.spec.slurm.suspect_hours * 3600
    since = max(time.time() - lasts_s, submission.nodes_taken_back or 0.0)
    return [
        {"node": each.node, "until": each.time + lasts_s, "kind": each.kind, "text": each.text}
        for each in found
        if each.time >= since
    ]
