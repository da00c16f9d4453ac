"""Drives the kit's code: what happened -> the facts of an attempt -> the decision, executed.

Four doors are replaced, as a test of the kit without Slurm would: Slurm's commands, the question
whether a node answers, the clock and sleep. Everything between them is the kit's own code.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from slurm_job_kit.jobs import console, hooks
from slurm_job_kit.jobs.attempt import collect_evidence, decision, record_writer, srun_step
from slurm_job_kit.jobs.attempt.decision import Budget, BudgetUsed, Decision
from slurm_job_kit.jobs.attempt.execute import EXIT_RETRY, execute
from slurm_job_kit.jobs.checkpoint.names import checkpoint_name
from slurm_job_kit.jobs.records.ended import AttemptRecord, Evidence
from slurm_job_kit.jobs.records.nodes import (
    AgentRecord,
    AttemptPlan,
    Head,
    RankError,
    ReceivedSignal,
)
from slurm_job_kit.jobs.records.queued import SlurmSite, Submission
from slurm_job_kit.jobs.records.training import Event, Outcome
from slurm_job_kit.jobs.rooms.sites import preemption
from slurm_job_kit.jobs.rooms.sites.preemption import Preemption
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import interpret
from slurm_job_kit.jobs.runs.interpret import AttemptFacts, NodeFacts, Saved, Steps
from slurm_job_kit.jobs.runs.run_lock import Owner
from slurm_job_kit.jobs.slurm import client
from slurm_job_kit.jobs.spec import Spec

from .slurm import PARTITION, QueuedJob, Slurm

Decide = Callable[[Evidence, BudgetUsed, Budget], Decision]


@dataclass(frozen=True)
class End:
    """How an attempt ended: what its ranks, agents and nodes left behind.

    `lost`: nodes whose agent recorded no end. `signal`: the stop signal that all agents received.
    """

    t: float
    lost: tuple[str, ...] = ()
    errors: tuple[RankError, ...] = ()
    signal: str = ""
    outcome: Outcome = Outcome()


@dataclass
class Run:
    """A run with its history; steps are seconds of useful work."""

    run_dir: RunDir
    spec: Spec
    attempts: list[AttemptRecord] = field(default_factory=list)
    plan: AttemptPlan | None = None
    first_step_t: float | None = None
    loaded: int = 0
    step: int = 0
    saved: int = 0
    is_recorded: bool = True

    @classmethod
    def of_size(cls, nodes: int, spec: Spec) -> Run:
        spec = replace(spec, slurm=replace(spec.slurm, nodes=nodes))
        return cls(RunDir(Path("/nonexistent/runs/simulated/run")), spec)

    @property
    def checkpoint(self) -> str | None:
        return checkpoint_name(self.saved) if self.saved else None

    def facts(self, end: End | None) -> AttemptFacts:
        """What the run directory has; `end`: None where the batch script was killed.

        Agents that ended alike share one record: its host is read only of those that failed.
        """
        plan = self.plan
        number = 0 if plan is None else plan.attempt
        return AttemptFacts(
            attempt=number,
            plan=plan,
            of_nodes=NodeFacts(
                agents=() if plan is None else _agents(plan, end),
                errors=() if end is None else end.errors,
                events=self._events(number),
            ),
            steps=Steps(self.step or None),
            saved=Saved(self.checkpoint),
            outcome=Outcome() if end is None else end.outcome,
            result=None,
            attempts=tuple(self.attempts),
            spec=self.spec,
            spec_error=None,
            site=SlurmSite(),
            submission=Submission(),
            successor=None,
        )

    def _events(self, attempt: int) -> tuple[Event, ...]:
        if self.first_step_t is None or self.step <= self.loaded:
            return ()
        t = self.first_step_t
        return (
            Event(t, "loaded", attempt, step=self.loaded),
            Event(t, "first_step", attempt, step=self.loaded + 1),
        )


def _agents(plan: AttemptPlan, end: End | None) -> tuple[AgentRecord | None, ...]:
    step_id = "0"
    if end is None:
        return (AgentRecord("x", step_id=step_id),) * len(plan.nodes)
    if end.signal:
        received = (ReceivedSignal(end.t, end.signal),)
        return (AgentRecord("x", None, step_id, received, 0, end.t),) * len(plan.nodes)
    ended = AgentRecord("x", step_id=step_id, torchrun_exit=1, end=end.t)
    if not end.lost:
        return (ended,) * len(plan.nodes)
    running, lost = AgentRecord("x", step_id=step_id), {*end.lost}
    return tuple(replace(running, host=n) if n in lost else ended for n in plan.nodes)


@contextmanager
def doors(slurm: Slurm) -> Iterator[list[float]]:
    """A block in which the kit's code reaches the simulated Slurm; gives the list of its sleeps."""
    sleeps: list[float] = []
    state = random.getstate()
    random.seed(0)  # the kit spreads its requests at random
    with ExitStack() as stack:
        patch = stack.enter_context
        stack.callback(random.setstate, state)
        null = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null)
        patch(mock.patch.object(console, "STDERR", null))
        patch(mock.patch.object(client, "call", slurm.call))
        patch(mock.patch.object(client, "is_answering", slurm.is_answering))
        patch(mock.patch.object(preemption, "recorded", lambda run_dir: Preemption(cancels=False)))
        patch(mock.patch("shutil.which", lambda name: f"/usr/bin/{name}"))
        patch(mock.patch("time.time", lambda: slurm.now))
        patch(mock.patch("time.sleep", sleeps.append))
        patch(mock.patch.dict(os.environ, {"SLURM_JOB_PARTITION": PARTITION}))
        yield sleeps


