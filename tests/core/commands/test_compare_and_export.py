"""The commands that read one run: compare, export."""

import os
import sys

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.rundir import read_json, write_json
from tests.core import run_files
from tests.core.run_files import make_run


def test_compare_says_bitwise_equal_or_how_two_runs_differ(here, capsys):
    result = {"status": "completed", "global_step": 9, "weights_sha256": "ab"}
    for name in ("a", "b"):
        write_json(make_run(here, name, name).result, result | {"exactness": "bitwise"})
    assert main(["compare", "a", "b"]) == 0
    assert capsys.readouterr().out == "bitwise equal: 9 steps, weights ab\n"
    write_json(make_run(here, "c", "c").result, result | {"exactness": "bitwise", "global_step": 8})
    assert main(["compare", "c", "b"]) == 1
    assert capsys.readouterr().out == "global_step: 8 is not 9\n"


@pytest.mark.parametrize(
    "command", [["status"], ["logs"], ["resume"], ["cancel"], ["export"], ["compare", "tiny"]]
)
def test_a_run_that_completed_and_was_killed_is_complete_to_each_command(here, capsys, command):
    run = make_run(here)
    write_json(
        run_files.opened(run, job_id="local-here-1").outcome,
        {"status": "completed", "global_step": 9},
    )
    main([command[0], "tiny", *command[1:]])
    is_written = command[0] in ("resume", "cancel", "export")  # the others look
    assert run.result.exists() == run.attempts.exists() == is_written
    assert not is_written or read_json(run.result)["status"] == "completed"
    if command == ["status"]:
        assert " completed\n" in capsys.readouterr().out


def test_export_starts_the_trainers_with_the_live_checkout(here, monkeypatch, capsys):
    run = make_run(here)
    assert main(["export", "tiny"]) == 2
    assert "20260101 has no checkpoint yet\n  hint: " in capsys.readouterr().err
    (run.checkpoints / "step-00000009").mkdir(parents=True)
    started = []
    monkeypatch.setattr(os, "execv", lambda path, words: started.append([path, *words]))
    main(["export", "tiny", "--checkpoint", "best", "--out", "w.safetensors"])
    main(["export"])
    command = [
        sys.executable,
        sys.executable,
        "-m",
        "slurm_job_kit.trainer.checkpoint.export",
        str(run.path),
    ]
    assert started == [
        [*command, "--checkpoint", "best", "--out", "w.safetensors"],
        command,
    ]
