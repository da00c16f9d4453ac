"""What the attempts of a run left behind: evidence, records, budgets used, result.

Everything is read from and written to the run directory; who may write is `jobs.owner`'s affair.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs.decision import Action, Cause, Decision, Evidence, History
from jobs.rundir import RunDir, append_jsonl, read_json, read_jsonl, read_progress_step, write_json

CHECKPOINT_PREFIX = "step-"
QUARANTINE_PREFIX = f"quarantined-{CHECKPOINT_PREFIX}"


def newest_attempt(run_dir: RunDir) -> int:
    """The number of the newest attempt that was opened; 0 before the first."""
    plans = run_dir.path.glob("attempt-*/plan.json")
    return max((int(plan.parent.name.partition("-")[2]) for plan in plans), default=0)


def newest_checkpoint(run_dir: RunDir) -> str | None:
    """What names the newest checkpoint, and sorts by age; None if there is none.

    Of the trainer's, committed ones alone have their final name. A script of one's own names its
    files as it likes: there it is the time and path of the newest one.
    """
    if is_foreign(run_dir):
        return _newest_file(run_dir.checkpoints)
    committed = run_dir.checkpoints.glob(f"{CHECKPOINT_PREFIX}*")
    return max((path.name for path in committed), default=None)


def quarantined(run_dir: RunDir) -> list[str]:
    """The names of the checkpoints that were found damaged and put aside, oldest first."""
    return sorted(path.name for path in run_dir.checkpoints.glob(f"{QUARANTINE_PREFIX}*"))


def newly_quarantined(run_dir: RunDir, attempt: int) -> list[str]:
    """Those that were put aside since the attempt was opened: by names, as clocks may differ."""
    before = (read_json(run_dir.attempt(attempt).plan) or {}).get("quarantined", [])
    return [name for name in quarantined(run_dir) if name not in before]


def _newest_file(folder: Path) -> str | None:
    """The time and path of the newest file below a folder but hidden and .tmp ones.

    The times are the file system's own, and are compared with nothing else.
    """
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(".") and not name.endswith(".tmp"):
                path = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):  # the script replaces it right now
                    found.append(f"{path.stat().st_mtime_ns:020d} {path.relative_to(folder)}")
    return max(found, default=None)


def first_error(run_dir: RunDir, attempt: int) -> dict[str, Any] | None:
    """The record of the rank that failed first, or that hung; its peers fail of its absence."""
    paths = run_dir.attempt(attempt).path.glob("rank-*.error.json")
    errors = [record for record in map(read_json, paths) if record is not None]
    return min(errors, key=_how_far_from_the_cause, default=None)


def _how_far_from_the_cause(record: dict[str, Any]) -> tuple[bool, bool, float]:
    return not is_hang(record), bool(record.get("caused_by_peer")), float(record["time"])


def is_hang(record: dict[str, Any] | None) -> bool:
    """Whether a rank's error record is the hang watchdog's."""
    return record is not None and record.get("kind") == "hang"


def evidence(run_dir: RunDir, attempt: int, job_state: str) -> Evidence:
    """What ranks and agents left behind; of what Slurm says only the job's state."""
    attempt_dir = run_dir.attempt(attempt)
    plan = read_json(attempt_dir.plan) or {}
    count = len(plan.get("nodes", []))
    records = (read_json(attempt_dir.node(rank)) for rank in range(count))
    nodes = [record for record in records if record is not None]
    failed = first_error(run_dir, attempt)
    error = in_one_line(failed) if failed else None
    signals = warnings(nodes, failed)
    outcome = marked(run_dir, attempt)
    if outcome is None and nodes and [node["torchrun_exit"] for node in nodes] == [0] * count:
        outcome = unmarked(run_dir, signals)
    if failed is None and outcome is None:
        ended = [f"{n['host']}: torchrun exit {n['torchrun_exit']}" for n in nodes]
        error = "; ".join(ended) or None
    return Evidence(
        outcome=outcome,
        job_state=job_state,
        job_reason="",
        signals=signals,
        is_preempted=False,
        # Not just another one: a damaged one that was put aside leaves an older one.
        has_progress=(newest_checkpoint(run_dir) or "") > (plan.get("checkpoint") or ""),
        error=error,
        is_user_error=bool(failed and failed.get("is_user_error")),
        is_hang=is_hang(failed),
    )


def in_one_line(failed: dict[str, Any]) -> str:
    """A rank's error but for its hint and traceback, which the job's log shows."""
    first = next(iter(failed["error"].strip().splitlines()), "")
    return f"rank {failed['rank']} on {failed['host']}: {first}"


def marked(run_dir: RunDir, attempt: int) -> str | None:
    """The status in rank 0's marker; None without one, and for one that makes no sense."""
    marker = read_marker(run_dir, attempt)
    return marker["status"] if marker.get("status") in ("completed", "stopped") else None


def read_marker(run_dir: RunDir, attempt: int) -> dict[str, Any]:
    """Rank 0's marker; {} without one. It may be the work of somebody's own script."""
    try:
        marker = read_json(run_dir.attempt(attempt).outcome)
    except ValueError:
        return {}
    return marker if isinstance(marker, dict) else {}


