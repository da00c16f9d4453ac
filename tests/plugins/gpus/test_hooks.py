"""GPUs in a spec, and those of a step."""

import pytest

from slurm_job_kit.jobs.base.environment import Program
from slurm_job_kit.jobs.contract.spec import Slurm, Spec
from slurm_job_kit.jobs.plugins.gpus.hooks import launch_command, problems


@pytest.mark.parametrize(
    ("written", "number"), [("4", 4), ("a100:4", 4), ("3090:2", 2), ("1g.5gb:2", 2), ("0", 0)]
)
def test_a_number_of_gpus_may_have_a_type(written, number):
    slurm = Slurm(gpus_per_node=written)
    assert ([*problems(Spec(slurm=slurm))], slurm.num_gpus) == ([], number)


@pytest.mark.parametrize("written", ["a100", "gpu:2", "gpu:a100:2", "-1", "2x", "a:1,b:2", ""])
def test_other_spellings_are_no_number(refuse, written):
    errors = refuse(f'slurm: {{gpus_per_node: "{written}"}}')
    assert "slurm.gpus_per_node: " in errors and ("no number of GPUs" in errors or not written)


@pytest.mark.parametrize(
    ("asked", "gres", "expected"),
    [
        ({}, "", ["--gres=gpu:2"]),
        ({}, "   TresPerNode=gres:gpu:a100:2\n", []),
        ({"SLURM_GPUS_PER_NODE": "2"}, "", []),
        ({"SLURM_GPUS": "a100:4"}, "", []),
    ],
)
def test_a_step_asks_for_the_gpus_that_a_job_has_by_exclusive_alone(
    fake_slurm, asked, gres, expected
):
    """Slurm gives a step none of them that asks for none (measured: 22.05)."""
    fake_slurm.answer("scontrol", f"JobId=7\n   JobState=RUNNING Reason=None\n{gres}")
    of_job = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1"} | asked
    spec = Spec(slurm=Slurm(gpus_per_node=2))
    argv = ["srun", "bash"]
    assert launch_command(Program.SRUN, argv, of_job, spec)[0] == ["srun", *expected, "bash"]
    assert launch_command(Program.SRUN, argv, of_job, Spec())[0] == argv


GPUS = ("gpu", "gpu:2", "gpu:a100:2", "gres/gpu=2", "cpu=4,gres/gpu:8", "nvme:1, gpu:1")
MORE_GPUS = ("tmp:500G,gpu:1", "GPU:a:2", "gres:gpu:2", "shard:8", "mps:50")


@pytest.mark.parametrize("resources", (*GPUS, *MORE_GPUS))
@pytest.mark.parametrize("option", ["gres", "tres_per_task"])
def test_resources_with_gpus_are_refused_with_the_key_to_write(refuse, option, resources):
    errors = refuse(f'slurm: {{sbatch_args: {{{option}: "{resources}"}}}}')
    assert "asks for GPUs\n  hint: write slurm.gpus_per_node: 2 or a100:2" in errors


@pytest.mark.parametrize("resources", ["none", "", "license:4", "gpu_mem:10", "tmp:500G"])
def test_resources_without_gpus_are_passed_on(take, resources):
    text = f'slurm: {{sbatch_args: {{gres: "{resources}"}}}}'
    assert take(text).slurm.sbatch_args == {"gres": resources}
