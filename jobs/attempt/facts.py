"""What is known when an attempt has ended: what ranks, agents and Slurm say about it."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from jobs.attempt import requeue_policy, srun_step
from jobs.attempt.decision import Evidence
from jobs.attempt.run_lock import Owner
from jobs.console import say
from jobs.rundir import RunDir, read_events, read_json
from jobs.runs import checkpoints, lookup
from jobs.slurm import client

# The longest pause before another attempt, and its start.
RETRY_S = 120.0
# What the clocks of two nodes may differ by.
SKEW_S = 2.0


def gather(run_dir: RunDir, me: Owner, attempt: int, srun_exit: int = 0) -> Evidence:
    """All of it; Slurm is asked only where the run is not complete, and waited for."""
    if me.is_local:
        return of_ranks(run_dir, attempt, "LOCAL")
    seen = of_ranks(run_dir, attempt, "UNKNOWN", srun_exit)
    if seen.outcome == "completed":
        return seen
    job = client.show_job_patiently(me.job_id)
    if job is None:
        say(f"attempt {attempt}: Slurm does not say what became of job {me.job_id}")
        return seen
    left = srun_step.unended(run_dir, attempt)
    is_requeued = job.restarts > client.restart_count()
    # Else Slurm itself ends the steps; in the job's next start they have the same names.
    if job.state == "RUNNING" and not is_requeued:
        srun_step.end_leftover(me.job_id, left)
    return replace(
        seen,
        job_state=job.state,
        job_reason=job.reason,
        is_preempted=job.is_preempted,
        is_requeued=is_requeued,
        can_requeue=job.can_requeue,
        has_successor=lookup.successor_of(run_dir, me.job_id) is not None,
        is_near_limit=is_near_limit(run_dir, attempt),
        silent_nodes=srun_step.silent(run_dir, attempt, left),
        is_left_to_slurm=requeue_policy.is_left_to_slurm(run_dir, seen, job, me.job_id),
    )


def is_near_limit(run_dir: RunDir, attempt: int) -> bool:
    """Whether the warning of the time limit might fall between two steps, where nobody hears it.

    Slurm sends it once.
    """
    deadline = (read_json(run_dir.attempt(attempt).plan) or {}).get("deadline")
    lead_s = read_json(run_dir.spec)["slurm"]["signal_lead_s"]
    return deadline is not None and time.time() > deadline - lead_s - RETRY_S


def errors(run_dir: RunDir, attempt: int) -> list[dict[str, Any]]:
    """The records of the ranks that failed."""
    paths = run_dir.attempt(attempt).path.glob("rank-*.error.json")
    return [record for record in map(read_json, paths) if record is not None]


def first_error(run_dir: RunDir, attempt: int) -> dict[str, Any] | None:
    """The record of the rank that failed first, or that hung; its peers fail of its absence."""
    return min(errors(run_dir, attempt), key=_how_far_from_the_cause, default=None)


def bad_nodes(run_dir: RunDir, attempt: int) -> tuple[str, ...]:
    """The nodes that failed the preflight."""
    failed = filter(lambda record: kind_of(record) == "bad_node", errors(run_dir, attempt))
    return tuple(sorted({record["host"] for record in failed}))


def _how_far_from_the_cause(record: dict[str, Any]) -> tuple[bool, bool, float]:
    return (
        kind_of(record) not in ("hang", "bad_node"),
        bool(record.get("caused_by_peer")),
        float(record["time"]),
    )


def is_hang(record: dict[str, Any] | None) -> bool:
    """Whether a rank's error record is the hang watchdog's."""
    return kind_of(record) == "hang"


def kind_of(record: dict[str, Any] | None) -> str | None:
    """What kind of error a rank's record is of; "error" is nothing special."""
    return None if record is None else record.get("kind")


