"""The job that waits for the end of the present one, to continue the run where a requeue cannot.

The first attempt of a job queues it, on the same run directory with the same script and options,
behind `--dependency=afterany`: it starts when the job has ended for good (a job that is requeued
has not).
"""

import os
from collections.abc import Sequence

from ... import hooks
from ...base import installation
from ...base.console import print_line
from ...base.environment import Program
from ...contract import records
from ...contract.records.queued import RecordedJob, Successor
from ...contract.rundir import RunDir
from ...contract.spec import Spec
from ...runs import lookup
from ...runs.facts import AttemptFacts
from ...slurm import ask, cluster, job_list, sbatch
from ...slurm.job import run_scancel, show_job
from . import preemption
from .requeue_policy import is_batch

# Options that belong to one job and not to its successor.
_NOT_INHERITED = ("dependency", "begin", "hold", "deadline", "no-requeue", "requeue")


def waiting(facts: AttemptFacts, job_id: str) -> str | None:
    """Return the id of the job that waits for the end of this one."""
    after = facts.successor
    return after.job_id if after is not None and after.after == job_id else None


def ensure(run_dir: RunDir, facts: AttemptFacts, job_id: str) -> tuple[str | None, str]:
    """Queue the job's successor at its first attempt. facts: of the attempt before."""
    if facts.plan is not None and facts.plan.job_id == job_id:
        return None, ""
    job = show_job(job_id, ask.PATIENCE_S) if facts.spec.slurm.restart != "requeue" else None
    can_requeue = job is None or job.can_requeue
    reason = reason_for(run_dir, facts.spec, can_requeue)
    if reason and (job is None or is_batch(job)):
        return queue(run_dir, facts, job_id, can_requeue, reason)
    run_dir.successor.unlink(missing_ok=True)  # an earlier job's
    return None, ""


def reason_for(run_dir: RunDir, spec: Spec, can_requeue: bool) -> str:
    """Return why the job needs a successor; empty if it does not."""
    if spec.slurm.restart == "requeue":
        return ""
    of_job = preemption.of_job(run_dir, spec.slurm)
    if spec.slurm.restart == "successor":
        return "slurm.restart=successor"
    if not can_requeue:
        return "this job cannot be requeued (Requeue=0)"
    return "preemption cancels jobs here" if of_job is not None and of_job.cancels else ""


def queue(
    run_dir: RunDir, facts: AttemptFacts, job_id: str, can_requeue: bool, reason: str
) -> tuple[str | None, str]:
    """Queue a job that starts after this one; its id, or why there is none, in Slurm's words.

    Raises: OSError if it cannot be recorded; the new job is cancelled then.
    """
    # After plain sbatch there is no recorded command line. The spec has most of its options (see
    # jobs.commands.adopt), but no --constraint and no --reservation.
    before = facts.submission.argv or sbatch.sbatch_argv(facts.spec, run_dir)
    argv = argv_after(before, job_id, can_requeue)
    argv, environ = hooks.launch_command(Program.SBATCH, argv, os.environ, facts.spec)
    environ |= {lookup.SUCCEEDS: f"{run_dir.run_id}:{job_id}"}
    new_id, problem = sbatch.submit(argv, environ)
    if new_id is None:
        hint = f"{installation.command('resume')} continues"
        print_line(f"no successor of job {job_id} ({reason}): {problem}\n  hint: {hint}")
        return None, "; ".join(problem.splitlines())
    try:
        records.write(run_dir.successor, Successor(new_id, job_id))
        lookup.remember(run_dir, new_id, cluster.cluster_name())
    except OSError:
        run_scancel(new_id)
        raise
    print_line(f"job {new_id} waits for the end of job {job_id}, to continue the run: {reason}")
    return new_id, ""


def argv_after(argv: Sequence[str], job_id: str, can_requeue: bool) -> list[str]:
    """Return sbatch's command line of the job after a job: the same script and options.

    argv: the command line of that job, from `sbatch_argv`. can_requeue: whether Slurm may requeue
    that job, so the new one, too.
    """
    options, positional = argv[1:-2], argv[-2:]
    named = {option.removeprefix("--").partition("=")[0]: option for option in options}
    kept = [option for name, option in named.items() if name not in _NOT_INHERITED]
    asked = named.get("requeue", "--requeue")
    after = [f"--dependency=afterany:{job_id}", asked if can_requeue else "--no-requeue"]
    return [argv[0], *kept, *after, *positional]


def confirm(run_dir: RunDir, facts: AttemptFacts, job_id: str) -> tuple[str | None, str]:
    """Return the id of the job that continues the run after this one; queue one if there is none.

    None where the spec forbids it; None with Slurm's words where Slurm refuses it.
    """
    if (present := waiting(facts, job_id)) is not None:
        of_run = facts.submission
        waits = RecordedJob(present, of_run.uid, of_run.cluster)
        if job_list.life_of(waits).is_alive is not False:
            return present, ""
    if facts.spec.slurm.restart == "requeue":
        return None, ""
    job = show_job(job_id)
    if job is not None and not is_batch(job):
        return None, ""
    can_requeue = facts.last is None or facts.last.evidence.can_requeue
    return queue(run_dir, facts, job_id, can_requeue, "this job cannot be started again")
