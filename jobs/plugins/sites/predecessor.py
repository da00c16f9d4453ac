"""How the job before a successor job ended: a run that was cancelled or held stays so."""

from ... import hooks
from ...attempt import record_writer
from ...base import installation
from ...base.errors import FailedError
from ...contract.records.ended import Action, Cause
from ...contract.rundir import RunDir
from ...runs.facts import AttemptFacts
from ...runs.run_lock import Owner
from ...slurm import ask, job_list, job_state
from ...slurm.job import show_job


def check(run_dir: RunDir, facts: AttemptFacts, me: Owner, before: str) -> None:
    """Raises FailedError for a job that must not continue the run after job `before`.

    The run ends by that where no other job has it and it has no result.
    """
    # A scratch purge may have removed it.
    last_job = next((each.job_id for each in facts.attempts if each.attempt == facts.newest), None)
    if facts.plan is not None and facts.attempt == facts.newest:
        last_job = facts.plan.job_id
    if last_job == me.job_id:  # requeued: the check was made at its first start
        return
    action = None
    if last_job not in (None, before):
        reason = f"after job {before}, job {last_job} continued the run"
    elif result := facts.result:
        reason = f"job {before} left the run {result.status}: {result.reason}"
    else:
        action, reason = _check_end(facts, before)
    if action is not None:
        facts = record_writer.record_end(run_dir, facts, action, Cause.LOST, reason)
        hooks.end(run_dir, facts, me)
    if reason:
        raise FailedError(f"{run_dir.path}: job {me.job_id} does not continue the run: {reason}")


def _check_end(facts: AttemptFacts, before: str) -> tuple[Action | None, str]:
    """Return why the run does not continue after the end of job `before`, and how it ends by that.

    A cancelled run must never continue, so an unknown end holds the run, unless the last attempt
    left it to the successor while its job was running.
    """
    # slurmctld keeps the state for some minutes (MinJobAge); after that sacct has it.
    job = show_job(before, ask.PATIENCE_S)
    state = job_list.end_state(before) if job is None else job.state
    if state == "CANCELLED":
        return Action.CANCEL, f"job {before} was cancelled"
    if state is not None and state not in job_state.ENDED:
        return None, f"job {before} has not ended, it is {state}"
    last = facts.last if facts.is_closed else None
    handed_over = (Action.SUCCESSOR, "RUNNING")
    is_handed_over = last and (last.decision, last.evidence.job_state) == handed_over
    if state is not None or is_handed_over:
        return None, ""
    resume = installation.command("resume")
    reason = f"it is unknown whether job {before} was cancelled; if not, {resume} continues"
    return Action.HOLD, reason
