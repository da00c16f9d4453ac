"""What each door of the kit does with the variables and limits that it inherits."""

import os
import subprocess
import tempfile

import pytest

from slurm_job_kit.jobs import environment
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.environment import Door
from slurm_job_kit.jobs.node import agent
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import code_snapshot
from slurm_job_kit.jobs.runs.freeze import provenance
from slurm_job_kit.jobs.slurm import client, job_list

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
        "scontrol": lambda: client.show_job("7"),
        "scancel": lambda: client.cancel("7"),
    }.items():
        ask()
        seen = environ_of(slurm, name)
        assert not set(seen) & set(OF_CLIENTS) - {"SLURM_TIME_FORMAT"}
        assert seen.get("SLURM_TIME_FORMAT", "%s") == "%s"
        assert (seen["LC_ALL"], seen["SLURM_CONF"]) == ("C", "/etc/x")


def environ_of(slurm, name):
    lines = (slurm.folder / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_the_job_gets_the_users_defaults_but_nothing_that_breaks_it(slurm, monkeypatch):
    kept = {"SBATCH_ACCOUNT": "lab", "SBATCH_EXPORT": "NONE", "SBATCH_MEM_PER_NODE": "4G"}
    gone = {
        "SBATCH_WAIT": "1",
        "SBATCH_ARRAY_INX": "0-3",
        "SBATCH_CLUSTERS": "other",
        "SLURM_HINT": "nomultithread",
        "SLURM_OVERLAP": "1",
        "SRUN_DEBUG": "3",
        "PET_STANDALONE": "1",
        "RANK": "3",
        "MASTER_ADDR": "x",
        "TORCHELASTIC_RUN_ID": "1",
        "MAKEFLAGS": "n -- SET=train.lr=9",
        "KIT_SET": "train.lr=9",
        "KIT_RUN_DIR": "/x",
        "PMI_RANK": "1",
        "KIT_SUCCEEDS": "1:7",
        "SBATCH_GPUS": "4",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    for name, value in {**kept, **gone}.items():
        monkeypatch.setenv(name, value)
    assert main(["submit", "tiny.yaml", "--no-check"]) == 0
    seen = environ_of(slurm, "sbatch")
    assert {name: seen.get(name) for name in kept} == kept and not set(seen) & set(gone)


def test_a_job_gets_nothing_of_the_job_and_the_shell_that_surround_the_submit():
    gone = ["SLURM_JOB_ID", "SLURM_NNODES", "SLURMD_NODENAME", "SLURM_HINT", "SLURM_CPU_BIND"]
    gone += ["SBATCH_CPU_BIND", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]
    gone += ["NVIDIA_VISIBLE_DEVICES", "WANDB_SERVICE", "SHELLOPTS", "BASHOPTS"]
    kept = {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "WANDB_API_KEY", "OWN"}
    inherited = dict.fromkeys((*gone, *kept), "1")
    assert environment.variables_for(inherited, Door.SBATCH).keys() == kept


def test_git_looks_at_the_repository_that_it_is_asked_about(tmp_path, monkeypatch):
    for name in ("mine", "other"):
        subprocess.run(["git", "init", "-q", tmp_path / name], check=True)
        (tmp_path / name / name).write_text("1\n")
        subprocess.run(["git", "-C", tmp_path / name, "add", "."], check=True)
    other = str(tmp_path / "other")
    for name, value in {
        "GIT_DIR": f"{other}/.git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": f"{other}/.git/index",
        "GIT_EXTERNAL_DIFF": "true",
        "GIT_TRACE": f"{tmp_path}/trace",
    }.items():
        monkeypatch.setenv(name, value)
    mine = tmp_path / "mine"
    assert code_snapshot.ask_git(mine, "ls-files").stdout == "mine\n"
    (mine / "mine").write_text("2\n")
    assert "+2" in code_snapshot.ask_git(mine, "diff").stdout
    assert not (tmp_path / "trace").exists()


def test_git_keeps_the_users_configuration(tmp_path, monkeypatch):
    for name, value in {"COUNT": "1", "KEY_0": "kit.colour", "VALUE_0": "blue"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert code_snapshot.ask_git(tmp_path, "config", "kit.colour").stdout == "blue\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [("diff.external", "true"), ("color.ui", "always"), ("diff.noprefix", "true")],
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
    diff = provenance(tmp_path, "c", "python3").git_diff
    run_git("checkout", "-q", ".")
    run_git("apply", text=f"{diff}\n")
    assert (tmp_path / "a.py").read_text() == "2\n"


def test_torchrun_and_the_ranks_get_no_variable_that_breaks_them():
    gone = ["PET_STANDALONE", "RANK", "LOGLEVEL", "PYTHON_EXEC", "TORCH_DISTRIBUTED_DEBUG"]
    gone += ["NCCL_COMM_ID", "TORCHELASTIC_RUN_ID", "MAKE_TERMOUT", "KIT_STOP_FILE"]
    kept = {"OWN", "NCCL_DEBUG", "LD_PRELOAD", "SLURM_JOB_ID", "SLURM_MEM_PER_CPU"}
    inherited = dict.fromkeys((*gone, *kept), "1")
    assert environment.variables_for(inherited, Door.TORCHRUN).keys() == kept


def test_srun_gets_no_options_and_no_memory_of_an_enclosing_job():
    gone = ("SRUN_DEBUG", "SLURM_OVERLAP", "SLURM_STDINMODE", "SLURM_MEM_PER_CPU")
    kept = {"SLURM_JOB_ID", "SLURM_CONF", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_NODE"}
    inherited = dict.fromkeys((*gone, *kept), "1")
    assert environment.variables_for(inherited, Door.SRUN).keys() == kept


def test_what_launch_env_may_set_stays_the_users_word(take):
    names = ("OMP_PROC_BIND", "PYTHONWARNINGS", "GLOO_SOCKET_IFNAME", "NODE_RANK", "MAKEFLAGS")
    spec = take("launch:\n  env:\n" + "".join(f"    {name}: x\n" for name in names))
    assert list(spec.launch.env) == list(names)


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    attempt_dir = RunDir(tmp_path / "run").attempt(1)
    attempt_dir.path.mkdir(parents=True)
    return attempt_dir


@pytest.mark.parametrize("name", ["x" * 90, "gone"])
def test_a_tmpdir_that_cannot_be_used_is_replaced(attempt, tmp_path, name):
    (tmp_path / ("x" * 90)).mkdir()
    env = {"TMPDIR": str(tmp_path / name)}
    with agent.temporary_directory(attempt, 0, env) as folder:
        assert folder.startswith("/tmp/torchrun-") and env["TMPDIR"] == "/tmp"