def unmarked(run_dir: RunDir, signals: tuple[str, ...]) -> str | None:
    """What an exit with 0 of every rank means where rank 0 left no marker.

    The trainer always leaves one. A script of one's own that was warned and sent its stop signal
    may have stopped early: a further attempt finds out in a moment if all is done. One that is
    never sent a signal knows of no stop, and is through.
    """
    if not is_foreign(run_dir):
        return None
    launch = read_json(run_dir.spec)["launch"]
    return "stopped" if signals and launch["stop_signal"] != "none" else "completed"


def is_foreign(run_dir: RunDir) -> bool:
    """Whether the ranks are somebody's own script, not our trainer."""
    spec = read_json(run_dir.spec)
    return bool(spec and (spec["launch"]["script"] or spec["launch"]["module"]))


def warnings(nodes: list[dict[str, Any]], failed: dict[str, Any] | None) -> tuple[str, ...]:
    """The stop signals that came before anything failed, in order.

    Once one node's agent fails, srun itself sends SIGTERM to the others: no warning, but the
    consequence of a crash.
    """
    ends = [node["end"] for node in nodes if node["torchrun_exit"]]
    first_failure = min([*ends, *([failed["time"]] if failed else [])], default=math.inf)
    arrived = sorted((s["t"], s["signal"]) for node in nodes for s in node["signals"])
    return tuple(dict.fromkeys(name for t, name in arrived if t < first_failure))


def steps_of(run_dir: RunDir, attempt: int) -> tuple[int | None, int | None]:
    """The first and the last optimizer step that an attempt did; None where it did none."""
    events = read_jsonl(run_dir.timeline("rank-00000"))
    mine = [event for event in events if event["attempt"] == attempt]
    loaded = next((event["step"] for event in mine if event["event"] == "loaded"), None)
    last = read_progress_step(run_dir.progress)
    if loaded is None or last is None or last <= loaded:
        return None, None
    return loaded + 1, last


def record(run_dir: RunDir, attempt: int, seen: Evidence, decision: Decision) -> None:
    """Append the one record of an attempt to attempts.jsonl."""
    plan = read_json(run_dir.attempt(attempt).plan) or {}
    first_step, last_step = steps_of(run_dir, attempt)
    entry = {
        "attempt": attempt,
        "job_id": plan.get("job_id"),
        "nodes": plan.get("nodes"),
        "start": plan.get("start"),
        "stop": round(time.time(), 3),
        "cause": decision.cause,
        "first_step": first_step,
        "last_step": last_step,
        "checkpoint": newest_checkpoint(run_dir),
        "quarantined": newly_quarantined(run_dir, attempt),
        "decision": decision.action,
        "reason": decision.reason,
        "evidence": asdict(seen),
    }
    append_jsonl(run_dir.attempts, entry, durable=True)


def close_lost(run_dir: RunDir) -> None:
    """Record the newest attempt if nobody did: its batch shell was killed."""
    newest = newest_attempt(run_dir)
    recorded = {entry["attempt"] for entry in read_jsonl(run_dir.attempts)}
    if newest == 0 or newest in recorded:
        return
    seen = evidence(run_dir, newest, "LOST")
    if seen.outcome == "completed":
        decision = Decision(Action.DONE, Cause.COMPLETED, "all steps are done")
    else:
        decision = Decision(Action.RETRY, Cause.LOST, "nobody was left to say what happened")
    record(run_dir, newest, seen, decision)
    if decision.action is Action.DONE:
        finish_result(run_dir)


def of(records: list[dict[str, Any]]) -> History:
    """What counts against the budgets. A hold or a cancel starts anew: somebody resumed."""
    crashes = idle = restarts = 0
    may_count_crashes = may_count_idle = True
    for entry in reversed(records):
        if entry["decision"] in (Action.HOLD, Action.CANCEL):
            break
        has_progress = entry["evidence"]["has_progress"]
        may_count_idle = may_count_idle and not has_progress
        idle += may_count_idle
        crashes += may_count_crashes and entry["cause"] in (Cause.CRASH, Cause.HANG)
        may_count_crashes = may_count_crashes and not has_progress
        restarts += entry["decision"] in (Action.REQUEUE, Action.WAIT)
    return History(restarts, crashes, idle)


def steps_redone(records: list[dict[str, Any]]) -> int:
    """Optimizer steps that were done more than once."""
    done = redone = 0
    for entry in records:
        if entry["first_step"] is not None:
            redone += max(0, done - entry["first_step"] + 1)
            done = entry["last_step"]
    return redone


def finish_result(run_dir: RunDir) -> None:
    """Complete rank 0's result with what only the attempts know."""
    records = read_jsonl(run_dir.attempts)
    counted = {"attempts": len(records), "steps_redone": steps_redone(records)}
    result = read_json(run_dir.result) or {"status": "completed"}
    write_json(run_dir.result, result | counted)


def reached_step(run_dir: RunDir) -> int:
    """The last optimizer step as far as anybody says; 0 before the first."""
    step = read_progress_step(run_dir.progress)
    if step is None:  # a script of one's own has only its marker to say it
        step = read_marker(run_dir, newest_attempt(run_dir)).get("global_step")
    return step if isinstance(step, int) else 0


def unfinished_result(run_dir: RunDir, decision: Decision) -> None:
    """Write the result of a run that stops here without being complete."""
    records = read_jsonl(run_dir.attempts)
    status = "cancelled" if decision.action is Action.CANCEL else "held"
    result = {
        "status": status,
        "reason": decision.reason,
        "global_step": reached_step(run_dir),
        "attempts": len(records),
        "steps_redone": steps_redone(records),
    }
    write_json(run_dir.result, result)
