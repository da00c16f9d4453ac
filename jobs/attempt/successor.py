"""The job that waits for the end of the present one, to continue the run where a requeue cannot.

The first attempt of a job queues it, on the same run directory with the same script and options,
behind `--dependency=afterany`: it starts when the job has ended for good (a job that is requeued
has not). At its start it checks how its predecessor ended. A run that was cancelled or held stays
so. If the predecessor's end is unknown, the run is held; `resume` continues it. Standard library
only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from .. import hooks, installation, log_text, records
from ..console import print_line
from ..environment import Door
from ..errors import FailedError
from ..records.queued import SlurmSite, Successor
from ..rundir import RunDir
from ..runs import interpret, lookup
from ..runs.interpret import AttemptFacts
from ..slurm import client, job_list, job_state, sbatch, site_warnings
from ..slurm import site as slurm_site
from .decision import Action


class EndedError(FailedError):
    """This job was queued to continue the run after another job, and must not; the text has why."""


@dataclass(frozen=True)
class PredecessorCheck:
    """Whether a successor job may continue the run; if not, why, and how the run ends by that."""

    may_continue: bool
    reason: str = ""
    final_action: Action | None = None  # None: the run has ended already, or another job has it


MAY_CONTINUE = PredecessorCheck(True)


def reason_for(facts: AttemptFacts, can_requeue: bool) -> str:
    """Return why the job needs a successor; empty if it does not."""
    spec = facts.spec
    if spec.slurm.restart == "requeue":
        return ""
    if spec.slurm.restart == "successor":
        return "slurm.restart=successor"
    if not can_requeue:
        return "this job cannot be requeued (Requeue=0)"
    cancels = facts.site is not None and facts.site.cancels_preempted
    return "preemption cancels jobs here" if cancels else ""


def site_of_job(run_dir: RunDir, facts: AttemptFacts) -> SlurmSite:
    """Return what this Slurm does with the job. submit writes it into site.json, if Slurm answers.

    Where it could not, or the site gave the job another QOS than submit asked about, it is now.
    """
    known, own_qos = facts.site, os.environ.get("SLURM_JOB_QOS")
    if known is not None and (known.qos is None or own_qos in (None, known.qos)):
        return known
    here = replace(facts.spec.slurm, qos=own_qos or facts.spec.slurm.qos)
    return site_warnings.record_site(run_dir, here, slurm_site.query(here))


def ensure(run_dir: RunDir, facts: AttemptFacts, job_id: str) -> None:
    """Queue the job's successor, if it needs one; only at the job's first attempt.

    `facts`: of the attempt before. Then site.json has what this Slurm does with the job.
    """
    if facts.plan is not None and facts.plan.job_id == job_id:
        return
    facts = replace(facts, site=site_of_job(run_dir, facts))
    job = client.show_job_patiently(job_id) if facts.spec.slurm.restart != "requeue" else None
    can_requeue = job is None or job.can_requeue
    reason = reason_for(facts, can_requeue)
    if reason:
        queue(run_dir, facts, job_id, can_requeue, reason)
    else:
        run_dir.successor.unlink(missing_ok=True)  # an earlier job's


def queue(
    run_dir: RunDir, facts: AttemptFacts, job_id: str, can_requeue: bool, reason: str
) -> tuple[str | None, str]:
    """Queue a job that starts after this one; its id, or why there is none, in Slurm's words.

    Raises: OSError if it cannot be recorded; the new job is cancelled then.
    """
    argv = argv_after(run_dir, facts, job_id, can_requeue)
    argv, environ = hooks.start(Door.SBATCH, argv, os.environ, facts.spec)
    environ |= {lookup.SUCCEEDS: f"{run_dir.run_id}:{job_id}"}
    new_id, problem = client.submit(argv, environ)
    if new_id is None:
        hint = f"{installation.command('resume')} continues"
        print_line(f"no successor of job {job_id} ({reason}): {problem}\n  hint: {hint}")
        return None, problem
    try:
        records.write(run_dir.successor, Successor(new_id, job_id, reason))
        lookup.remember(run_dir, new_id, client.cluster_name(), run_dir.path.parent.parent)
    except OSError:
        client.cancel(new_id)
        raise
    print_line(f"job {new_id} waits for the end of job {job_id}, to continue the run: {reason}")
    return new_id, ""


def argv_after(run_dir: RunDir, facts: AttemptFacts, job_id: str, can_requeue: bool) -> list[str]:
    """Return sbatch's command line for the job after this one: the same script and options.

    After plain sbatch there is no recorded command line. The spec has most of its options (see
    jobs.commands.adopt), but no --constraint and no --reservation.
    """
    argv = facts.submission.argv or sbatch.sbatch_argv(facts.spec, run_dir)
    return sbatch.successor_argv(argv, job_id, can_requeue)


def confirm(run_dir: RunDir, facts: AttemptFacts, job_id: str) -> tuple[str | None, str]:
    """Return the id of the job that continues the run after this one; queue one if there is none.

    None where the spec forbids it; None with Slurm's words where Slurm refuses it.
    """
    present = interpret.successor_of(facts, job_id)
    if present is not None:
        waiting = lookup.as_recorded(run_dir, facts.submission, present)
        if job_list.life_of(waiting).is_alive is not False:
            return present, ""
    if facts.spec.slurm.restart == "requeue":
        return None, ""
    can_requeue = facts.last is None or facts.last.evidence.can_requeue
    return queue(run_dir, facts, job_id, can_requeue, "this job cannot be started again")


def cancel(run_dir: RunDir, facts: AttemptFacts, job_id: str) -> None:
    """Cancel the job's successor: there is nothing left to continue."""
    present = interpret.successor_of(facts, job_id)
    if present is not None:
        client.cancel(present)
        run_dir.successor.unlink(missing_ok=True)


