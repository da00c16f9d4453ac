"""What Slurm's commands, git, torchrun and ranks do not inherit, and what launch.env refuses."""

import re
import subprocess

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.plugins.environment.hooks import launch_command
from slurm_job_kit.jobs.runs.git import ask_git


def test_the_job_gets_the_users_defaults_but_nothing_that_breaks_it(slurm, monkeypatch):
    for name in ("SBATCH_ACCOUNT", "SBATCH_WAIT", "SLURM_HINT", "MAKEFLAGS"):
        monkeypatch.setenv(name, "x")
    assert main(["submit", "tiny.yaml", "--no-check"]) == 0
    seen = (slurm.folder / "sbatch.env").read_text()
    assert "SBATCH_ACCOUNT=x" in seen
    assert not re.search("^(SBATCH_WAIT|SLURM_HINT|MAKEFLAGS)=", seen, re.MULTILINE)


# What each program does not inherit of what surrounds it, and what it does.
VARIABLES = {
    Program.SBATCH: (
        "SBATCH_WAIT SBATCH_ARRAY_INX SBATCH_CLUSTERS SBATCH_GPUS SBATCH_CPU_BIND SLURM_HINT "
        "SLURM_OVERLAP SLURM_JOB_ID SLURM_NNODES SLURMD_NODENAME SLURM_CPU_BIND SRUN_DEBUG "
        "CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES WANDB_SERVICE SHELLOPTS "
        "BASHOPTS PET_STANDALONE RANK MASTER_ADDR TORCHELASTIC_RUN_ID MAKEFLAGS KIT_RUN_DIR "
        "KIT_SUCCEEDS PMI_RANK",
        "SLURM_CONF SLURM_JWT SBATCH_ACCOUNT SBATCH_EXPORT SBATCH_MEM_PER_NODE WANDB_API_KEY OWN",
    ),
    Program.TORCHRUN: (
        "PET_STANDALONE RANK LOGLEVEL PYTHON_EXEC TORCH_DISTRIBUTED_DEBUG NCCL_COMM_ID "
        "TORCHELASTIC_RUN_ID MAKE_TERMOUT",
        "OWN NCCL_DEBUG LD_PRELOAD SLURM_JOB_ID SLURM_MEM_PER_CPU",
    ),
    Program.SRUN: (
        "SRUN_DEBUG SLURM_OVERLAP SLURM_STDINMODE SLURM_MEM_PER_CPU SQUEUE_STATES "
        "SLURM_CPU_BIND_TYPE SLURM_TRES_PER_TASK",
        "SLURM_JOB_ID SLURM_CONF SLURM_CPUS_PER_TASK SLURM_GPUS_PER_NODE",
    ),
    Program.GIT: ("GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_EXTERNAL_DIFF GIT_TRACE2", "OWN"),
    Program.LOCAL: ("", "OWN"),
}
SESSION = "MPLBACKEND DISPLAY WAYLAND_DISPLAY XDG_RUNTIME_DIR XAUTHORITY DBUS_SESSION_BUS_ADDRESS"


@pytest.mark.parametrize("program", VARIABLES)
def test_a_program_inherits_nothing_that_breaks_it(program):
    gone, kept = VARIABLES[program]
    if program not in (Program.TORCHRUN, Program.GIT):  # setup lines may export them
        gone, kept = f"{gone} {SESSION}", f"{kept} MUJOCO_GL"
    inherited = dict.fromkeys(f"{gone} {kept}".split(), "1")
    assert hooks.launch_command(program, (), inherited)[1].keys() == {*kept.split()}


def test_git_looks_at_the_repository_that_it_is_asked_about(tmp_path, monkeypatch):
    for name in ("mine", "other"):
        subprocess.run(["git", "init", "-q", tmp_path / name], check=True)
        (tmp_path / name / name).touch()
    monkeypatch.setenv("GIT_DIR", f"{tmp_path}/other/.git")
    monkeypatch.setenv("GIT_WORK_TREE", f"{tmp_path}/other")
    assert ask_git(tmp_path / "mine", "ls-files", "--others").stdout == "mine\n"


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
        ("TORCHELASTIC_RUN_ID", "belongs to the kit"),
        ("OMP_NUM_THREADS", "hint: write launch.threads_per_rank"),
        ("PET_NNODES", "\n  hint: "),
        ("PYTHONPATH", "belongs to the kit"),
        ("PYTHONHASHSEED", "'x' orders sets of texts otherwise in each process\n  hint: write a"),
    ],
)
def test_launch_env_sets_no_variable_of_the_kit(refuse, name, message):
    assert message in refuse(f'launch: {{env: {{"{name}": x}}}}')
