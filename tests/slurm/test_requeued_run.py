"""A run that is requeued three times: a shell and a clean beside it, and the hooks of a user."""

import json
import re
from pathlib import Path

import pytest

from .cluster import Cluster
from .faults.harm_slurm import preempt
from .kit import PACED, REPOSITORY, Kit, Run

MAIL = '#!/bin/sh\necho "$*" >>{}\n'
EVALUATE = """#!/bin/bash
mkdir result || [ "$SLURM_RESTART_COUNT" ] || exit 0
test -f manifest.json && echo "${PWD##*/eval-}" >>../../../../evaluated
"""


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def look_beside(kit: Kit, run: Run) -> None:
    line = kit.jobs("shell", "--rank=1", run.dir.path).stdout.replace("--pty bash", "hostname")
    host = next(each["host"] for each in run.events("spawn")[1:])
    assert kit.cluster.run("bash", "-c", line).stdout == f"{host}\n"
    assert "it is queued or running" in kit.jobs("clean", "--yes").stderr


@pytest.mark.slow
@pytest.mark.plugin("hooks", "shell", "clean")
def test_each_checkpoint_is_evaluated_once_and_the_end_is_told_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    """With the line of the docs; neither a hook nor Slurm's mail comes for a requeue."""
    kit, pace, mails = Kit(cluster, tmp_path / "runs"), tmp_path / "pace", tmp_path / "mails"
    kit.runs_root.mkdir()
    pace.write_text("0.3")
    (tmp_path / "evaluate.sbatch").write_text(EVALUATE)
    (tmp_path / "mail").write_text(MAIL.format(mails))
    (tmp_path / "mail").chmod(0o755)
    # KillWait: the cluster's 10 s may be too short for the stop on a busy machine.
    cluster.restart(extra_conf=f"MailProg={tmp_path / 'mail'}\nKillWait=60")
    text = (REPOSITORY / "docs/care.md").read_text()
    line = re.findall("  checkpoint: (.*)", text)[0].replace("~/project", str(tmp_path))
    end = 'echo "$KIT_STATE $KIT_RUN_ID $SLURMD_NODENAME" >>notified'
    run = kit.submit(
        *(PACED, "slurm.nodes=2", f"launch.env={json.dumps({'PACE_FILE': str(pace)})}"),
        *("train.epochs=1", "checkpoint.every_steps=4", "checkpoint.keep_last=20"),
        *(f"hooks.checkpoint={json.dumps(line)}", f"hooks.end={json.dumps(end)}"),
        "notify.mail=me@example.org",
    )
    run.wait_for_step(6)
    pace.write_text("600")  # from its next batch on, each rank stays in the model's forward
    look_beside(kit, run)
    cluster.run("scontrol", "requeue", run.job_id)
    pace.write_text("0.3")
    for attempt in (2, 3):
        run.wait_for_events("first_step", 2, attempt)
        preempt(run)
    assert not lines(run.dir.path / "notified") and not lines(mails)
    pace.unlink()
    run.wait()
    assert len(run.attempts()) == 4
    assert lines(run.dir.path / "notified") == [f"completed {run.dir.run_id} n1"]
    cluster.wait_for(lambda: lines(mails), "Slurm's mail", 60)
    (mail,) = lines(mails)
    assert "Ended" in mail and "me@example.org" in mail
    cluster.wait_for(lambda: not cluster.job_ids(), "the evaluations", 60)
    saved = {str(event["step"]) for event in run.events("save")}
    assert sorted(lines(tmp_path / "evaluated")) == sorted(saved)
    ended = kit.jobs("shell", run.job_id, check=False)
    assert ended.returncode == 2 and "has no running Slurm job" in ended.stderr