def check_predecessor(
    run_dir: RunDir, facts: AttemptFacts, my_id: str, before: str | None
) -> PredecessorCheck:
    """Return whether job `my_id` may continue the run as the successor of job `before`, if any.

    A cancelled run must never continue, so an unknown end of job `before` holds the run.
    """
    if before is None:
        return MAY_CONTINUE
    if (check := _check_records(facts, my_id, before)) is not None:
        return check
    return _check_end(facts, before, end_state(run_dir, facts, before))


def _check_records(facts: AttemptFacts, my_id: str, before: str) -> PredecessorCheck | None:
    """Return the check if the run directory decides it; None if the end of job `before` does."""
    last_job = _last_job(facts)
    if last_job == my_id:  # requeued: the check was made at its first start
        return MAY_CONTINUE
    if last_job not in (None, before):
        return PredecessorCheck(False, f"after job {before}, job {last_job} continued the run")
    if interpret.is_completed(facts):
        return MAY_CONTINUE  # `attempt.open` finds that it is complete
    if result := facts.result:
        return PredecessorCheck(False, f"job {before} left it {result.status}: {result.reason}")
    return None


def _check_end(facts: AttemptFacts, before: str, state: str | None) -> PredecessorCheck:
    """Return the check by the state in which job `before` ended; None: unknown."""
    if state == "CANCELLED":
        return PredecessorCheck(False, f"job {before} was cancelled", Action.CANCEL)
    if state is not None and job_state.is_alive(state):
        return PredecessorCheck(False, f"job {before} has not ended, it is {state}")
    if state is None and not _was_handed_over(facts):
        resume = installation.command("resume")
        reason = f"it is unknown whether job {before} was cancelled; if not, {resume} continues"
        return PredecessorCheck(False, reason, Action.HOLD)
    return MAY_CONTINUE


def _last_job(facts: AttemptFacts) -> str | None:
    """Return the job that opened the newest attempt, by id; None if a scratch purge removed it."""
    newest = interpret.newest_number(facts)
    if facts.plan is not None and facts.attempt == newest:
        return facts.plan.job_id
    return next((record.job_id for record in facts.attempts if record.attempt == newest), None)


def _was_handed_over(facts: AttemptFacts) -> bool:
    """Return whether the last attempt left its run to the successor while its job was running."""
    last = facts.last
    if last is None or last.attempt != interpret.newest_number(facts):
        return False
    return last.evidence.job_state == "RUNNING" and last.decision is Action.SUCCESSOR


def end_state(run_dir: RunDir, facts: AttemptFacts, job_id: str) -> str | None:
    """Return the state in which a job ended; None if it is unknown.

    slurmctld keeps it for some minutes (MinJobAge); after that sacct has it, or the job's log.
    """
    job = client.show_job_patiently(job_id)
    if job is not None:
        return job.state
    return job_list.end_state(job_id) or state_in_log(run_dir, facts.site, job_id)


def state_in_log(run_dir: RunDir, site: SlurmSite | None, job_id: str) -> str | None:
    """Return the state that slurmstepd's last such line in the job's log shows; None without one.

    Source: src/slurmd/slurmstepd/req.c: `*** JOB 7 ON n1 CANCELLED AT <time> DUE TO ... ***`.
    """
    text = "\n".join(log_text.read_end(run_dir.job_log))
    line = rf"\*\*\* JOB {re.escape(job_id)} ON \S+ CANCELLED AT \S+ (.*)\*\*\*"
    why = next(iter(re.findall(line, text)[-1:]), None)
    if why == "" or (why or "").startswith("DUE to SIGNAL "):  # the latter since 25.05
        return "CANCELLED"
    # Where preemption requeues, the job may have been cancelled in the queue after that line.
    is_final = site is not None and bool(site.cancels_preempted)
    return "PREEMPTED" if is_final and why == "DUE TO PREEMPTION " else None
