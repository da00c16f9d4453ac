"""The job that waits for the end of the present one, to go on with the run where a requeue cannot.

It is queued from inside the first attempt of a job, on the same run directory with the same script
and options, behind `--dependency=afterany`: so it starts when the job has ended for good (a job
that is requeued has not). What became of its predecessor it finds out first: a run that was
cancelled or held stays so, and one of which nobody can tell waits for `resume`. Standard library
only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from jobs import records
from jobs.attempt import facts, history, interpret, run_lock
from jobs.attempt.decision import Action, Cause
from jobs.attempt.interpret import AttemptFacts
from jobs.console import say
from jobs.errors import FailedError
from jobs.records import SlurmSite, Successor
from jobs.rundir import RunDir
from jobs.runs import lookup
from jobs.slurm import client, sbatch, site_warnings
from jobs.slurm import site as slurm_site


class EndedError(FailedError):
    """This job was to go on after another one, and must not; the text says why."""


@dataclass(frozen=True)
class Fate:
    """Whether a successor goes on with the run, why not, and how the run ends by that."""

    goes_on: bool
    reason: str = ""
    ends: Action | None = None  # None: it has ended, or is somebody else's


def reason_for(run_dir: RunDir, found: AttemptFacts, can_requeue: bool) -> str:
    """Why the job needs a successor; empty if it does not."""
    spec = found.spec
    if spec.slurm.restart == "requeue":
        return ""
    if spec.slurm.restart == "successor":
        return "slurm.restart=successor"
    if not can_requeue:
        return "this job cannot be requeued (Requeue=0)"
    # Written at submit, else asked now.
    known = found.site
    if known is None:
        known = site_warnings.record_site(run_dir, spec.slurm, slurm_site.query(spec.slurm))
    return "preemption cancels jobs here" if known.cancels_preempted else ""


def ensure(run_dir: RunDir, found: AttemptFacts, job_id: str) -> None:
    """Queue the job's successor, if it needs one; only at the job's first attempt.

    `found`: of the attempt before.
    """
    if found.plan is not None and found.plan.job_id == job_id:
        return
    job = client.show_job_patiently(job_id) if found.spec.slurm.restart != "requeue" else None
    can_requeue = job is None or job.can_requeue
    reason = reason_for(run_dir, found, can_requeue)
    if reason:
        queue(run_dir, found, job_id, can_requeue, reason)
    else:
        run_dir.successor.unlink(missing_ok=True)  # an earlier job's


def queue(
    run_dir: RunDir, found: AttemptFacts, job_id: str, can_requeue: bool, reason: str
) -> str | None:
    """Queue a job that starts after this one; its id, or None where Slurm takes none.

    Raises: OSError, with the new job cancelled, if it cannot be noted.
    """
    argv = argv_after(run_dir, found, job_id, can_requeue)
    environ = sbatch.successor_environ(os.environ, run_dir)
    environ |= {lookup.SUCCEEDS: f"{run_dir.run_id}:{job_id}"}
    new_id, problem = client.submit(argv, environ)
    if new_id is None:
        say(f"no successor of job {job_id} ({reason}): {problem}\n  hint: make resume goes on")
        return None
    try:
        records.write(run_dir.successor, Successor(new_id, job_id, reason))
        lookup.remember(run_dir, new_id, client.cluster_name(), run_dir.path.parent.parent)
    except OSError:
        client.cancel(new_id)
        raise
    say(f"job {new_id} waits for the end of job {job_id}, to go on with the run: {reason}")
    return new_id


def argv_after(run_dir: RunDir, found: AttemptFacts, job_id: str, can_requeue: bool) -> list[str]:
    """Return sbatch's command line for the job after this one: the same script and options.

    After plain sbatch there is no recorded command line. The spec has most of its options (see
    jobs.commands.adopt), but no --constraint and no --reservation.
    """
    argv = found.submission.argv or sbatch.sbatch_argv(found.spec, run_dir)
    return sbatch.successor_argv(argv, job_id, can_requeue)


def confirm(run_dir: RunDir, found: AttemptFacts, job_id: str) -> str | None:
    """The id of the job that continues the run after this one, queued now if need be; or None."""
    present = interpret.successor_of(found, job_id)
    if present is not None and client.is_alive(present) is not False:
        return present
    if found.spec.slurm.restart == "requeue":
        return None
    can_requeue = found.last is None or found.last.evidence.can_requeue
    return queue(run_dir, found, job_id, can_requeue, "it cannot go on itself")


def cancel(run_dir: RunDir, found: AttemptFacts, job_id: str) -> None:
    """Cancel the job's successor: there is nothing left to continue."""
    present = interpret.successor_of(found, job_id)
    if present is not None:
        client.cancel(present)
        run_dir.successor.unlink(missing_ok=True)


