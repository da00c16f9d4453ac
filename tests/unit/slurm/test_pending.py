"""Why a job waits: a line for each reason that squeue prints."""

import ctypes
import re
from pathlib import Path

import pytest

from slurm_job_kit.jobs.slurm.pending import Wait, explain, wait_of

UNKNOWN = 'Slurm gives the reason "'


def names_of_the_installed_slurm():
    """The names of all reasons that the installed libslurmfull.so has."""
    found = sorted(Path("/usr").glob("lib*/**/slurm*/libslurmfull.so"))
    if not found:
        pytest.skip("no Slurm is installed: there is no libslurmfull.so below /usr/lib")
    name_of = ctypes.CDLL(str(found[0])).slurm_job_reason_string
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    names = [name_of(number).decode() for number in range(1000)]
    return {name for name in names if not name.isdigit()}  # a number is none of its enum


def test_every_reason_of_the_installed_slurm_has_a_line():
    names = names_of_the_installed_slurm()
    assert len(names) > 150
    assert [name for name in names if explain(name).startswith(UNKNOWN)] == []


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
    ],
)
def test_some_waits_do_not_end_by_themselves(reason, wait):
    assert wait_of(reason) is wait


@pytest.mark.parametrize("held", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_a_text_in_place_of_a_name_is_known(held):
    assert "scontrol release" in explain(held)


def test_an_unknown_reason_is_quoted_on_one_line():
    assert explain("Moon Phase,\n x") == 'Slurm gives the reason "Moon Phase, x"'
    assert explain("") == explain("None")
