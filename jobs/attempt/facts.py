"""Reads what the run directory, Slurm and the nodes have about an attempt; changes nothing.

A command reads each file once; jobs.attempt.interpret and jobs.attempt.decision take values.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import chain

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.attempt import interpret, requeue_policy, srun_step
from slurm_job_kit.jobs.attempt.interpret import AttemptFacts
from slurm_job_kit.jobs.console import say
from slurm_job_kit.jobs.records import (
    AgentRecord,
    AttemptPlan,
    AttemptRecord,
    Event,
    Evidence,
    Outcome,
    RankError,
    Result,
    SlurmSite,
    Submission,
    Successor,
)
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import checkpoints, scratch_purge
from slurm_job_kit.jobs.slurm import client

RANK_0 = "rank-00000"


def newest_opened(run_dir: RunDir) -> int:
    """The number of the newest attempt by its folder's files, of which none is read; 0 for none."""
    files = (run_dir.path.glob(f"attempt-*/{name}.json") for name in ("plan", "agent-*"))
    numbers = (path.parent.name.partition("-")[2] for path in chain.from_iterable(files))
    # A user's copy of such a folder may have any name.
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def newest_attempt(run_dir: RunDir) -> int:
    """The number of the newest attempt that was opened; 0 before the first.

    A scratch purge may have removed its files or its record, so both are looked at.
    """
    recorded = [record.attempt for record in records.read_attempts(run_dir)]
    return max([newest_opened(run_dir), *recorded])


def last_record(run_dir: RunDir) -> AttemptRecord | None:
    """The record of the newest attempt that was closed; None before the first."""
    attempts = records.read_attempts(run_dir)
    return attempts[-1] if attempts else None


def is_complete(run_dir: RunDir) -> bool:
    """Whether result.json says that the run is complete."""
    result = records.read(Result, run_dir.result)
    return result is not None and result.status == "completed"


def read_newest(run_dir: RunDir) -> AttemptFacts:
    """`read` of the newest attempt that has files. Raises: RecordError, OSError."""
    return read(run_dir, newest_opened(run_dir))


def read(run_dir: RunDir, attempt: int) -> AttemptFacts:
    """What the run directory has about an attempt. Raises: RecordError, OSError."""
    attempt_dir = run_dir.attempt(attempt)
    plan = records.read(AttemptPlan, attempt_dir.plan)
    paths = attempt_dir.path.glob("rank-*.error.json")
    found = [records.read(RankError, path) for path in paths]
    texts = [
        path.read_text(encoding="utf-8", errors="replace").strip()
        for path in sorted(attempt_dir.path.glob("agent-*.error"))
    ]
    agents = tuple(
        records.read(AgentRecord, attempt_dir.agent(rank))
        for rank in range(len(plan.nodes) if plan else 0)
    )
    errors = interpret.causes([error for error in found if error is not None], agents)
    events = records.read_events(run_dir.timeline(RANK_0))
    spec, spec_error = scratch_purge.read_spec(run_dir)
    return AttemptFacts(
        attempt=attempt,
        plan=plan,
        agent_errors=tuple(filter(None, texts)),  # empty: written on a full disk
        agents=agents,
        errors=errors,
        places=_places(run_dir, attempt, errors, events),
        events=tuple(event for event in events if event.attempt == attempt),
        progress_step=records.read_progress_step(run_dir.progress),
        outcome=records.read_leniently(Outcome, attempt_dir.outcome) or Outcome(),
        result=records.read(Result, run_dir.result),
        attempts=tuple(records.read_attempts(run_dir)),
        spec=spec,
        spec_error=spec_error,
        site=records.read(SlurmSite, run_dir.site),
        submission=records.read(Submission, run_dir.submission) or Submission(),
        successor=records.read(Successor, run_dir.successor),
        checkpoint=checkpoints.newest(run_dir, not spec.launch.is_trainer),
        quarantined=tuple(checkpoints.quarantined(run_dir)),
    )


def _places(
    run_dir: RunDir, attempt: int, errors: tuple[RankError, ...], rank_0: list[Event]
) -> tuple[tuple[int, str], ...]:
    """(rank, host) of each rank that was started; () where a rank's own error explains the end.

    The timeline of every rank has to be read for it; that of rank 0 was read before.
    """
    first = interpret.first_error(errors)
    if first is None or not first.caused_by_peer:
        return ()
    places = {}
    for path in run_dir.timeline("x").parent.glob("rank-*.jsonl"):
        for event in rank_0 if path.stem == RANK_0 else records.read_events(path):
            if (event.attempt, event.event) == (attempt, "spawn") and event.host is not None:
                places[int(path.stem.partition("-")[2])] = event.host
    return tuple(sorted(places.items()))


def ask_slurm(found: AttemptFacts, seen: Evidence, job_id: str) -> Evidence:
    """`seen` with what Slurm shows of the job now; unchanged where slurmctld does not answer."""
    job = client.show_job_patiently(job_id)
    if job is None:
        say(f"attempt {found.attempt}: slurmctld does not show job {job_id}")
        return seen
    return replace(
        seen,
        job_state=job.state,
        job_reason=job.reason,
        is_preempted=job.is_preempted,
        is_requeued=job.restarts > client.restart_count(),
        can_requeue=job.can_requeue,
        has_successor=interpret.successor_of(found, job_id) is not None,
        is_near_limit=interpret.is_near_limit(found, time.time()),
        unreachable_nodes=srun_step.unreachable_nodes(found, interpret.unended(found)),
        is_left_to_slurm=requeue_policy.slurm_requeues_itself(found.attempts, seen, job, job_id),
    )


def ask_nodes(found: AttemptFacts, seen: Evidence) -> Evidence:
    """`seen` of a lost attempt with its nodes that do not answer, or that were rebooted since."""
    if unreachable := srun_step.unreachable_nodes(found, found.nodes):
        return replace(seen, unreachable_nodes=unreachable)
    boot_times = client.boot_times(found.nodes) if found.nodes else {}
    return replace(seen, rebooted_nodes=interpret.rebooted(found, boot_times))
