"""The kit that pip installs, on Slurm: the command `kit` in a repository of the user's own."""

from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core.run_files import answered
from tests.installed import install, make_repository

from .cluster import Cluster
from .kit import Kit, Run


@pytest.mark.slow
def test_a_run_of_the_installed_kit_is_requeued_and_completes(
    cluster: Cluster, tmp_path: Path
) -> None:
    command = install(tmp_path / "installed")
    kit = Kit(cluster, tmp_path / "runs", make_repository(tmp_path / "mine"))
    said = kit.run(command, "submit", "--json", "specs/mine.yaml", "train.epochs=600").stdout
    ids = answered(said)
    run = Run(cluster, ids["job_id"], RunDir(Path(ids["run_dir"])))
    run.wait_for_step(200)
    cluster.run("scancel", "--signal=USR1", run.job_id)
    run.wait()
    first, second = run.attempts()
    assert (first["decision"], second["decision"]) == ("requeue", "done")
    assert run.result()["global_step"] == 600 * 4 and run.result()["steps_redone"] == 0
    assert not (run.dir.code / "slurm_job_kit").exists()
