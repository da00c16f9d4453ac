"""The files that init writes into a repository of the user."""

import os
import subprocess
from pathlib import Path

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.plugins.init import init
from tests.core.run_files import answered


def test_the_first_spec_is_valid(tmp_path):
    init.init(tmp_path)
    assert load(tmp_path / "configs/first.yaml").spec.name == "first"


def test_its_targets_are_those_of_the_plugins_but_for_clean(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--json"]) == 0
    assert {Path(each) for each in answered(capsys.readouterr().out)["written"]} == {
        path for path in tmp_path.rglob("*") if path.is_file()
    }
    environ = {"PATH": os.environ["PATH"]}
    listed = subprocess.check_output(["make", "-f", "kit.mk"], cwd=tmp_path, env=environ, text=True)
    of_plugins = {
        line.partition(":")[0]
        for path in installation.ROOT.glob("jobs/plugins/*/plugin.mk")
        for line in path.read_text().splitlines()
        if ":" in line and line[0] != "#"
    }
    targets = {line.split()[1] for line in listed.splitlines() if line.startswith("  make ")}
    assert of_plugins | {"submit", "status"} <= targets and "clean" not in targets
    called = subprocess.check_output(
        ["make", "-n", "-f", "kit.mk", *of_plugins], cwd=tmp_path, env=environ, text=True
    )
    assert {line.split()[-1] for line in called.splitlines()} == of_plugins


@pytest.mark.plugin("scripts")
def test_old_runs_are_neither_frozen_nor_named_where_new_ones_lie_elsewhere(
    here, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    subprocess.run(["git", "init", "-q"], check=True)
    init.init(here)
    (here / "runs").mkdir()
    for name in ("runs/old.py", "train.py"):
        (here / name).touch()
    monkeypatch.setenv("KIT_RUNS", str(here.parent / f"{here.name}-runs"))
    capsys.readouterr()
    assert main(["freeze", "tiny.yaml", "launch.script=train.py", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and not Path(answered(printed.out)["run_dir"], "code/runs").exists()


def test_a_clone_needs_no_init():
    with pytest.raises(UserError, match="is a clone of the kit"):
        init.init(installation.ROOT)


@pytest.mark.parametrize("words", [[], ["code/train.py"]])
def test_a_script_gets_a_spec_and_kit_stop_beside_it(tmp_path, monkeypatch, capsys, words):
    (tmp_path / "mine/code").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert main(["init", "--script", *words]) == 0
    beside = Path(*words).parent
    assert "class Stop" in (beside / "kit_stop.py").read_text()
    launch = load(Path("train.yaml")).spec.launch
    assert launch.script == f"mine/{'code/' * len(words)}train.py"  # of the repository
    assert launch.stop_signal == "TERM"
    assert capsys.readouterr().out.endswith("\nnext: make submit CONFIG=train.yaml\n")
    (beside / "kit_stop.py").write_text("mine")
    assert main(["init", "--script", *words]) == 0
    assert (beside / "kit_stop.py").read_text() == "mine"


@pytest.mark.parametrize("path", ["nowhere/train.py", "train.sh"])
def test_a_script_that_cannot_be_one_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--script", path]) == 2 and os.listdir() == []
