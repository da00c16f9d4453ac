"""What each program of the kit does with the variables and limits that it inherits."""

import os
import subprocess
import tempfile

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.node import agent
from slurm_job_kit.jobs.runs.freeze import provenance
from slurm_job_kit.jobs.slurm import job_list
from slurm_job_kit.jobs.slurm.job import run_scancel, show_job

# Each would change what Slurm's clients print, or which jobs they show.
OF_CLIENTS = {
    "SQUEUE_STATES": "PD",
    "SQUEUE_NAMES": "x",
    "SINFO_PARTITION": "x",
    "SACCT_FORMAT": "user",
    "SCONTROL_ALL": "1",
    "SCANCEL_INTERACTIVE": "1",
    "SLURM_TIME_FORMAT": "relative",
    "SLURM_CLUSTERS": "other",
    "SLURM_BITSTR_LEN": "8",
}


def test_slurms_clients_get_no_filter_and_no_format_of_the_user(slurm, monkeypatch):
    for name, value in OF_CLIENTS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SLURM_CONF", "/etc/x")
    for name, ask in {
        "squeue": lambda: job_list.queue([os.getuid()]),
        "scontrol": lambda: show_job("7"),
        "scancel": lambda: run_scancel("7"),
    }.items():
        ask()
        lines = (slurm.folder / f"{name}.env").read_text().splitlines()
        seen = dict(line.split("=", 1) for line in lines if "=" in line)
        assert not set(seen) & set(OF_CLIENTS) - {"SLURM_TIME_FORMAT"}
        assert seen.get("SLURM_TIME_FORMAT", "%s") == "%s"
        assert (seen["LC_ALL"], seen["SLURM_CONF"]) == ("C", "/etc/x")


@pytest.mark.parametrize(
    ("program", "gone"),
    [
        (Program.SBATCH, ["SLURM_JOB_ID", "SLURMD_NODENAME", "SRUN_DEBUG", "KIT_SUCCEEDS"]),
        (Program.SRUN, ["SRUN_DEBUG"]),
        (Program.LOCAL, ["SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"]),
        (Program.TORCHRUN, ["PET_STANDALONE", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"]),
    ],
)
def test_no_program_gets_what_belongs_to_an_enclosing_job_or_torchrun(program, gone):
    kept = {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "OWN"}
    inherited = dict.fromkeys((*gone, *kept), "1")
    assert hooks.launch_command(program, (), inherited)[1].keys() == kept


@pytest.mark.parametrize(
    ("key", "value"), [("diff.external", "true"), ("color.ui", "always"), ("diff.noprefix", "true")]
)
def test_the_recorded_changes_have_the_form_that_git_apply_takes(tmp_path, monkeypatch, key, value):
    def run_git(*words, text=None):
        argv = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, input=text)

    run_git("init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    run_git("add", ".")
    run_git("commit", "-qm", "x")
    (tmp_path / "a.py").write_text("2\n")
    for name, text in {"COUNT": "1", "KEY_0": key, "VALUE_0": value}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", text)
    diff = provenance(tmp_path, "c").git_diff
    run_git("checkout", "-q", ".")
    run_git("apply", text=f"{diff}\n")
    assert (tmp_path / "a.py").read_text() == "2\n"


@pytest.mark.parametrize("name", ["x" * 90, "gone"])
def test_a_tmpdir_that_cannot_be_used_is_replaced(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / ("x" * 90)).mkdir()
    env = {"TMPDIR": str(tmp_path / name)}
    with agent.temporary_directory(env) as folder:
        assert folder.startswith("/tmp/torchrun-") and env["TMPDIR"] == "/tmp"
