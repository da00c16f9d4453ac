"""Command and variables of the ranks of a user's script or module."""

import os
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.nodes import NODE
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.node.torchrun import NodeOptions, torchrun_command
from slurm_job_kit.jobs.plugins.scripts.command import search_path
from slurm_job_kit.jobs.runs.freeze import provenance

RUN = RunDir(Path("/runs/x y/1"))
AGENT = {"KIT_AGENT_PID": str(os.getpid()), "KIT_ATTEMPT": "1", NODE: "n1", "KIT_WORK_DIR": ""}


def start(launch, environ, nproc=1):
    """(command, variables) of torchrun."""
    spec = Spec(launch=launch)
    command = torchrun_command(spec, RUN, NodeOptions(1, nproc))
    return hooks.launch_command(Program.TORCHRUN, command, environ | launch.env, spec)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (Launch(module="my.train", args=["1"]), ["-m", "my.train", "1"]),
        (Launch(script="my train.py", args=["--n=1"]), ["/runs/x y/1/work/my train.py", "--n=1"]),
    ],
)
def test_torchrun_starts_a_script_or_module_by_exec(launch, words):
    command, _ = start(launch, {})
    wrapper = ["-m", "--", "slurm_job_kit.jobs.plugins.scripts.rank"]
    assert command[command.index("--") - 1 :] == [*wrapper, sys.executable, "-u", *words]


def test_a_script_gets_a_working_directory_and_what_launch_env_sets():
    _, variables = start(Launch(script="x.py", env={"PYTHONPATH": "/mine"}), AGENT)
    assert variables["KIT_WORK_DIR"] == "/runs/x y/1/work"
    assert variables["PYTHONPATH"] == "/mine" and "PYTHONFAULTHANDLER" not in variables
    _, variables = start(Launch(script="x.py", hang_timeout_s=9999), AGENT)
    assert variables["PYTHONPATH"] == "/runs/x y/1/work" and variables["PYTHONFAULTHANDLER"] == "1"


@pytest.mark.parametrize(("hang", "limit_s"), [("auto", 780), (30, 330), (9999, 10179)])
def test_torchrun_waits_for_other_nodes_longer_than_ranks_may_be_silent(hang, limit_s):
    launch = Launch(script="x.py", hang_timeout_s=hang)
    assert float(start(launch, AGENT, nproc=2)[1]["KIT_END_LIMIT_S"]) == limit_s


@pytest.mark.parametrize(
    ("entry", "becomes"),
    [
        ("{run}/code", []),
        ("{run}/code/lib", ["{run}/work/lib"]),
        ("{run}/kit", ["{run}/kit"]),
        ("/mine", ["/mine"]),
        ("lib", ["lib"]),  # begins in the working directory
        ("{live}/lib", ["{run}/work/lib"]),
        ("{live}", []),
        ("{live}2", ["{live}2"]),
        ("{live}/not/frozen", ["{live}/not/frozen"]),
        ("", []),
    ],
)
def test_the_working_directory_stands_for_the_repository_on_the_search_path(
    tmp_path, entry, becomes
):
    run = RunDir(tmp_path / "runs/x/1")
    (run.code / "lib").mkdir(parents=True)
    records.write(run.provenance, provenance(tmp_path, "x"))
    paths = {"run": run.path, "live": tmp_path}
    found = search_path(f"{entry.format(**paths)}:/last", run)
    expected = [str(run.work), *(each.format(**paths) for each in becomes), "/last"]
    assert found == ":".join(expected)
