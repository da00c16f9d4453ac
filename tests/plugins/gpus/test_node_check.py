"""The agent stops with the cause where its ranks would not see the GPUs of the job."""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec

import pytest

from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.base.errors import FailedError, UserError
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.nodes import AgentRecord
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.plugins.gpus import node_check
from slurm_job_kit.jobs.plugins.gpus.hooks import launch_command
from tests.core import run_files

TWO = Spec(slurm=Slurm(gpus_per_node="a100:2"))
CUDA_BUILD = (
    "__version__ = '2.13.0+cu129'\ncuda: Optional[str] = '12.9'\nhip: Optional[str] = None\n"
)
CPU_BUILD = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"


@pytest.fixture
def torch(tmp_path):
    def build(text=CUDA_BUILD):
        (tmp_path / "version.py").write_text(text)
        return tmp_path / "__init__.py"

    return build


@pytest.fixture
def driver(monkeypatch):
    def answers(error, count):
        monkeypatch.setattr(node_check, "PROBE", f"print({error}, {count})")

    return answers


def test_a_cpu_build_is_a_mistake_that_every_start_would_repeat(torch):
    problem = node_check.problem(TWO, {}, torch(CPU_BUILD))
    assert problem is not None and problem[1] is None
    assert "slurm.gpus_per_node is a100:2" in problem[0]
    assert f"torch of {sys.executable} is a CPU build" in problem[0]


def test_a_cpu_build_does_for_a_job_without_gpus(torch):
    assert node_check.problem(Spec(), {}, torch(CPU_BUILD)) is None


@pytest.mark.parametrize("devices", ["", "-1", "0", "NoDevFiles", "0,-1"])
def test_a_variable_that_hides_gpus_is_the_cause(torch, driver, devices):
    driver(0, 2)
    problem = node_check.problem(TWO, {"CUDA_VISIBLE_DEVICES": devices}, torch())
    assert problem is not None and f"CUDA_VISIBLE_DEVICES is {devices!r}" in problem[0]


def test_a_driver_that_shows_fewer_gpus_may_be_the_nodes_fault(torch, driver):
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1"}
    driver(0, 2)
    assert node_check.problem(TWO, environ, torch()) is None
    for answer, text in (((100, 0), "0 GPUs"), ((0, 1), "1 GPU"), ((803, 0), "error is 803")):
        driver(*answer)
        problem = node_check.problem(TWO, environ, torch())
        assert problem is not None and problem[1] is not None and text in problem[0]


def test_a_node_without_a_driver_is_named(torch, monkeypatch):
    probe = node_check.PROBE.replace("libcuda.so.1", "libnothing-of-that-name.so.1")
    monkeypatch.setattr(node_check, "PROBE", probe)
    problem = node_check.problem(TWO, dict(os.environ), torch())
    assert problem is not None and "no NVIDIA driver" in problem[0]


def test_the_allocation_counts_where_the_spec_asks_for_none(torch):
    problem = node_check.problem(Spec(), {"SLURM_GPUS_ON_NODE": "2"}, torch(CPU_BUILD))
    assert problem is not None and "the job has 2 GPUs" in problem[0]


def test_a_spec_that_names_fewer_devices_means_it(torch, driver):
    driver(0, 1)
    launch = Launch(nproc_per_node=1, env={"CUDA_VISIBLE_DEVICES": "1"})
    spec = Spec(slurm=Slurm(gpus_per_node=2), launch=launch)
    assert node_check.problem(spec, {**os.environ, **launch.env}, torch()) is None


def test_a_node_with_fewer_gpus_than_the_others_records_how_many(run, monkeypatch, torch, driver):
    driver(0, 1)
    attempt = run_files.opened(run, nodes=["a", "b"])
    run_files.node(attempt, 1)
    package = ModuleSpec("torch", None, origin=str(torch()))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: package)
    environ = {"KIT_NODE": "a", "KIT_RUN_DIR": str(run.path), "KIT_ATTEMPT": "1"}
    with pytest.raises(FailedError, match="^a: .*CUDA's driver shows 1 GPU"):
        launch_command(Program.TORCHRUN, [], os.environ | environ, TWO)
    record = records.read(AgentRecord, attempt.agent(0))
    assert record is not None and (record.host, record.gpus) == ("a", 1)
    torch(CPU_BUILD)
    with pytest.raises(UserError, match="^a: .*is a CPU build"):
        launch_command(Program.TORCHRUN, [], os.environ | environ, TWO)


def test_where_no_agent_starts_torchrun_no_gpu_is_looked_for():
    assert launch_command(Program.TORCHRUN, ["x"], {}, TWO) == (["x"], {})