def of_ranks(run_dir: RunDir, attempt: int, job_state: str, srun_exit: int = 0) -> Evidence:
    """What ranks and agents left behind; of what Slurm says only the job's state."""
    attempt_dir = run_dir.attempt(attempt)
    plan = read_json(attempt_dir.plan) or {}
    count = len(plan.get("nodes", []))
    records = [read_json(attempt_dir.node(rank)) for rank in range(count)]
    nodes = [record for record in records if record is not None]
    failed = first_error(run_dir, attempt)
    out_of_memory = [node["host"] for node in nodes if node.get("oom_kill")]
    error = in_one_line(failed) if failed else None
    if failed is not None and failed.get("caused_by_peer"):
        error = vanished(run_dir, attempt) or error
    if out_of_memory:  # the killed rank left no word, and its peers know nothing of memory
        error = f"{', '.join(out_of_memory)}: the kernel killed a process for want of memory"
    signals = warnings(nodes, failed)
    if has_fallen(records, srun_exit):
        signals = tuple(name for name in signals if name != "SIGTERM")
    outcome = marked(run_dir, attempt)
    if outcome is None and nodes and [node["torchrun_exit"] for node in nodes] == [0] * count:
        outcome = unmarked(run_dir, signals)
    if error is None and outcome is None:
        ended = [f"{n['host']}: torchrun exit {n['torchrun_exit']}" for n in nodes]
        mute = zip(plan.get("nodes", []), records, strict=True)
        ended += [f"{node}: its agent left no word" for node, record in mute if record is None]
        error = "; ".join(ended) or None
    return Evidence(
        outcome=outcome,
        job_state=job_state,
        job_reason="",
        signals=signals,
        is_preempted=False,
        # Not just another one: a damaged one that was put aside leaves an older one.
        has_progress=(checkpoints.newest(run_dir) or "") > (plan.get("checkpoint") or ""),
        error=error,
        is_user_error=bool(failed and failed.get("is_user_error")),
        is_hang=is_hang(failed),
        is_out_of_memory=kind_of(failed) == "out_of_memory" or bool(out_of_memory),
        bad_nodes=bad_nodes(run_dir, attempt),
    )


def vanished(run_dir: RunDir, attempt: int) -> str | None:
    """Which ranks left no record, where all the others only lost a peer; None if none did.

    Somebody's SIGKILL, or a crash of the interpreter itself.
    """
    places = {}
    for path in run_dir.timeline("x").parent.glob("rank-*.jsonl"):
        for event in read_events(path):
            if (event["attempt"], event["event"]) == (attempt, "spawn"):
                places[int(path.stem.partition("-")[2])] = event["host"]
    recorded = {record["rank"] for record in errors(run_dir, attempt)}
    gone = [f"rank {rank} on {places[rank]}" for rank in sorted(places.keys() - recorded)]
    return f"{', '.join(gone)} ended without a word" if gone else None


def in_one_line(failed: dict[str, Any]) -> str:
    """A rank's error but for its hint and traceback, which the job's log shows."""
    first = next(iter(failed["error"].strip().splitlines()), "")
    return f"rank {failed['rank']} on {failed['host']}: {first}"


def marked(run_dir: RunDir, attempt: int) -> str | None:
    """The status in rank 0's marker; None without one, and for one that makes no sense.

    The result of a run that is complete is written just before; its attempt began without one.
    """
    if (read_json(run_dir.result) or {}).get("status") == "completed":
        return "completed"
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
    if not checkpoints.is_foreign(run_dir):
        return None
    launch = read_json(run_dir.spec)["launch"]
    return "stopped" if signals and launch["stop_signal"] != "none" else "completed"


def has_fallen(records: list[dict[str, Any] | None], srun_exit: int) -> bool:
    """Whether an agent came to its end without a warning of its own: killed, or before it began.

    srun sends the others a SIGTERM then, maybe before any rank has noticed. One that dies of a
    signal in its first moments was warned like the others. `srun_exit`: 0 where nobody saw it.
    """
    fallen = any(r is not None and r["end"] is None and not r["signals"] for r in records)
    return fallen or (None in records and 0 < srun_exit < 128)


def warnings(nodes: list[dict[str, Any]], failed: dict[str, Any] | None) -> tuple[str, ...]:
    """The stop signals that came before anything failed, in order.

    Once one node's agent fails, srun itself sends SIGTERM to the others: no warning, but the
    consequence of a crash.
    """
    failures = [(node["end"], node["host"]) for node in nodes if node["torchrun_exit"]]
    if failed is not None:
        failures.append((failed["time"], failed["host"]))
    first, host = min(failures, default=(math.inf, ""))
    arrived = sorted(
        (s["t"], s["signal"])
        for node in nodes
        for s in node["signals"]
        if s["t"] < (first if node["host"] == host else first - SKEW_S)
    )
    return tuple(dict.fromkeys(name for _, name in arrived))