def owner_of(job: QueuedJob) -> Owner:
    """The start of a job as the kit sees it."""
    os.environ["SLURM_RESTART_COUNT"] = str(job.restarts)
    return Owner(job.job_id, job.nodes[0] if job.nodes else "", 1, "1", job.restarts)


def open_attempt(run: Run, job: QueuedJob, slurm: Slurm) -> bool:
    """Open the next attempt as `attempt.open` does; False where the kit refuses this start."""
    me = owner_of(job)
    if not run.is_recorded:
        _close_lost(run, me)
    facts = run.facts(None)
    if decision.refusal(facts.last, job.job_id, None) is not None:
        return False
    hooks.successor(run.run_dir, facts, me, is_over=False)
    slurm.calls["srun"] += 1  # the agents
    run.plan = AttemptPlan(
        attempt=interpret.newest_number(facts) + 1,
        job_id=me.job_id,
        nodes=job.nodes,
        head=Head("", "", 0),
        start=slurm.now,
        deadline=None,
        checkpoint=facts.saved.checkpoint,
    )
    run.loaded, run.step, run.first_step_t, run.is_recorded = run.saved, run.saved, None, False
    return True


def _close_lost(run: Run, me: Owner) -> None:
    """Record an attempt whose batch script was killed, as jobs.attempt.close.close_lost does."""
    facts = run.facts(None)
    seen = interpret.rank_evidence(facts, interpret.LOST)
    seen = collect_evidence.of_lost(run.run_dir, facts, me, seen)
    budgets = decision.budget_used(facts.attempts), decision.budget_of(facts.spec)
    decided = hooks.decide(facts, seen, decision.decide_lost(seen, *budgets, is_automatic=True))
    _record(run, facts, seen, decided)


def close_attempt(run: Run, job: QueuedJob, slurm: Slurm, end: End, decide: Decide) -> bool:
    """Close an attempt as `attempt.close` does, and execute the decision; True: retry here."""
    me, facts = owner_of(job), run.facts(end)
    seen = collect_evidence.of_ended(run.run_dir, facts, me, (), 1)
    budgets = decision.budget_used(facts.attempts), decision.budget_of(facts.spec)
    decided = decide(seen, *budgets)
    if decide is decision.decide:  # not a test's own policy
        decided = hooks.decide(facts, seen, decided)
    if seen.job_state == "RUNNING" and not seen.is_requeued and seen.outcome != "completed":
        srun_step.end_leftover(me.job_id, interpret.nodes_without_end(facts))
    facts = _record(run, facts, seen, decided)
    return execute(decided, run.run_dir, facts, me) == EXIT_RETRY


def _record(run: Run, facts: AttemptFacts, seen: Evidence, decided: Decision) -> AttemptFacts:
    record = record_writer.record_of(facts, seen, decided, time.time())
    run.attempts.append(record)
    run.is_recorded = True
    return replace(facts, attempts=tuple(run.attempts))
