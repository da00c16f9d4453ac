"""A run that Slurm stops goes on by itself and ends with the weights of an untouched one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from jobs.compare import compare

from .cluster import Cluster
from .kit import Kit, Run

# Three ranks at least: two hide a wrong order of summation, for a + b = b + a.
SPEC = (
    "configs/resnet.yaml",
    "slurm.nodes=3",
    "slurm.time=00:10:00",
    "train.epochs=2",
    "train.model=tests.slurm.paced:Paced",
)


@pytest.fixture(scope="module")
def kit(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit(cluster, tmp_path_factory.mktemp("runs"))


@dataclass(frozen=True)
class Paced:
    """A run that crawls until `hurry`."""

    run: Run
    pace: Path

    def hurry(self) -> None:
        self.pace.unlink()


def start(kit: Kit, pace: Path, *overrides: str) -> Run:
    return kit.submit(*SPEC, f"launch.env.PACE_FILE={pace}", *overrides)


@pytest.fixture(scope="module")
def untouched(kit: Kit) -> Run:
    run = start(kit, Path("/nowhere"))
    run.wait()
    return run


@pytest.fixture
def paced(kit: Kit, proctrack: str, tmp_path: Path) -> Paced:
    pace = tmp_path / "pace"
    pace.touch()
    return Paced(start(kit, pace, "slurm.signal_lead_s=110"), pace)


@pytest.fixture
def proctrack(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    if cluster.site.proctrack != request.param:
        cluster.restart(proctrack=request.param)
    yield request.param


def restarts(run: Run) -> int:
    return int(run.cluster.job(run.job_id)["Restarts"])


def wait_for_restarts(run: Run, number: int) -> None:
    run.cluster.wait_for(lambda: restarts(run) == number, f"requeue {number}", 90)


def wait_for_no_process(run: Run) -> None:
    run.cluster.wait_for(lambda: not run.cluster.job_processes(), "no process of the job", 30)


def preempt(run: Run) -> None:
    """Start a job of a higher priority that needs every node; wait for the requeue."""
    urgent = ("--partition=urgent", "--nodes=4", "--exclusive", "--wrap=true")
    run.cluster.sbatch(*urgent, "--output=/dev/null")
    wait_for_restarts(run, restarts(run) + 1)


def reach_time_limit(run: Run) -> None:
    """Make the time limit shorter than the run; wait for the requeue, then give time again.

    Set while it runs, so that the warning never comes before the first step. Slurm looks at
    limits every 30 s.
    """
    before = restarts(run)
    run.cluster.run("scontrol", "update", f"JobId={run.job_id}", "TimeLimit=2")
    wait_for_restarts(run, before + 1)
    run.cluster.run("scontrol", "update", f"JobId={run.job_id}", "TimeLimit=10")


def assert_stopped_and_resumed(run: Run, untouched: Run, causes: list[str]) -> None:
    attempts = run.attempts()
    assert compare(run.dir, untouched.dir) == []
    assert run.result()["steps_redone"] == 0
    assert [attempt["cause"] for attempt in attempts] == [*causes, "completed"]
    assert [attempt["decision"] for attempt in attempts] == ["requeue"] * len(causes) + ["done"]
    assert all(later["first_step"] == a["last_step"] + 1 for a, later in pairwise(attempts))
    for attempt in attempts[:-1]:
        stops = [e["step"] for e in run.events("stop_seen") if e["attempt"] == attempt["attempt"]]
        assert stops == [attempt["last_step"]] * 3
    assert run.cluster.job(run.job_id)["Restarts"] == str(len(causes))
    wait_for_no_process(run)
    assert not list(run.dir.checkpoints.glob(".*"))


@pytest.mark.parametrize("proctrack", ["linuxproc"], indirect=True)
def test_preempted_run_ends_with_the_weights_of_the_untouched_one(
    paced: Paced, untouched: Run
) -> None:
    paced.run.wait_for_step(2)
    preempt(paced.run)
    paced.hurry()
    paced.run.wait()
    assert_stopped_and_resumed(paced.run, untouched, ["preemption"])


@pytest.mark.parametrize(
    "proctrack", ["cgroup", pytest.param("linuxproc", marks=pytest.mark.slow)], indirect=True
)
def test_run_preempted_and_then_out_of_time_ends_with_the_weights_of_the_untouched_one(
    paced: Paced, untouched: Run
) -> None:
    paced.run.wait_for_step(2)
    preempt(paced.run)
    paced.run.wait_for_step(paced.run.attempts()[0]["last_step"] + 2)
    reach_time_limit(paced.run)
    paced.hurry()
    paced.run.wait()
    assert_stopped_and_resumed(paced.run, untouched, ["preemption", "time_limit"])


@pytest.mark.parametrize(
    "proctrack", ["cgroup", pytest.param("linuxproc", marks=pytest.mark.slow)], indirect=True
)
def test_scancelled_run_saves_and_stays_cancelled(paced: Paced) -> None:
    run = paced.run
    run.wait_for_step(2)
    run.cluster.run("scancel", run.job_id)
    assert run.wait("CANCELLED")["Restarts"] == "0"
    wait_for_no_process(run)
    assert run.cluster.job_ids() == []
    record = run.attempts()[-1]
    assert (record["decision"], record["evidence"]["outcome"]) == ("cancel", "stopped")
    assert run.result()["status"] == "cancelled"


@pytest.mark.slow
def test_failing_rank_is_named_in_the_job_log_and_ends_the_others(kit: Kit) -> None:
    bad = ("train.model=tests.slurm.raising:Raising", "slurm.nodes=2")
    run = kit.submit("configs/cancer.yaml", *bad)
    run.wait("FAILED")
    log = run.dir.job_log.read_text()
    assert "first failure: rank 1 on n" in log and "Traceback" in log and "out of cheese" in log
    assert run.result()["status"] == "held" and "crashes without progress" in run.result()["reason"]
    wait_for_no_process(run)
