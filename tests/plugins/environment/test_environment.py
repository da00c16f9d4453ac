"""What Slurm's commands, git, torchrun and ranks do not inherit, and what launch.env refuses."""

import subprocess

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.plugins.environment.hooks import launch_command
from slurm_job_kit.jobs.runs.git import ask_git


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
        "KIT_RUN_DIR": "/x",
        "PMI_RANK": "1",
        "KIT_SUCCEEDS": "1:7",
        "SBATCH_GPUS": "4",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    for name, value in {**kept, **gone}.items():
        monkeypatch.setenv(name, value)
    assert main(["submit", "tiny.yaml", "--no-check"]) == 0
    seen = dict(
        line.split("=", 1)
        for line in (slurm.folder / "sbatch.env").read_text().splitlines()
        if "=" in line
    )
    assert {name: seen.get(name) for name in kept} == kept and not set(seen) & set(gone)


def test_a_job_gets_nothing_of_the_job_and_the_shell_that_surround_the_submit():
    gone = ["SLURM_JOB_ID", "SLURM_NNODES", "SLURMD_NODENAME", "SLURM_HINT", "SLURM_CPU_BIND"]
    gone += ["SBATCH_CPU_BIND", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]
    gone += ["NVIDIA_VISIBLE_DEVICES", "WANDB_SERVICE", "SHELLOPTS", "BASHOPTS"]
    kept = {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "WANDB_API_KEY", "OWN"}
    inherited = dict.fromkeys((*gone, *kept), "1")
    assert hooks.launch_command(Program.SBATCH, (), inherited)[1].keys() == kept


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
    assert ask_git(mine, "ls-files").stdout == "mine\n"
    (mine / "mine").write_text("2\n")
    assert "+2" in ask_git(mine, "diff").stdout
    assert not (tmp_path / "trace").exists()


def test_torchrun_and_the_ranks_get_no_variable_that_breaks_them():
    gone = ["PET_STANDALONE", "RANK", "LOGLEVEL", "PYTHON_EXEC", "TORCH_DISTRIBUTED_DEBUG"]
    gone += ["NCCL_COMM_ID", "TORCHELASTIC_RUN_ID", "MAKE_TERMOUT"]
    kept = {"OWN", "NCCL_DEBUG", "LD_PRELOAD", "SLURM_JOB_ID", "SLURM_MEM_PER_CPU"}
    inherited = dict.fromkeys((*gone, *kept), "1")
    assert hooks.launch_command(Program.TORCHRUN, (), inherited)[1].keys() == kept


def test_srun_gets_no_options_and_no_memory_of_an_enclosing_job():
    gone: tuple[str, ...]
    gone = ("SRUN_DEBUG", "SLURM_OVERLAP", "SLURM_STDINMODE", "SLURM_MEM_PER_CPU", "SQUEUE_STATES")
    gone += ("SLURM_CPU_BIND_TYPE", "SLURM_EXTERNAL_LAUNCHER", "SLURM_TRES_PER_TASK")
    kept = {"SLURM_JOB_ID", "SLURM_CONF", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_NODE"}
    inherited = dict.fromkeys((*gone, *kept), "1")
    assert hooks.launch_command(Program.SRUN, (), inherited)[1].keys() == kept


@pytest.mark.parametrize("program", [Program.SBATCH, Program.SRUN, Program.LOCAL])
def test_no_job_gets_the_session_of_the_host_that_submits(program):
    gone = ("MPLBACKEND", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "XAUTHORITY")
    inherited = dict.fromkeys((*gone, "DBUS_SESSION_BUS_ADDRESS", "OWN", "MUJOCO_GL"), "x")
    assert hooks.launch_command(program, (), inherited)[1] == {"OWN": "x", "MUJOCO_GL": "x"}


def test_what_launch_env_sets_is_what_the_ranks_get():
    spec = Spec(launch=Launch(env={"LOGLEVEL": "INFO"}))
    inherited = {"LOGLEVEL": "INFO", "NCCL_COMM_ID": "x"}
    assert launch_command(Program.TORCHRUN, (), inherited, spec)[1] == {"LOGLEVEL": "INFO"}


def test_what_launch_env_may_set_stays_the_users_word(take):
    names = ("OMP_PROC_BIND", "PYTHONWARNINGS", "GLOO_SOCKET_IFNAME", "NODE_RANK", "MAKEFLAGS")
    spec = take("launch:\n  env:\n" + "".join(f"    {name}: x\n" for name in names))
    assert list(spec.launch.env) == list(names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RANK", "RANK belongs to the kit\n  hint: torchrun sets it"),
        ("MASTER_PORT", "belongs to the kit"),
        ("KIT_RUN_DIR", "belongs to the kit"),
        ("TORCHELASTIC_RUN_ID", "belongs to the kit"),
        ("SLURM_JOB_ID", "belongs to the kit"),
        ("OMP_NUM_THREADS", "hint: write launch.threads_per_rank"),
        ("PET_NNODES", "\n  hint: "),
        ("PYTHONHOME", "\n  hint: "),
        ("PYTHONINSPECT", "\n  hint: "),
        ("PYTHONPATH", "belongs to the kit"),
        ("PYTHONHASHSEED", "'x' orders sets of texts otherwise in each process\n  hint: write a"),
    ],
)
def test_launch_env_sets_no_variable_of_the_kit(refuse, name, message):
    assert message in refuse(f'launch: {{env: {{"{name}": x}}}}')
