"""The command line: exit codes, error messages, overrides, what is imported."""

import errno
import os
import re
import sys
from unittest import mock

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.commands import cancel
from slurm_job_kit.jobs.commands.catalogue import all_commands, parse
from slurm_job_kit.jobs.node.__main__ import OLDEST
from tests.core import run_files
from tests.core.run_files import COMMANDS, answered


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "nowhere.yaml"], "nowhere.yaml"),
        (["submit", "tiny.yaml", "slurm.nodse=3"], "slurm.nodse: unknown key"),
        (["submit", "tiny.yaml", "--set", "'"], "--set"),
        (["submit", "tiny.yaml", "--cluster", "slurm"], "no sbatch on PATH"),
        (["cancel", "nothing"], "no run 'nothing'"),
        (["cancel", "--", "--yes"], "no run '--yes'"),
        (["resume"], "no runs in"),
    ],
)
def test_a_users_mistake_is_said_without_a_traceback_and_exits_2(here, capsys, words, said):
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert said in output.err
    assert output.out == ""
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("number", "way"),
    [(errno.ENOSPC, "df -i"), (errno.EDQUOT, "quota"), (errno.EAGAIN, "ulimit -u")],
)
def test_a_limit_of_the_disk_or_of_processes_has_its_own_way_out(monkeypatch, capsys, number, way):
    def fails(_):
        raise OSError(number, os.strerror(number), "a/b")

    monkeypatch.setattr(cancel, "command", fails)
    assert main(["cancel", "x"]) == 1
    said, hint = capsys.readouterr().err.split("\n  hint: ")
    assert said == f"error: a/b: {os.strerror(number)}" and way in hint


def test_overrides_may_stand_behind_options():
    args = parse(["submit", "x.yaml", "a=1", "--cluster", "local", "b=2"])
    assert (args.overrides, args.cluster) == (["a=1", "b=2"], "local")
    near = {"--dryrun": "--dry-run", "--train.lr=1": "train.lr=1", "--js": "--json"}
    near |= {"--nodes=2": "slurm.nodes=...", "--gpus-per-node": "slurm.gpus_per_node=..."}
    for wrong, right in near.items():
        with pytest.raises(UserError) as refused:
            parse(["submit", "x.yaml", "a=1", wrong])
        assert f"{wrong}\n  hint: did you mean {right}?" in str(refused.value)


@pytest.mark.parametrize(
    "words", [["cancel", "no-such-run", "--json"], ["resume", "--json", "--cluter=local"]]
)
def test_a_program_reads_the_error_that_a_person_reads(here, capsys, words):
    assert main(words) == 2
    output = capsys.readouterr()
    assert f"error: {answered(output.out)['error']}\n" in output.err


def test_a_program_reads_of_a_ctrl_c(monkeypatch, capsys):
    monkeypatch.setattr(cancel, "command", mock.Mock(side_effect=KeyboardInterrupt))
    assert main(["cancel", "x", "--json"]) == 130
    assert "Ctrl-C" in answered(capsys.readouterr().out)["error"]


def test_what_each_command_answers_is_documented():
    text = COMMANDS.read_text().partition("## For programs")[2]
    assert {*all_commands()} <= {*re.findall(r"`([a-z]+)`", text)}


def test_the_batch_script_gets_the_path_of_a_run_unescaped(slurm, here):
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    done = run_files.kit("adopt", "tiny.yaml", KIT_RUNS=str(here / "a\xa0b"), **job)
    assert os.path.isfile(done.stdout.strip() + "/spec.json"), done.stderr


def test_without_a_command_all_are_listed(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    listed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "submit    freeze a spec" in listed and "resume    continue a run" in listed


def test_without_the_packages_of_the_commands_all_needed_ones_are_named_at_once(here):
    done = run_files.kit(
        "submit", "tiny.yaml", python=[sys.executable, "-S"]
    )  # -S: no site-packages
    assert done.returncode == 2
    for name in ("pyyaml", "submitit", "torch", "numpy", "safetensors"):
        assert name in done.stderr
    assert "Traceback" not in done.stderr and "requirements.lock" not in done.stderr


def test_the_oldest_python_is_that_of_the_project():
    text = (run_files.REPOSITORY / "pyproject.toml").read_text()
    assert f'requires-python = ">={".".join(map(str, OLDEST))}"' in text
