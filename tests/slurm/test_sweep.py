"""A sweep is one job array: points fail, are cancelled, requeued and resumed on their own."""

from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core.run_files import answered

from .kit import JOB_TIMEOUT_S, Kit, Run

pytestmark = pytest.mark.plugin("sweeps", "report", "changes")
SWEEP = """
name: small
slurm: {{nodes: 1, time: 00:10:00, cpus_per_task: 1}}
train: {{model: tests.slurm.paced:Paced, epochs: 1, max_steps: 200, micro_batch_size: 16}}
launch: {{max_crashes: 1, stop_check_steps: 1, env: {{PACE_FILE: {pace}}}}}
sweep:
  list:
  - {{train.seed: 0}}
  - {{train.model: "tests.parts:perceptron"}} # wants 30 features, not an image
  - {{train.seed: 2}}
  - {{train.seed: 3}}
"""


@pytest.mark.slow
def test_points_are_requeued_cancelled_and_retried_alone(kit: Kit, tmp_path: Path) -> None:
    pace, config = tmp_path / "pace", tmp_path / "small.yaml"
    kit.cluster.restart(extra_conf="KillWait=60")  # 10 s may be too short on a busy machine
    pace.touch()
    config.write_text(SWEEP.format(pace=pace))
    call = ("sweep", config, "--json", "--no-check")
    made = answered(kit.jobs(*call, "sweep.max_parallel=2").stdout)
    array_id = made["points"][0]["job_id"].partition("_")[0]
    runs = [Run(kit.cluster, p["job_id"], RunDir(Path(p["run_dir"]))) for p in made["points"]]
    assert [run.job_id for run in runs] == [f"{array_id}_{number}" for number in range(4)]
    # Two at a time: point 2 begins when point 1 has failed, and point 3 waits.
    runs[0].wait_for_step(2)
    runs[1].wait("FAILED")
    runs[2].wait_for_step(2)
    assert states(kit, made)[:3] == ["running", "held", "running"]
    assert states(kit, made)[3] == "pending"
    kit.run("scontrol", "requeue", runs[0].job_id)
    runs[0].wait_for_attempts()
    said = kit.jobs("cancel", array_id).stdout
    assert "3 points cancelled" in said
    kit.cluster.wait_for(lambda: not kit.cluster.job_ids(), "an empty queue", JOB_TIMEOUT_S)
    # No batch script is left that could write a result if the cancel comes before the requeue.
    ended = ["cancelled", "held", *["cancelled"] * 2]
    kit.cluster.wait_for(lambda: states(kit, made) == ended, "the end of each run", 60)
    pace.unlink()
    resume = kit.jobs("resume", made["sweep_id"], "--json", "--no-check").stdout
    retried = answered(resume)
    jobs = [point["job_id"] for point in retried["points"]]
    for number in (0, 2, 3):
        kit.cluster.wait_job(jobs[number], "COMPLETED", JOB_TIMEOUT_S)
        assert runs[number].result()["status"] == "completed"
    kit.cluster.wait_job(jobs[1], "FAILED", JOB_TIMEOUT_S)
    assert runs[2].result()["steps_redone"] == 0
    assert len(runs[2].attempts()) == 2  # before the cancel and after it: no requeue
    assert (runs[3].dir.path / "job.log").is_file()
    table = kit.jobs("report", made["sweep_id"]).stdout.splitlines()
    ranked = [words for line in table if (words := line.split())[2:3] == ["point"]]
    assert len(ranked) == 4 and ranked[-1][1] == "-" and "train.model" in table[-1]


def states(kit: Kit, made: dict[str, object]) -> list[str]:
    rows = answered(kit.jobs("status", "--json", str(made["sweep_id"])).stdout)["runs"]
    return [row["state"] for row in rows]
