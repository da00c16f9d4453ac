"""The log warns if Slurm's warning comes too late for a run's saves, and its numbers hold."""

import os
import re
import signal
import time
from typing import Any

import pytest

from slurm_job_kit.jobs.rundir import RunDir, read_json, write_json
from slurm_job_kit.jobs.spec import Checkpoint, Launch, Log, Slurm, Spec, Train
from tests.local.local_kit import wait_for
from tests.local.test_failures import Attempt, events_of
from tests.local.test_trainer import TINY
from tests.unit import run_files

SAVE_S = 8  # misbehaving.save_slowly adds it to each save


def make_run(path):
    """A run that saves rarely, and slowly, in a job whose warning comes 12 s before the end."""
    run = RunDir(path)
    for folder in (run.checkpoints, run.timeline("x").parent):
        folder.mkdir(parents=True)
    slow = {"1": {"step": 2, "rank": 0, "harm": "save slowly"}}
    args: dict[str, Any] = {
        **TINY,
        "model": "tests.local.misbehaving:misbehaving",
        "epochs": 400,
        "eval_every_epochs": None,
    }
    args["model_args"] = {"plans": slow, "pause_s": 0.1}
    spec = Spec(
        slurm=Slurm(signal_lead_s=12),
        launch=Launch(stop_check_steps=1),
        train=Train(**args),
        checkpoint=Checkpoint(every_epochs=None, every_steps=100, best=None),
        log=Log(every_steps=100),
    )
    run.spec.write_text(spec.to_json())
    return run


@pytest.mark.slow
def test_a_warning_that_comes_too_late_is_told_with_numbers_that_hold(tmp_path):
    run = make_run(tmp_path / "run")
    with Attempt(run) as attempt:
        write_json(attempt.dir.plan, run_files.plan(deadline=time.time() + 3600))
        write_json(run.owner, {"attempt": 1, "job_id": "7"})
        wait_for(lambda: events_of(run, 0, 1, "save"), "the first save")
        warned = time.time()
        os.kill(attempt.pids()[1], signal.SIGTERM)
        status, output = attempt.end()
        took_s = time.time() - warned
    assert status == 0, output
    assert read_json(attempt.dir.outcome)["status"] == "stopped"
    (told,) = re.findall(r"warning: a stop needs about (\d+) s \(.*save (\d+)\.\d s\), .*", output)
    advised = r"comes 12 s before the time limit: set slurm\.signal_lead_s: (\d+)\n"
    (lead_s,) = re.findall(advised, output)
    assert int(told[1]) >= SAVE_S
    assert SAVE_S < took_s < int(told[0]) < int(lead_s)
