"""What follows where Slurm, or another job, continues the run without a requeue by the kit."""

import dataclasses

import pytest

from slurm_job_kit.jobs.attempt.decision import Action, Cause, Ending, Evidence, History, decide
from slurm_job_kit.jobs.plugins.sites import hooks
from slurm_job_kit.jobs.plugins.sites.after_end import PLUGIN, AfterEnd
from slurm_job_kit.jobs.runs import fact_reader

SEEN = Evidence("stopped", "RUNNING", "None", ("SIGTERM",), True, True, None)
LEFT, WAITS = AfterEnd(is_left_to_slurm=True), AfterEnd(has_successor=True)
SALLOC = AfterEnd(is_batch=False)
GONE = {"outcome": None, "signals": ()}


@pytest.mark.parametrize(
    ("after", "seen", "action", "cause"),
    [
        # In its grace, and Slurm will requeue it.
        (LEFT, {}, "wait", "preemption"),
        (LEFT, {"outcome": "completed"}, "done", "completed"),
        (AfterEnd(), {}, "requeue", "preemption"),
        # Where preemption cancels, Slurm does not show yet which it was: the successor can see it.
        (WAITS, {**GONE, "job_state": "COMPLETING"}, "successor", "preemption"),
        (WAITS, {**GONE, "job_state": "COMPLETING", "is_preempted": False}, "cancel", "cancelled"),
        (AfterEnd(), {**GONE, "job_state": "COMPLETING"}, "cancel", "cancelled"),
        # A job that cannot be requeued: its successor continues.
        (WAITS, {"can_requeue": False}, "successor", "preemption"),
        (WAITS, {"job_state": "NODE_FAIL", "can_requeue": False}, "successor", "preemption"),
        (WAITS, {"is_preempted": False}, "requeue", "manual_stop"),  # the successor only waits
        # A job of salloc: nothing takes the nodes back after Ctrl-C.
        (SALLOC, {"is_preempted": False, "signals": ("SIGINT",)}, "hold", "manual_stop"),
        (SALLOC, {"job_state": "NODE_FAIL", "can_requeue": False}, "hold", "preemption"),
        (SALLOC, {**GONE, "is_preempted": False, "error": "rank 0: x"}, "retry", "crash"),
    ],
)
def test_the_decision_knows_what_starts_after_the_job(run, after, seen, action, cause):
    found = Ending(dataclasses.replace(SEEN, **seen, plugins={PLUGIN: after}))
    decision = decide(found, History(restarts=0, crashes=0, attempts=0))
    decision = hooks.decide(fact_reader.read_newest(run), found, decision)
    assert (decision.action, decision.cause) == (Action(action), Cause(cause))
