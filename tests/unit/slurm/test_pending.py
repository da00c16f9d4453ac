"""Why a job waits: a line for each reason that squeue prints."""

import re
from pathlib import Path

import pytest

from slurm_job_kit.jobs.slurm.pending import (
    SharedLimits,
    Wait,
    exceeds_alone,
    explain,
    keys_of,
    wait_of,
)
from slurm_job_kit.jobs.slurm.refusals import HINTS
from slurm_job_kit.jobs.spec import Slurm
from tests.unit.slurm.own_words import each_slurm, words

UNKNOWN = 'Slurm gives the reason "'

# Of Slurm 22.05.8, 24.11.5 and 26.05.5, each with its wait and its keys; - for none.
# Source: slurm_protocol_defs.c, job_reason_string; job_state_reason.c
TABLE = [
    line.split("\t") for line in (Path(__file__).parent / "reasons.tsv").read_text().splitlines()
]


@each_slurm
def test_every_reason_of_a_slurm_here_has_a_line_and_a_row(library):
    functions = ("slurm_job_state_reason_string", "slurm_job_reason_string")  # 22.05 has the latter
    names = words(library, range(1000), *functions)
    names = {name for name in names if not re.fullmatch(r"\d+|Inva\w+Reason", name)}
    assert len(names) > 150
    assert [name for name in names if explain(name).startswith(UNKNOWN)] == []
    assert names - {row[0] for row in TABLE} == set()


def test_every_reason_of_the_oldest_and_the_newest_slurm_is_explained():
    assert len(TABLE) > 200
    assert [row[0] for row in TABLE if explain(row[0]).startswith(UNKNOWN)] == []


@pytest.mark.parametrize(("reason", "wait", "keys"), TABLE)
def test_a_reason_has_its_wait_and_its_keys(reason, wait, keys):
    named = keys_of(reason)
    assert (wait_of(reason).name, ",".join(named) or "-") == (wait, keys)
    # A spec has these keys, and a command shows what the site has for the first.
    of_slurm = {key for key in named if not key.startswith("sbatch_args.")}
    assert of_slurm <= vars(Slurm()).keys() and of_slurm <= HINTS.keys()


LIMITS = SharedLimits(("cpu=1,mem=4G",), ("cpu=100",), ("0",), ("01:00:00",))
JOB = "cpu=2,mem=3000M,node=1,gres/gpu:a100=2"


@pytest.mark.parametrize(
    ("reason", "exceeds"),
    [
        ("AssocGrpCpuLimit", True),
        ("QOSMaxCpuPerUserLimit", True),
        ("MaxCpuPerAccount", True),
        ("AssocGrpMemLimit", False),
        ("AssocGrpNodeLimit", False),  # no limit is set: it is of a parent, perhaps
        ("AssocGrpCPURunMinutesLimit", True),  # 2 CPUs x 120 minutes
        ("MaxCpuRunMinsPerUser", True),
        ("AssocGrpJobsLimit", True),
        ("AssocMaxJobsLimit", True),
        ("AssocGrpWallLimit", True),
        ("QOSMaxCpuPerJobLimit", False),  # no limit of several jobs
        ("Resources", False),
    ],
)
def test_a_job_that_alone_exceeds_a_limit_of_several_jobs_is_found(reason, exceeds):
    assert exceeds_alone(reason, JOB, 7200, LIMITS) is exceeds
    assert exceeds_alone(reason, JOB, 7200, SharedLimits(jobs=("3",))) is False


def test_gpus_of_any_type_count_for_a_limit_of_gres():
    for limit, exceeds in (("gres/gpu:a100=1", True), ("gres/gpu:a100=2", False)):
        assert exceeds_alone("QOSGrpGRES", JOB, 60, SharedLimits((limit,))) is exceeds


