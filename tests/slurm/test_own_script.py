"""A user's own torchrun script on Slurm: it knows its time limit, stops, and is requeued."""

import datetime

import pytest

from slurm_job_kit.jobs.base.files import read_json

from .cluster import Cluster
from .kit import Kit

pytestmark = pytest.mark.plugin("scripts")


@pytest.mark.slow
def test_a_warned_script_is_requeued_and_completes(kit: Kit, cluster: Cluster) -> None:
    typed = ("--", "python", "configs/examples/plain.py", "--epochs=40")  # without a spec
    run = kit.submit("slurm.nodes=2", *typed)
    run.wait_for(run.dir.attempt(1).plan.exists, "the first attempt")
    end = datetime.datetime.fromisoformat(cluster.job(run.job_id)["EndTime"])
    assert read_json(run.dir.attempt(1).plan)["deadline"] == end.timestamp()
    asked = ("squeue", "--noheader", f"--jobs={run.job_id}", "--format=%e")
    assert float(cluster.run("env", "SLURM_TIME_FORMAT=%s", *asked).stdout) == end.timestamp()
    run.wait_for(lambda: "saved after step 64:" in run.log(), "the first checkpoint")
    cluster.run("scancel", "--signal=USR1", run.job_id)
    run.wait()
    first, second = run.attempts()
    assert (first["decision"], first["evidence"]["outcome"]) == ("requeue", "stopped")
    assert first["evidence"]["has_progress"]
    assert second["decision"] == "done"
