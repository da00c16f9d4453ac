"""A user's own torchrun script on Slurm: it knows its time limit, stops, and is requeued."""

from __future__ import annotations

import datetime
from pathlib import Path

from jobs.rundir import read_json

from .cluster import Cluster
from .kit import Kit


def test_a_warned_script_is_requeued_and_completes(cluster: Cluster, tmp_path: Path) -> None:
    kit = Kit(cluster, tmp_path)
    run = kit.submit("configs/own_script.yaml", "launch.args=[3000]")
    cluster.wait_for(lambda: "saved after step 100:" in run.log(), "the first checkpoint", 90)
    end = datetime.datetime.fromisoformat(cluster.job(run.job_id)["EndTime"])
    assert read_json(run.dir.attempt(1).plan)["deadline"] == end.timestamp()
    asked = ("squeue", "--noheader", f"--jobs={run.job_id}", "--format=%e")
    assert float(cluster.run("env", "SLURM_TIME_FORMAT=%s", *asked).stdout) == end.timestamp()
    cluster.run("scancel", "--signal=USR1", run.job_id)
    run.wait()
    first, second = run.attempts()
    assert (first["decision"], first["evidence"]["outcome"]) == ("requeue", "stopped")
    assert first["evidence"]["has_progress"]
    assert second["decision"] == "done"