# Of the three kinds of names; also one that the other Slurm versions have.
@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("Priority", "jobs with a higher priority are before it"),
        (
            "QOSMaxGRESPerUser",
            "together with the running jobs of yours it would use more than its QOS allows: "
            "GPUs or other GRES",
        ),
        (
            "AssocGrpCPUMinutesLimit",
            "the jobs of your account have used up what your account allows: CPUs x minutes",
        ),
        (
            "QOSMaxWallDurationPerJobLimit",
            "it asks for more than its QOS allows for one job: time; it never starts as it is",
        ),
        ("AssocMaxJobsLimit", "as many jobs of yours run as your account allows"),
        (
            "MaxSubmitJobsPerAccount",
            "as many jobs of your account are queued or run as its QOS allows",
        ),
        ("QOSMinCpuNotSatisfied", "it asks for less than its QOS requires: CPUs"),
    ],
)
def test_a_reason_becomes_a_plain_line(reason, line):
    assert explain(reason) == explain(f"({reason})") == line


@pytest.mark.parametrize(
    ("reason", "detail"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "UnavailableNodes:n[1-2]"),
        ("ReqNodeNotAvail(Unavailable:n1)", "Unavailable:n1"),
        ("BurstBufferOperation: lua: no space", "lua: no space"),
        ("RaisedSignal:9(Killed)", "9(Killed)"),  # 26.05
    ],
)
def test_a_detail_is_kept(reason, detail):
    name = re.match(r"\w+", reason)
    assert name and explain(reason) == f"{explain(name[0])} ({detail})"


@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        ("Resources", Wait.WILL_END),
        ("Moon Phase", Wait.WILL_END),
        ("JobHeldUser", Wait.UNTIL_RELEASED),
        ("job_requeued_in_held_state", Wait.UNTIL_RELEASED),
        ("DependencyNeverSatisfied", Wait.NEVER_ENDS),
        ("(PartitionConfig, x)", Wait.NEVER_ENDS),
        ("QOSMaxCpuPerJobLimit", Wait.NEVER_ENDS),
        ("QOSMinCpuNotSatisfied", Wait.NEVER_ENDS),
        ("JobHeldAdmin", Wait.UNTIL_SITE_ACTS),
        ("AssocGrpCPUMinutesLimit", Wait.UNTIL_SITE_ACTS),
    ],
)
def test_some_waits_do_not_end_by_themselves(reason, wait):
    assert wait_of(reason) is wait


# A line has the text of squeue, the wait and the keys.
TEXTS = [
    ("launch failed requeued held", "UNTIL_RELEASED", ""),
    ("launch failure limit exceeded requeued held", "UNTIL_RELEASED", ""),
    ("user env retrieval failed requeued held", "UNTIL_RELEASED", ""),
    ("job requeued in held state", "UNTIL_RELEASED", ""),
    ("job requeued in special exit state", "UNTIL_RELEASED", ""),
    (
        "Nodes required for job are DOWN, DRAINED, REBOOTING or reserved for jobs in higher "
        "priority partitions",
        "WILL_END",
        "exclude,partition",
    ),
    ("ReqNodeNotAvail, Reserved for maintenance", "WILL_END", "exclude,partition"),
    ("Reservation night_1 is invalid", "NEVER_ENDS", "sbatch_args.reservation"),
    ("Reservation night_1 was deleted", "NEVER_ENDS", "sbatch_args.reservation"),
    (
        "uid 7 not in group permitted to use this partition (gpu). groups allowed: vip",
        "NEVER_ENDS",
        "partition",
    ),
    ("Required nodes do not fit topology", "WILL_END", "nodes,constraint"),
    ("No suitable topology unit found for segment", "WILL_END", "nodes,constraint"),
]


@pytest.mark.parametrize(("text", "wait", "keys"), TEXTS)
def test_a_text_in_place_of_a_name_is_known(text, wait, keys):
    for shown in (text, f"({text})", text.replace(" ", "_")):
        assert not explain(shown).startswith(UNKNOWN), shown
        assert (wait_of(shown).name, ",".join(keys_of(shown))) == (wait, keys)


@each_slurm
def test_every_text_about_the_topology_is_known(library):
    """Since 26.05 slurmctld shows the error of the topology plugin for a job that waits."""
    texts = words(library, range(1000, 10000), "slurm_strerror")
    about = {text for text in texts if "topology unit" in text or "fit topology" in text}
    assert [text for text in about if explain(text).startswith(UNKNOWN)] == []
