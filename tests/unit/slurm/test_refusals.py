"""The keys that a message of sbatch is about. The messages are those of Slurm 22.05."""

import pytest

from slurm_job_kit.jobs.slurm import refusals
from slurm_job_kit.jobs.spec import Slurm

MEMORY = "sbatch: error: Memory specification can not be satisfied\n"
CONFIGURATION = "sbatch: error: Batch job submission failed: Requested node configuration is not"
CONFIGURATION += " available"
CPUS = "cpus_per_task"
ALL = Slurm(
    nodes=2,
    cpus_per_task=64,
    mem="900G",
    exclude="n1",
    gpus_per_node=2,
    constraint="a100",
    time="99-00:00:00",
)


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (MEMORY + CONFIGURATION, ["mem"]),
        ("sbatch: error: CPU count per node can not be satisfied\n" + CONFIGURATION, [CPUS]),
        (CONFIGURATION, ["nodes", "gpus_per_node", CPUS, "mem", "constraint", "exclude"]),
        ("sbatch: error: Invalid generic resource (gres) specification", ["gpus_per_node"]),
        ("sbatch: error: Invalid node name specified", ["exclude"]),
        ("sbatch: error: Invalid --mem specification", ["mem"]),
        ("sbatch: error: Invalid --mem-bind specification", []),
        ("sbatch: error: Invalid feature specification", ["constraint"]),
        ("Requested time limit is invalid (missing or exceeds some limit)", ["time"]),
        ("Invalid account or account/partition combination specified", []),
    ],
)
def test_a_message_names_the_keys_that_can_cause_it(message, keys):
    assert [problem.path[1] for problem in refusals.problems(message, ALL)] == keys


def test_keys_with_their_default_value_are_no_cause():
    assert [each.path[1] for each in refusals.problems(CONFIGURATION, Slurm(mem="9T"))] == ["mem"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("foo", "sbatch: unrecognized option '--foo=1'"),
        ("licenses", "sbatch: error: Batch job submission failed: Invalid license specification"),
        ("gres", "sbatch: error: Invalid generic resource (gres) specification"),
        ("nodelist", "sbatch: error: Batch job submission failed: Invalid node name specified"),
    ],
)
def test_an_option_of_sbatch_args_is_named(name, message):
    (problem,) = refusals.problems(message, Slurm(sbatch_args={name: "1", "batch": "a"}))
    assert problem.path == ("slurm", "sbatch_args", name)
