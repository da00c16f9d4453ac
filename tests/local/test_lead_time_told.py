"""Slow saves and the time that a stop has: a stop that meets a save."""

import contextlib
import os
import signal
import time
from typing import Any

import pytest

from slurm_job_kit.jobs.checkpoint.names import checkpoint_names
from slurm_job_kit.jobs.rundir import RunDir, read_json, write_json
from slurm_job_kit.jobs.runs import fact_reader, interpret
from slurm_job_kit.jobs.runs.compare import compare
from slurm_job_kit.jobs.spec import Checkpoint, Launch, Log, Slurm, Spec, Train
from tests.local.local_kit import wait_for, write_result
from tests.local.test_failures import Attempt
from tests.local.test_trainer import TINY
from tests.unit import run_files


def make_run(path, plans, epochs=400, every_steps=100):
    """A run in a job whose warning comes 12 s before the end; `plans` as in `misbehaving`."""
    run = RunDir(path)
    for folder in (run.checkpoints, run.timeline("x").parent):
        folder.mkdir(parents=True)
    args: dict[str, Any] = {
        **TINY,
        "model": "tests.local.misbehaving:misbehaving",
        "epochs": epochs,
        "eval_every_epochs": None,
    }
    args["model_args"] = {"plans": plans, "pause_s": 0.1}
    spec = Spec(
        slurm=Slurm(signal_lead_s=12),
        launch=Launch(stop_check_steps=1),
        train=Train(**args),
        checkpoint=Checkpoint(every_epochs=None, every_steps=every_steps, best=None),
        log=Log(every_steps=100),
    )
    run.spec.write_text(spec.to_json())
    return run


@contextlib.contextmanager
def attempt_of_job(run, number=1):
    """An attempt of job 7, whose time limit is far away."""
    with Attempt(run, number) as attempt:
        plan = run_files.plan(attempt=number, deadline=time.time() + 3600)
        write_json(attempt.dir.plan, plan)
        write_json(run.owner, {"attempt": number, "job_id": "7"})
        yield attempt


def slow_saves(step, **more):
    return {"step": step, "rank": 0, "harm": "save slowly", **more}


def stop_in_a_save(run, number):
    """Stop an attempt just after a save began; return its output and how long the stop took."""
    with attempt_of_job(run, number) as attempt:
        wait_for(lambda: [*run.checkpoints.glob(".tmp-step-*")], "a save")
        warned = time.time()
        for pid in attempt.pids().values():
            os.kill(pid, signal.SIGTERM)
        status, output = attempt.end()
    assert status == 0, output
    return output, time.time() - warned


def steps_of(run, number):
    """The first and the last step of the newest attempt, as attempts.jsonl would have them."""
    return interpret.steps_of(fact_reader.read(run, number))


def complete(run, number):
    """Train an attempt to the end of its run."""
    with attempt_of_job(run, number) as attempt:
        status, output = attempt.end()
    assert status == 0, output
    write_result(run, number)


@pytest.mark.slow
def test_a_stop_that_meets_a_slow_save_does_no_second_one(tmp_path):
    every = {"epochs": 8, "every_steps": 10}
    plans = {"1": slow_saves(1, seconds=4), "2": slow_saves(10, seconds=1)}
    run = make_run(tmp_path / "run", plans, **every)

    output, took_s = stop_in_a_save(run, 1)
    first = read_json(run.attempt(1).outcome)
    assert (first["status"], first["checkpoint"]) == ("stopped", "step-00000010")
    assert checkpoint_names(run.checkpoints) == [first["checkpoint"]] and took_s < 8
    assert f"step {first['global_step']} is not saved, " in output
    assert steps_of(run, 1) == (1, first["global_step"]) and first["global_step"] > 10

    output, _ = stop_in_a_save(run, 2)
    second = read_json(run.attempt(2).outcome)
    step = second["global_step"]
    assert (second["status"], second["checkpoint"]) == ("stopped", f"step-{step:08d}")
    assert steps_of(run, 2) == (11, step) and step > 20

    complete(run, 3)
    assert steps_of(run, 3) == (step + 1, 40)
    reference = make_run(tmp_path / "reference", {}, **every)
    complete(reference, 1)
    assert compare(run, reference) == []
