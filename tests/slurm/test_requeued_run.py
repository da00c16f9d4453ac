"""A run that is requeued once: a shell and a clean beside it; then its notification."""

import json
from pathlib import Path

import pytest

from .cluster import Cluster
from .kit import PACED, Kit

MAIL = '#!/bin/sh\necho "$*" >>{}\n'


@pytest.mark.plugin("notify", "shell", "clean")
def test_a_shell_beside_a_rank_and_one_notification(cluster: Cluster, tmp_path: Path) -> None:
    """The job is requeued once: neither the command nor Slurm's mail comes for that."""
    kit, pace, mails = Kit(cluster, tmp_path / "runs"), tmp_path / "pace", tmp_path / "mails"
    kit.runs_root.mkdir()
    pace.write_text("0.3")
    (tmp_path / "mail").write_text(MAIL.format(mails))
    (tmp_path / "mail").chmod(0o755)
    # KillWait: the cluster's 10 s may be too short for the stop on a busy machine.
    cluster.restart(extra_conf=f"MailProg={tmp_path / 'mail'}\nKillWait=60")
    env = json.dumps({"PACE_FILE": str(pace)})
    notify = 'echo "$KIT_STATE $KIT_RUN_ID $SLURMD_NODENAME" >>notified'
    run = kit.submit(
        *(PACED, "slurm.nodes=2", f"launch.env={env}"),
        f"notify.command={json.dumps(notify)}",
        *("notify.mail=me@example.org", "train.epochs=1"),
    )
    run.wait_for_step(3)
    pace.write_text("600")  # from its next batch on, each rank stays in the model's forward
    line = kit.jobs("shell", "--rank=1", run.dir.path).stdout.replace("--pty bash", "hostname")
    host = next(each["host"] for each in run.events("spawn")[1:])
    assert cluster.run("bash", "-c", line).stdout == f"{host}\n"
    assert "it is queued or running" in kit.jobs("clean", "--yes").stderr
    assert not (run.dir.path / "notified").exists() and not mails.exists()
    cluster.run("scontrol", "requeue", run.job_id)
    pace.unlink()
    run.wait()
    assert len(run.attempts()) == 2
    assert (run.dir.path / "notified").read_text() == f"completed {run.dir.run_id} n1\n"
    cluster.wait_for(lambda: mails.exists() and mails.read_text(), "Slurm's mail", 60)
    (mail,) = mails.read_text().splitlines()
    assert "Ended" in mail and "me@example.org" in mail
    ended = kit.jobs("shell", run.job_id, check=False)
    assert ended.returncode == 2 and "has no running Slurm job" in ended.stderr
