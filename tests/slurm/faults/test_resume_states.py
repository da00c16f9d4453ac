"""`resume` continues a run after any end of its job: one test for each state."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ..kit import Kit, Run
from . import harm_processes, harm_slurm, oracles
from .rows import Row
from .scenario import ReferenceRuns, begin

TIMEOUT_S = 240


@dataclass(frozen=True)
class Case:
    """A slow run after its first checkpoint, and the place to which a file can be moved."""

    run: Run
    elsewhere: Path


def cancel(case: Case) -> list[str]:
    """A user cancels the job."""
    harm_slurm.scancel(case.run)
    case.run.wait("CANCELLED", TIMEOUT_S)
    return ["cancelled", "lost"]  # lost: killed before it recorded the attempt


def crash(case: Case) -> list[str]:
    """A rank is killed, and the budget allows no retry: the kit holds the run."""
    harm_processes.kill(case.run, "rank")
    case.run.wait("FAILED", TIMEOUT_S)
    result = case.run.result()
    assert result["status"] == "held" and "was killed by SIGKILL" in result["reason"]
    return ["crash"]


def fail(case: Case) -> list[str]:
    """The job fails before there is an attempt, at its second start."""
    setup = case.run.dir.setup
    setup.rename(case.elsewhere)
    case.run.cluster.run("scancel", "--signal=USR1", case.run.job_id)
    case.run.cluster.wait_for(
        lambda: case.run.cluster.job(case.run.job_id)["JobState"] == "FAILED",
        f"job {case.run.job_id} failed",
        TIMEOUT_S,
    )
    case.elsewhere.rename(setup)
    return ["time_limit"]


def lose(case: Case) -> list[str]:
    """The batch process is killed: no process of the kit is left to record the attempt."""
    harm_processes.kill(case.run, "batch")
    case.run.wait("FAILED", TIMEOUT_S)
    assert case.run.attempts() == []
    return ["lost"]


def time_out(case: Case) -> list[str]:
    """The batch process is stopped: Slurm ends the job at its time limit."""
    harm_processes.send(harm_processes.of_role(case.run, "batch"), signal.SIGSTOP)
    limit = ("scontrol", "update", f"JobId={case.run.job_id}", "TimeLimit=1")
    case.run.cluster.run(*limit)
    case.run.wait("TIMEOUT", TIMEOUT_S)
    return ["time_limit", "lost"]  # Slurm continues it: it may record the attempt


@pytest.mark.parametrize("end", [cancel, crash, fail, lose, time_out])
def test_resume_goes_on_with_a_run_that_was_ended(
    kit: Kit, reference: ReferenceRuns, row: Row, tmp_path: Path, end: Callable[[Case], list[str]]
) -> None:
    alone = ("launch.max_crashes=1", "slurm.restart=requeue")  # neither a retry nor a successor
    paced = begin(kit, row, *alone, "checkpoint.every_steps=2", "slurm.signal_lead_s=10", step=3)
    run = paced.run
    paced.pace.write_text("2")  # seconds a step, or the run is complete before its time limit
    causes = end(Case(run, tmp_path / "setup.sh"))
    oracles.nothing_left(run)

    paced = replace(paced, run=kit.resume(run))
    paced.finish()
    row.record(paced.run)
    oracles.bitwise(paced.run, reference())
    oracles.at_most_one_interval(paced.run)
    if end is fail:  # the run got a warning in time
        oracles.no_step_redone(paced.run)
    first, last = (attempt["cause"] for attempt in paced.run.attempts())
    assert first in causes and last == "completed", (first, last)
    oracles.nothing_left(paced.run)
