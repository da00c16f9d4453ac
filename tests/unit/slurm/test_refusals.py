"""The keys that a message of sbatch is about. The messages are those of Slurm 22.05."""

from pathlib import Path

import pytest

from slurm_job_kit.jobs.slurm import refusals
from slurm_job_kit.jobs.spec import Slurm
from tests.unit.slurm.own_words import each_slurm, words

MEMORY = "sbatch: error: Memory specification can not be satisfied\n"
CONFIGURATION = "sbatch: error: Batch job submission failed: Requested node configuration is not"
CONFIGURATION += " available"
POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
    "limit, user's size and/or time limits)"
)
LUA = "sbatch: error: You must give a project code, see https://site.example/projects"
CPUS, GPUS = "cpus_per_task", "gpus_per_node"
MEM = ["mem", CPUS]
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
        (MEMORY + CONFIGURATION, ["mem", CPUS]),
        ("sbatch: error: CPU count per node can not be satisfied\n" + CONFIGURATION, [CPUS]),
        (CONFIGURATION, ["nodes", "gpus_per_node", CPUS, "mem", "constraint", "exclude"]),
        ("sbatch: error: Invalid generic resource (gres) specification", ["gpus_per_node"]),
        ("sbatch: error: Invalid node name specified", ["exclude"]),
        ("sbatch: error: Invalid --mem specification", ["mem", CPUS]),
        ("sbatch: error: Invalid --mem-bind specification", []),
        ("sbatch: error: Invalid feature specification", ["constraint"]),
        # Of options in the environment, too, such as SBATCH_GRES; the first since 26.05.
        ("sbatch: fatal: --gpus-per-node and --gres=gpu are mutually exclusive.", [GPUS]),
        ("sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.", MEM),
        ("SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually ...", MEM),
        ("Requested time limit is invalid (missing or exceeds some limit)", ["time"]),
        ("Invalid account or account/partition combination specified", ["account", "partition"]),
        # As sbatch prints it: the limit's name on a line of its own.
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + POLICY, ["qos"]),
        ("sbatch: error: AssocGrpCpuLimit\n" + POLICY, [CPUS, "nodes"]),
        ("sbatch: error: QOSMaxWallDurationPerJobLimit\n" + POLICY, ["time"]),
        (LUA, []),  # of the site's own plugin
    ],
)
def test_a_message_names_the_keys_that_can_cause_it(message, keys):
    assert [problem.path[1] for problem in refusals.problems(message, ALL)] == keys


FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("site", "verdict", "keys"),
    [
        (
            "sbatch: --gpus-per-node is not set: the job gets no GPU",
            "Invalid account or account/partition combination specified",
            ["account", "partition"],
        ),
        (
            "sbatch: note: without --mem a job gets the memory required for 4 GiB a core",
            "Requested time limit is invalid (missing or exceeds some limit)",
            ["time"],
        ),
        (
            "sbatch: info: --constraint=a100 costs twice as much",
            "Invalid qos specification",
            ["qos"],
        ),
        (
            "sbatch: MaxJobsPerUser is 5 for GRES jobs",
            "Node count specification invalid",
            ["nodes"],
        ),
        ("sbatch: error: see --mem", "MaxJobCount limit reached", []),
        (MEMORY.strip(), "Requested node configuration is not available", ["mem", CPUS]),
        (LUA, "Unspecified error", []),
    ],
)
def test_slurms_verdict_counts_before_what_a_site_prints_around_it(site, verdict, keys):
    for message in (f"{site}\n{FAILED}{verdict}", f"{site}\nallocation failure: {verdict}\n{site}"):
        assert [problem.path[1] for problem in refusals.problems(message, ALL)] == keys


# Of Slurm 22.05.8, 24.11.5 and 26.05.5, each with its keys; - where only Slurm's words are shown.
# Source: slurm_errno.c
TABLE = [
    line.split("\t") for line in (Path(__file__).parent / "messages.tsv").read_text().splitlines()
]


def test_every_message_of_slurm_has_its_keys():
    assert len(TABLE) > 350
    found = [[",".join(refusals.keys_of(text)) or "-", text] for _, text in TABLE]
    assert found == TABLE


@each_slurm
def test_every_message_of_a_slurm_here_is_in_the_table(library):
    texts = words(library, range(1000, 10000), "slurm_strerror")
    texts = {text for text in texts if not text.startswith("Unknown error")}
    assert len(texts) > 200 and texts - {row[1] for row in TABLE} == set()


@pytest.mark.parametrize(
    ("requested", "keys"),
    [
        (Slurm(), ["mem"]),
        (Slurm(cpus_per_task=64), ["mem", CPUS]),
        (Slurm(mem="900G"), ["mem"]),
    ],
)
def test_memory_that_the_spec_does_not_set_is_the_sites_default_for_each_core(requested, keys):
    found = refusals.problems(MEMORY, requested)
    assert [problem.path[1] for problem in found] == keys
    assert "DefMemPerCPU" in found[0].hint


def test_keys_with_their_default_value_are_no_cause():
    assert [each.path[1] for each in refusals.problems(CONFIGURATION, Slurm(mem="9T"))] == ["mem"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("foo", "sbatch: unrecognized option '--foo=1'"),
        ("licenses", "sbatch: error: Batch job submission failed: Invalid license specification"),
        ("gres", "sbatch: error: Invalid generic resource (gres) specification"),
        ("nodelist", "sbatch: error: Batch job submission failed: Invalid node name specified"),
        ("gpu-bind", "--x and --gpu-bind are mutually exclusive"),
    ],
)
def test_an_option_of_sbatch_args_is_named(name, message):
    words = {"batch": "a", "exclusive": "user"}  # that stand in messages about other options
    (problem,) = refusals.problems(message, Slurm(sbatch_args={name: "1", **words}))
    assert problem.path == ("slurm", "sbatch_args", name)


def test_a_refused_configuration_may_be_due_to_each_option_that_chooses_resources():
    message = "Batch job submission failed: Requested node configuration is not available"
    asked = Slurm(sbatch_args={"gres": "gpu:h100:1", "comment": "x"})
    named = [problem.path[1:] for problem in refusals.problems(message, asked)]
    assert ("sbatch_args", "gres") in named and ("sbatch_args", "comment") not in named
