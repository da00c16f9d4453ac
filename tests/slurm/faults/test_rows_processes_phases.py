"""A stop comes to one agent in any phase of an attempt (row 10)."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.records.nodes import read_agents
from slurm_job_kit.jobs.contract.rundir import AttemptDir
from slurm_job_kit.jobs.runs.fact_reader import newest_opened
from tests.core.run_files import read_progress_steps

from ..kit import Run
from . import harm_processes, oracles
from .rows import Row
from .scenario import STEPS_PER_EPOCH, Paced

PHASED = ("train.model=tests.slurm.faults.model:Phased", "train.eval_every_steps=5")
OFTEN = "checkpoint.every_steps=3"
SEED = "KIT_FAULT_SEED"  # environment variable: the seed that repeats a run


class Moments:
    """Detects the phases of the newest attempt by its processes and files."""

    def __init__(self, run: Run, phase_file: Path) -> None:
        self._run = run
        self._phase_file = phase_file

    def has_begun(self, phase: str) -> bool:
        """Whether the newest attempt is in a phase, or has just left it."""
        seen: dict[str, Callable[[], object]] = {
            "agent": lambda: harm_processes.of_role(self._run, "agent"),
            "import": lambda: harm_processes.of_role(self._run, "rank"),
            "rendezvous": lambda: self._has_event("import"),
            "data": lambda: self._has_event("init"),
            "save": lambda: list(self._run.dir.checkpoints.glob(".tmp-step-*")),
            "epoch edge": self._is_at_epoch_edge,
            "shutdown": lambda: self._attempt_dir().outcome.exists(),
        }
        return bool(seen.get(phase, lambda: self._current_pass() == phase)())

    def _has_event(self, name: str) -> bool:
        return bool(self._run.events(name, newest_opened(self._run.dir)))

    def _is_at_epoch_edge(self) -> bool:
        step = read_progress_steps(self._run.dir.progress)[0] or 0
        return step % STEPS_PER_EPOCH in (STEPS_PER_EPOCH - 1, 0) and step > 0

    def _current_pass(self) -> str:
        rank_0 = self._phase_file.with_name(f"{self._phase_file.name}.0")
        return rank_0.read_text() if rank_0.exists() and self._has_event("loaded") else ""

    def _attempt_dir(self) -> AttemptDir:
        return self._run.dir.attempt(newest_opened(self._run.dir))


def stop_in(
    paced: Paced, moments: Moments, phase: str, stop: signal.Signals, chance: random.Random
) -> None:
    """Send a stop to one agent in a phase of the present attempt, and wait for its end."""
    run, closed = paced.run, len(paced.run.attempts())
    run.wait_for(lambda: newest_opened(run.dir) > closed, f"attempt {closed + 1}")
    if phase == "shutdown":
        paced.hurry()
    run.wait_for(lambda: moments.has_begun(phase), phase)
    time.sleep(chance.uniform(0, 0.3))  # the random delay of the row
    agent = harm_processes.warn_an_agent(run, stop, chance)
    print(f"{phase}: {stop.name} to {agent}")
    assert agent or phase == "shutdown", f"no agent was warned in {phase}"
    run.wait_for_attempts(closed + 1)


def is_stopped_by_slurm(run: Run, attempt: int) -> bool:
    """Whether Slurm ended the step of an attempt, after it had killed an earlier step by force.

    slurmctld repeats a request that was not answered after 60 s. The step of a later start of the
    job has the same id. Source: slurmctld/controller.c, agent_retry(RPC_RETRY_INTERVAL).
    """
    before, begin, _ = run.dir.job_log.read_text().partition(f" attempt {attempt}: ")
    got = [[each.signal for each in agent.signals] for agent in read_agents(run.dir, attempt)]
    nodes = run.attempts()[attempt - 1]["nodes"]
    is_on_each = len(got) == len(nodes) and all(signals == ["SIGTERM"] for signals in got)
    return bool(begin) and "srun: Force Terminated" in before and is_on_each


@pytest.mark.parametrize(
    "phases",
    [
        ("agent", "import", "rendezvous", "data"),
        ("forward", "backward", "evaluation", "save", "epoch edge", "shutdown"),
    ],
    ids=["start", "training"],
)
def test_row_10_signal_in_any_phase(row: Row, tmp_path: Path, phases: Sequence[str]) -> None:
    seed = int(os.environ.get(SEED) or random.randrange(10_000))
    print(f"{SEED}={seed} repeats this")
    chance = random.Random(seed)
    phase_file = tmp_path / "phase"
    paced = row.start(*PHASED, OFTEN, f"launch.env.PHASE_FILE={phase_file}")
    run = paced.run
    moments = Moments(run, phase_file)
    # Five SIGUSR1 before the first checkpoint would hold the run, as five time limits do.
    stops = chance.choices(harm_processes.STOPS, k=len(phases))
    for phase, stop in zip(phases, stops, strict=True):
        stop_in(paced, moments, phase, stop, chance)
    paced.finish()
    oracles.bitwise(run, row.reference(*PHASED))
    *stopped, last = run.attempts()
    assert {record["cause"] for record in stopped} <= {"manual_stop", "time_limit"}, stopped
    assert last["cause"] == "completed"
    missed = len(phases) - len(stopped)
    if missed == -1:
        assert is_stopped_by_slurm(run, len(stopped)), stopped
    else:
        assert missed in ((0, 1) if "shutdown" in phases else (0,))  # complete before the last stop
    oracles.no_step_redone(run)
    oracles.requeues(run, len(stopped))
    oracles.nothing_left(run)
