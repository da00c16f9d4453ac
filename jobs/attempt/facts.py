"""What is known when an attempt has ended: what ranks, agents and Slurm say about it."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from jobs import records
from jobs.attempt import requeue_policy, srun_step
from jobs.attempt.decision import Evidence
from jobs.attempt.run_lock import Owner
from jobs.console import say
from jobs.records import AgentRecord, AttemptPlan, RankError, RankExit, Result
from jobs.rundir import RunDir
from jobs.runs import checkpoints, lookup
from jobs.slurm import client
from jobs.spec import Spec

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
    plan = records.read(AttemptPlan, run_dir.attempt(attempt).plan)
    if plan is None or plan.deadline is None:
        return False
    return time.time() > plan.deadline - Spec.read(run_dir.spec).slurm.signal_lead_s - RETRY_S


def errors(run_dir: RunDir, attempt: int) -> list[RankError]:
    """The records of the ranks that failed."""
    paths = run_dir.attempt(attempt).path.glob("rank-*.error.json")
    found = (records.read(RankError, path) for path in paths)
    return [record for record in found if record is not None]


def first_error(run_dir: RunDir, attempt: int) -> RankError | None:
    """The record of the rank that failed first, or that hung; its peers fail of its absence."""
    return min(errors(run_dir, attempt), key=_how_far_from_the_cause, default=None)


def bad_nodes(run_dir: RunDir, attempt: int) -> tuple[str, ...]:
    """The nodes that failed the preflight."""
    failed = [record for record in errors(run_dir, attempt) if record.kind == "bad_node"]
    return tuple(sorted({record.host for record in failed}))


def _how_far_from_the_cause(record: RankError) -> tuple[bool, bool, float]:
    return (
        record.kind not in ("hang", "bad_node"),
        record.caused_by_peer,
        record.time,
    )


def of_ranks(run_dir: RunDir, attempt: int, job_state: str, srun_exit: int = 0) -> Evidence:
    """What ranks and agents left behind; of what Slurm says only the job's state."""
    attempt_dir = run_dir.attempt(attempt)
    plan = records.read(AttemptPlan, attempt_dir.plan)
    names = () if plan is None else plan.nodes
    found = [records.read(AgentRecord, attempt_dir.agent(rank)) for rank in range(len(names))]
    agents = [record for record in found if record is not None]
    failed = first_error(run_dir, attempt)
    out_of_memory = [agent.host for agent in agents if agent.oom_kill]
    error = in_one_line(failed) if failed else None
    if failed is not None and failed.caused_by_peer:
        error = vanished(run_dir, attempt) or error
    if out_of_memory:  # the killed rank left no word, and its peers know nothing of memory
        error = f"{', '.join(out_of_memory)}: the kernel killed a process for want of memory"
    signals = warnings(agents, failed)
    if has_fallen(found, srun_exit):
        signals = tuple(name for name in signals if name != "SIGTERM")
    outcome = marked(run_dir, attempt)
    if outcome is None and agents and [agent.torchrun_exit for agent in agents] == [0] * len(names):
        outcome = unmarked(run_dir, signals)
    if error is None and outcome is None:
        ended = [f"{agent.host}: torchrun exit {agent.torchrun_exit}" for agent in agents]
        of_nodes = zip(names, found, strict=True)
        ended += [
            f"{node}: the node agent wrote no record (killed, or never started)"
            for node, record in of_nodes
            if record is None
        ]
        error = "; ".join(ended) or None
    return Evidence(
        outcome=outcome,
        job_state=job_state,
        job_reason="",
        signals=signals,
        is_preempted=False,
        # Not just another one: a damaged one that was put aside leaves an older one.
        has_progress=checkpoints.is_newer(checkpoints.newest(run_dir), plan and plan.checkpoint),
        error=error,
        is_user_error=failed is not None and failed.is_user_error,
        is_hang=failed is not None and failed.kind == "hang",
        is_out_of_memory=bool(out_of_memory)
        or (failed is not None and failed.kind == "out_of_memory"),
        bad_nodes=bad_nodes(run_dir, attempt),
    )


def vanished(run_dir: RunDir, attempt: int) -> str | None:
    """Which ranks left no record, where all the others only lost a peer; None if none did.

    Somebody's SIGKILL, or a crash of the interpreter itself.
    """
    places = {}
    for path in run_dir.timeline("x").parent.glob("rank-*.jsonl"):
        for event in records.read_events(path):
            if (event.attempt, event.event) == (attempt, "spawn"):
                places[int(path.stem.partition("-")[2])] = event.host
    recorded = {record.rank for record in errors(run_dir, attempt)}
    gone = [f"rank {rank} on {places[rank]}" for rank in sorted(places.keys() - recorded)]
    return (
        f"{', '.join(gone)} died without an error record (SIGKILL or a crash of the interpreter)"
        if gone
        else None
    )


def in_one_line(failed: RankError) -> str:
    """A rank's error but for its hint and traceback, which the job's log shows."""
    first = next(iter(failed.error.strip().splitlines()), "")
    return f"rank {failed.rank} on {failed.host}: {first}"


def marked(run_dir: RunDir, attempt: int) -> str | None:
    """The status in rank 0's marker; None without one, and for one that makes no sense.

    The result of a run that is complete is written just before; its attempt began without one.
    """
    result = records.read(Result, run_dir.result)
    if result is not None and result.status == "completed":
        return "completed"
    return read_exit(run_dir, attempt).status


def read_exit(run_dir: RunDir, attempt: int) -> RankExit:
    """The content of outcome.json, which a user's script may have written; empty without one."""
    return records.read_leniently(RankExit, run_dir.attempt(attempt).outcome) or RankExit()


def unmarked(run_dir: RunDir, signals: tuple[str, ...]) -> str | None:
    """What an exit with 0 of every rank means where rank 0 left no marker.

    The trainer always leaves one. A script of one's own that was warned and sent its stop signal
    may have stopped early: a further attempt finds out in a moment if all is done. One that is
    never sent a signal knows of no stop, and is through.
    """
    if not checkpoints.is_foreign(run_dir):
        return None
    stop_signal = Spec.read(run_dir.spec).launch.stop_signal
    return "stopped" if signals and stop_signal != "none" else "completed"


def has_fallen(agents: list[AgentRecord | None], srun_exit: int) -> bool:
    """Whether an agent came to its end without a warning of its own: killed, or before it began.

    srun sends the others a SIGTERM then, maybe before any rank has noticed. One that dies of a
    signal in its first moments was warned like the others. `srun_exit`: 0 where nobody saw it.
    """
    fallen = any(a is not None and a.end is None and not a.signals for a in agents)
    return fallen or (None in agents and 0 < srun_exit < 128)


def warnings(agents: list[AgentRecord], failed: RankError | None) -> tuple[str, ...]:
    """The stop signals that came before anything failed, in order.

    Once one node's agent fails, srun itself sends SIGTERM to the others: no warning, but the
    consequence of a crash.
    """
    failures = [
        (agent.end, agent.host) for agent in agents if agent.torchrun_exit and agent.end is not None
    ]
    if failed is not None:
        failures.append((failed.time, failed.host))
    first, host = min(failures, default=(math.inf, ""))
    arrived = sorted(
        (each.t, each.signal)
        for agent in agents
        for each in agent.signals
        if each.t < (first if agent.host == host else first - SKEW_S)
    )
    return tuple(dict.fromkeys(name for _, name in arrived))
