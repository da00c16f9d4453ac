"""Other libraries' trainings on Slurm: preempted, at the time limit, killed, and exact."""

import json
import os
import signal
from pathlib import Path

import pytest

from slurm_job_kit.jobs.rundir import RunDir
from tests.installed import install

from .cluster import Cluster
from .faults import harm_slurm, oracles
from .kit import JOB_TIMEOUT_S, Kit, Run

other_training = pytest.importorskip("tests.rooms.integrations.other_training")
NODES = 3
LIMITS = ("slurm.time=00:10:00", "slurm.signal_lead_s=110")


@pytest.fixture(scope="module")
def kit_command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"))


def wait_for_steps(run: Run, attempt: int, number: int) -> None:
    """Wait until rank 1 has begun so many steps."""

    def is_there() -> bool:
        return len(other_training.samples(run.dir.work, attempt, rank=1)) >= number

    run.cluster.wait_for(is_there, f"{number} steps of attempt {attempt}", JOB_TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "lightning", "accelerate"])
def test_a_training_goes_through_all_of_slurms_ends_with_the_same_bits(
    cluster: Cluster, tmp_path: Path, kit_command: Path, library: str
) -> None:
    other_training.skip_without(library)
    pace = tmp_path / "pace"
    pace.write_text("0.3")
    repository = other_training.make_repository(tmp_path / "mine", library, NODES, pace)
    kit = Kit(cluster, tmp_path / "runs", repository)
    said = json.loads(kit.run(kit_command, "submit", "--json", "other.yaml", *LIMITS).stdout)
    run = Run(cluster, said["job_id"], RunDir(Path(said["run_dir"])))
    wait_for_steps(run, 1, 8)
    harm_slurm.preempt(run)
    wait_for_steps(run, 2, 2)
    pace.write_text("4")  # Slurm looks at time limits every 30 s
    harm_slurm.reach_time_limit(run)
    pace.write_text("0.3")
    wait_for_steps(run, 3, 7)  # it has saved meanwhile: each fifth step
    os.kill(other_training.pid_of(run.dir, 3, rank=1), signal.SIGKILL)
    run.wait()
    oracles.causes(run, ["preemption", "time_limit", "crash", "completed"])
    first, second, third, fourth = run.attempts()
    assert second["first_step"] == first["last_step"] + 1
    assert third["first_step"] == second["last_step"] + 1
    assert third["first_step"] < fourth["first_step"] <= third["last_step"] + 1
    python = kit_command.with_name("python")
    other_training.check_against_undisturbed(run.dir, python, library, tmp_path / "plain", NODES)
