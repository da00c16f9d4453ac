"""The command of torchrun that forks the trainer's ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.base import gpus
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec, Train
from slurm_job_kit.jobs.node.signed_torchrun import LAUNCHER
from slurm_job_kit.jobs.node.torchrun import NodeOptions, torchrun_command
from slurm_job_kit.jobs.plugins import PLUGINS
from slurm_job_kit.jobs.plugins.fast_start.hooks import FORKED_RANK

RUN = RunDir(Path("/runs/x y/1"))
PRELOAD = [sys.executable, "-uXfaulthandler", "-m", "slurm_job_kit.jobs.plugins.fast_start.preload"]


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "of_machine", lambda: 0)


def modules():
    """The words of all that the ranks need but torch._dynamo."""
    named = (name for name, plugin in PLUGINS.items() if plugin.trainer_hooks)
    own = ["trainer.training.run", "trainer.__main__"]
    needed = [*own, *(f"trainer.plugins.{name}.hooks" for name in named)]
    return ",".join(f"slurm_job_kit.{name}" for name in needed)


def start(spec):
    """(command, variables) of torchrun."""
    command = torchrun_command(spec, RUN, NodeOptions(1, 1))
    return hooks.launch_command(Program.TORCHRUN, command, spec.launch.env, spec)


def test_torchrun_forks_the_ranks_of_the_trainer():
    spec = Spec(launch=Launch(args=["--x=a b"]))
    command, variables = start(spec)
    torchrun = torchrun_command(spec, RUN, NodeOptions(1, 1))
    end = torchrun.index("-m", torchrun.index(LAUNCHER))
    assert command == [
        *(*PRELOAD, f"{modules()},torch._dynamo"),
        *torchrun[torchrun.index(LAUNCHER) : end],
        *(
            "--start-method=forkserver",
            "--run-path",
            "--",
            str(FORKED_RANK),
            "/runs/x y/1",
            "--x=a b",
        ),
    ]
    assert variables == {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


@pytest.mark.parametrize(
    ("launch", "num_gpus"),
    [
        *((Launch(fork=False), 0), (Launch(), 1), (Launch(fork=True, script="train.py"), 0)),
        (Launch(fork=True, nproc_per_node=125), 0),  # more than one message to the server can have
    ],
)
def test_ranks_that_must_not_be_forked_are_started_by_exec(launch, num_gpus):
    spec = Spec(launch=launch, slurm=Slurm(gpus_per_node=num_gpus))
    command, variables = start(spec)
    assert command[:6] == [*PRELOAD, "", LAUNCHER] and variables == {}
    assert command[command.index("--") - 1] == "-m"


def test_a_fork_on_request_does_not_let_torchrun_initialise_cuda():
    own = Launch(fork=True, env={"PYTORCH_NVML_BASED_CUDA_CHECK": "0"})
    for launch, value in ((Launch(fork=True), "1"), (own, "0")):
        variables = start(Spec(launch=launch, slurm=Slurm(gpus_per_node=1)))[1]
        assert variables["PYTORCH_NVML_BASED_CUDA_CHECK"] == value


def test_compiled_code_is_stored_where_the_rank_says():
    """An import of torch._dynamo before the rank's own lines would choose another directory."""
    imported = start(Spec(train=Train(compile=True)))[0][4]
    assert imported == modules()
    code = f"import sys, {imported}; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
