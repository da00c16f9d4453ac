"""The command submit: a job or a local run, a dry run, and the output."""

import json
import os
import re
from pathlib import Path
from unittest import mock

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.attempt.decision import Cause
from slurm_job_kit.jobs.base.errors import RecordError
from slurm_job_kit.jobs.commands import local, submit
from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.runs import lookup, run_lock
from slurm_job_kit.jobs.slurm import ask
from tests.core import run_files
from tests.core.run_files import REPOSITORY, answered, make_run


def test_a_job_that_slurm_refuses_exits_1(slurm, capsys):
    slurm.refuse(7, "sbatch: error: invalid partition specified: x")
    assert main(["submit", "tiny.yaml"]) == 1
    error = capsys.readouterr().err
    assert "Slurm refused the job, nothing is queued" in error
    assert "hint: slurm.partition: " in error
    assert lookup.all_runs() == []


def test_submit_says_where_the_run_is_and_how_to_watch_it(slurm, capsys):
    assert main(["submit", "tiny.yaml"]) == 0
    (run,) = lookup.all_runs()
    path = run.path.relative_to(Path.cwd())
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["job 4711", f"run directory {path}", f"tail -F {path}/logs/rank-00000.log"]


def test_submit_as_json_is_one_object(slurm, capsys):
    assert main(["submit", "tiny.yaml", "slurm.nodes=3", "--json"]) == 0
    (run,) = lookup.all_runs()
    ids = {"job_id": "4711", "run_id": run.run_id, "run_dir": str(run.path), "cluster": "slurm"}
    assert answered(capsys.readouterr().out) == ids
    assert main(["submit", "tiny.yaml", "--dry-run", "--json"]) == 0
    found = answered(capsys.readouterr().out)
    assert found["sbatch"][0] == "sbatch" and found["spec"]["slurm"]["nodes"] == 2
    assert Spec.from_json(run.spec.read_text()).slurm.nodes == 3


def test_overrides_come_as_words_and_as_one_text(slurm):
    text = "slurm.time='00:10:00' name=b"
    assert main(["submit", "tiny.yaml", "train.lr=0.5", "--set", text]) == 0
    spec = Spec.from_json(lookup.all_runs()[0].spec.read_text())
    assert (spec.train.lr, spec.slurm.time, spec.name) == (0.5, "00:10:00", "b")


@pytest.mark.parametrize("status", [0, 1])
def test_a_dry_run_shows_command_script_and_spec_and_writes_nothing(slurm, here, capsys, status):
    if status:
        slurm.refuse(status, "sbatch: Job 1 to start")
    python = "launch.python=/only/on/the/nodes/bin/python"
    assert main(["submit", "tiny.yaml", python, "--dry-run", "--full"]) == status
    output = capsys.readouterr()
    # torchrun, for the agents:
    assert "\n/only/on/the/nodes/bin/python -uXfaulthandler -m " in output.out
    assert output.out.startswith("# command\nsbatch --job-name=tiny --nodes=2 ")
    assert (REPOSITORY / "slurm/ddp.sbatch").read_text() in output.out
    spec = Spec.from_json(output.out.partition("# resolved spec\n")[2])
    assert spec == load(Path("tiny.yaml"), [python]).spec
    assert "sbatch: Job 1 to start" in output.err
    assert os.listdir(here / "runs") == [".code"]  # of the fixture


@pytest.mark.usefixtures("slurm")
@pytest.mark.plugin("scripts")
def test_a_dry_run_shows_the_script_and_keys_that_nothing_reads_only_if_asked(capsys):
    for words in ([], ["launch.script=configs/examples/plain.py"]):
        assert main(["submit", "tiny.yaml", *words, "--dry-run"]) == 0
        output = capsys.readouterr().out
        command, shown = output.split("\n\n# resolved spec\n")
        assert command.startswith("# command\nsbatch --job-name=tiny ") and "\n# " not in command
        assert ("train" in json.loads(shown)) == (words == [])


@pytest.mark.parametrize(
    ("reason", "code", "text"),
    [(None, 0, "sbatch was not asked"), ("SLURM_CONF is set", 2, "SLURM_CONF is set")],
    ids=["laptop", "cluster"],
)
def test_a_dry_run_without_slurm_writes_nothing(here, monkeypatch, capsys, reason, code, text):
    monkeypatch.setattr(submit, "unloaded_reason", lambda: reason)
    assert main(["submit", "tiny.yaml", "--dry-run"]) == code
    assert text in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_an_sbatch_that_is_slower_than_other_commands_queues_the_job(slurm, monkeypatch, capsys):
    monkeypatch.setattr(ask, "CALL_TIMEOUT_S", 0.1)
    slurm.install("sbatch", "sleep 0.4; echo Submitted batch job 12")
    assert main(["submit", "tiny.yaml"]) == 0
    assert capsys.readouterr().out.startswith("job 12\n")


def test_a_dry_run_that_sbatch_does_not_answer_fails(slurm, capsys):
    slurm.answer("sbatch", error="Unable to contact slurm controller\n", status=1)
    assert main(["submit", "tiny.yaml", "--dry-run"]) == 1
    assert "did not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cause", "kind", "code", "words"),
    [
        (Cause.INTERRUPTED, "interrupted", 130, "stopped, nothing saved; next: make resume RUN="),
        (Cause.CRASH, "user_code", 1, "stopped: crash, see above\nnext: user_code: "),
    ],
)
def test_a_local_run_that_stopped_ends_with_one_hint(
    here, capsys, monkeypatch, cause, kind, code, words
):
    run = make_run(here)
    run_files.recorded(run, cause=cause, kind=kind)
    monkeypatch.setattr(local, "run", lambda _: 1)
    assert local.run_here(run) == code
    assert capsys.readouterr().err.startswith(words)


@pytest.mark.parametrize("nodes", [9999, 2, 1])
def test_a_spec_that_this_machine_cannot_run_leaves_no_run_and_its_hint_fits(here, capsys, nodes):
    words = [f"slurm.nodes={nodes}", *["launch.nproc_per_node=9999"] * (nodes < 9)]
    assert main(["submit", "tiny.yaml", *words, "--cluster", "local"]) == 2
    (added,) = re.findall('too many .*hint: add SET="(.*)"', capsys.readouterr().err, re.DOTALL)
    local.check_machine(load(Path("tiny.yaml"), [*words, *added.split()]).spec, 0)
    assert lookup.all_runs() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RecordError])
def test_nothing_that_happens_after_sbatch_deletes_the_run(slurm, monkeypatch, error):
    monkeypatch.setattr(run_lock, "release", mock.Mock(side_effect=error))
    assert main(["submit", "tiny.yaml"]) in (2, 130)
    assert [run.spec.exists() for run in lookup.all_runs()] == [True]


def test_a_run_directory_stays_where_its_job_may_be_queued(slurm, capfd):
    """sbatch succeeded, and its answer has no job id."""
    slurm.answer("sbatch", "accepted\n", when="*ddp.sbatch*")
    assert main(["submit", "tiny.yaml", "--no-check"]) == 1
    (run,) = lookup.all_runs()
    assert run.spec.exists() and f"{run.path} is kept" in capfd.readouterr().err