def look_back(run_dir: RunDir, me: run_lock.Owner) -> None:
    """Find out whether this job may continue the run, before it opens an attempt.

    Only a successor reads anything here; the claim comes after it, so `open` reads again.
    Raises: EndedError, with the run's end recorded if no other process did that.
    """
    before = lookup.predecessor(run_dir)
    if before is None:
        return
    found = facts.read(run_dir, history.newest_opened(run_dir))
    fate = fate_of(run_dir, found, me.job_id, before)
    if fate.goes_on:
        return
    if fate.ends is not None:
        run_lock.claim(run_dir, me, interpret.newest_number(found))
        found = history.close_lost(run_dir, found, me, before)
        was_through = interpret.is_completed(found)  # a script that ended before its job did
        if not was_through:
            history.end_run(run_dir, found, fate.ends, Cause.LOST, fate.reason)
        run_lock.release(run_dir, me)
        if was_through:
            return
    raise EndedError(f"{run_dir.path}: job {me.job_id} does not go on: {fate.reason}")


def fate_of(run_dir: RunDir, found: AttemptFacts, my_id: str, before: str) -> Fate:
    """Whether this job, the successor of job `before`, continues the run.

    A cancelled run must never come back, so an unknown end of that job holds the run.
    """
    last_job = _last_job(found)
    if last_job == my_id:  # requeued: it looked when it first started
        return Fate(True)
    if last_job not in (None, before):
        return Fate(False, f"after job {before} the run went on as job {last_job}")
    if interpret.is_completed(found):
        return Fate(True)  # `attempt open` says so
    if result := found.result:
        return Fate(False, f"job {before} left it {result.status}: {result.reason}")
    state = end_state(run_dir, found, before)
    if state == "CANCELLED":
        return Fate(False, f"job {before} was cancelled", Action.CANCEL)
    if state is not None and state not in client.ENDED_STATES:
        return Fate(False, f"job {before} has not ended, it is {state}")
    if state is None and not _was_handed_over(found):
        what = f"it is not known any more whether job {before} was cancelled"
        return Fate(False, f"{what}; if not, make resume goes on", Action.HOLD)
    return Fate(True)


def _last_job(found: AttemptFacts) -> str | None:
    """The id of the job that opened the newest attempt, as far as a scratch purge leaves it."""
    newest = interpret.newest_number(found)
    if found.plan is not None and found.attempt == newest:
        return found.plan.job_id
    return next((record.job_id for record in found.attempts if record.attempt == newest), None)


def _was_handed_over(found: AttemptFacts) -> bool:
    """Whether the last attempt gave its run to the successor while its job was sound."""
    last = found.last
    if last is None or last.attempt != interpret.newest_number(found):
        return False
    return last.evidence.job_state == "RUNNING" and last.decision is Action.SUCCESSOR


def end_state(run_dir: RunDir, found: AttemptFacts, job_id: str) -> str | None:
    """How a job ended: slurmctld's word for some minutes (MinJobAge), then sacct's, then its log's.

    None where nobody knows.
    """
    job = client.show_job_patiently(job_id)
    if job is not None:
        return job.state
    return client.past_states([job_id]).get(job_id) or state_in_log(run_dir, found.site, job_id)


def state_in_log(run_dir: RunDir, site: SlurmSite | None, job_id: str) -> str | None:
    """What slurmstepd wrote last into the job's log of its end; None if that is not its end.

    Source: src/slurmd/slurmstepd/req.c: `*** JOB 7 ON n1 CANCELLED AT <time> DUE TO ... ***`.
    """
    try:
        text = run_dir.job_log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    line = rf"\*\*\* JOB {re.escape(job_id)} ON \S+ CANCELLED AT \S+ (.*)\*\*\*"
    why = next(iter(re.findall(line, text)[-1:]), None)
    if why == "":
        return "CANCELLED"
    # Elsewhere a preempted job is queued again, and may have been cancelled there.
    is_final = site is not None and bool(site.cancels_preempted)
    return "PREEMPTED" if is_final and why == "DUE TO PREEMPTION " else None
