"""A run that fails says why in the job's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cluster import Cluster
from .kit import Kit


@pytest.fixture
def kit(cluster: Cluster, tmp_path: Path) -> Kit:
    return Kit(cluster, tmp_path)


@pytest.mark.slow
def test_failing_rank_is_named_in_the_job_log_and_ends_the_others(kit: Kit) -> None:
    bad = ("train.model=tests.slurm.raising:Raising", "slurm.nodes=2")
    run = kit.submit("configs/cancer.yaml", *bad)
    run.wait("FAILED")
    log = run.dir.job_log.read_text()
    assert "first failure: rank 1 on n" in log and "Traceback" in log and "out of cheese" in log
    assert run.result()["status"] == "held" and "crashes without progress" in run.result()["reason"]
    run.cluster.wait_for(lambda: not run.cluster.job_processes(), "no process of the job", 30)
