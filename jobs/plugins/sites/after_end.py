"""What continues the run after its job without a requeue by the kit: the evidence, the decision."""

import time
from dataclasses import dataclass, replace

from ...attempt import decision as rules
from ...attempt.decision import Decision, Ending
from ...contract.records import of_plugin
from ...contract.records.ended import Action, Cause, Evidence
from ...runs.facts import AttemptFacts
from ...slurm.job import Job
from .requeue_policy import is_batch, slurm_requeues_itself
from .successor import waiting

PLUGIN = "sites"


@dataclass(frozen=True)
class AfterEnd:
    """What the plugin keeps in the evidence of an attempt.

    is_left_to_slurm: Slurm requeues the job once it has ended, see requeue_policy. has_successor:
    another job waits for the end of this one. is_batch: else it is a job of salloc or srun.
    """

    is_left_to_slurm: bool = False
    has_successor: bool = False
    is_batch: bool = True


def seen(facts: AttemptFacts, found: Evidence, job: Job, job_id: str) -> Evidence:
    """Return the evidence with what is to start after the job."""
    is_left = slurm_requeues_itself(facts.attempts, found, job, job_id)
    after = AfterEnd(is_left, waiting(facts, job_id) is not None, is_batch(job))
    if after == AfterEnd():
        return found
    return replace(found, plugins={**found.plugins, PLUGIN: after})


def decide(facts: AttemptFacts, ending: Ending, decision: Decision) -> Decision:
    """Return the decision where Slurm or another job continues the run.

    Where preemption cancels jobs (PreemptMode=CANCEL), Slurm does not show which it was while the
    job ends; the successor job can find out.
    """
    found = ending.evidence
    after = of_plugin(AfterEnd, found.plugins, PLUGIN) or AfterEnd()
    if decision.action in rules.RESTARTS and not after.is_batch:
        reason = "this job is interactive: `resume` continues the run in another"
        return replace(decision, action=Action.HOLD, reason=f"{decision.reason}; {reason}")
    if decision.action is Action.REQUEUE and after.is_left_to_slurm:
        return replace(decision, action=Action.WAIT, reason=decision.reason + rules.BY_SLURM)
    if decision.action is Action.CANCEL and found.is_preempted and after.has_successor:
        instead = replace(decision, action=Action.SUCCESSOR, cause=Cause.PREEMPTION)
        history = rules.history_of(facts.attempts, time.time())
        return rules.within_budget(instead, found, history, rules.budget_of(facts.spec))
    return decision
