"""What preemption does is parsed from Slurm's output; a spec is checked against it at submit."""

from dataclasses import replace

import pytest

from slurm_job_kit.jobs.problems import dotted
from slurm_job_kit.jobs.rooms.sites import preemption, warnings
from slurm_job_kit.jobs.rooms.sites.preemption import Partition, Site
from slurm_job_kit.jobs.spec import Slurm

# From a real Slurm 22.05, shortened.
CONFIG = """\
Configuration data as of 2026-11-21T12:15:14
KillWait                = 10 sec
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
"""
PARTITIONS = """\
PartitionName=batch
   AllocNodes=ALL Default=YES QoS=N/A
   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=30 Hidden=NO
   MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   OverTimeLimit=NONE PreemptMode=REQUEUE
   State=UP TotalCPUs=16 TotalNodes=4 SelectTypeParameters=NONE

PartitionName=short
   AllocNodes=login1 Default=NO QoS=N/A
   DefaultTime=00:05:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   MaxNodes=1 MaxTime=00:10:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   OverTimeLimit=NONE PreemptMode=GANG,CANCEL
   State=DOWN TotalCPUs=8 TotalNodes=2 SelectTypeParameters=NONE

"""
BATCH = Partition("batch", True, None, 30, "REQUEUE", 4)
SHORT = Partition("short", False, 600, 0, "CANCEL", 2)
USUAL = {"KillWait": "10 sec", "PreemptMode": "REQUEUE", "PreemptType": "preempt/partition_prio"}
HOUR = Slurm(time="01:00:00")


def found(requested=HOUR, stop_s=None, **partition):
    """The keys of the warnings at a partition like batch."""
    sites = [Site(USUAL, replace(BATCH, **partition))]
    problems = warnings.check(requested, sites, stop_s)
    assert not any(problem.is_error for problem in problems)
    return [dotted(problem.path) for problem in problems]


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("CANCEL", "CANCEL"),
        ("GANG,CANCEL", "CANCEL"),
        ("WITHIN,CANCEL", "CANCEL"),
        ("PRIORITY,CANCEL", "CANCEL"),  # since 25.05
        ("PRIORITY", "OFF"),
        ("OFF", "OFF"),
    ],
)
def test_the_mode_stands_behind_slurms_flags(text, mode):
    assert preemption.mode_of(text) == mode


def test_partitions_are_parsed():
    assert preemption.parse_partitions(PARTITIONS) == [BATCH, SHORT]
    assert preemption.parse_partitions("") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cancel|00:02:00\n", ("CANCEL", 120)),
        ("within,cancel|00:02:00\n", ("CANCEL", 120)),
        ("cluster|00:00:30\n", (None, 30)),
        ("", None),
    ],
)
def test_a_qos_has_a_mode_of_its_own_or_the_clusters(text, expected):
    assert preemption.parse_qos(text) == expected


@pytest.mark.parametrize(
    ("kind", "qos", "mode"),
    [
        ("partition_prio", None, "CANCEL"),
        ("qos", None, "REQUEUE"),
        ("qos", ("OFF", 0), "OFF"),
        ("qos", (None, 30), "REQUEUE"),
        ("none", None, "OFF"),
    ],
)
def test_preempt_type_decides_which_preempt_mode_counts(kind, qos, mode):
    of_kind = USUAL | {"PreemptType": f"preempt/{kind}"}
    assert Site(of_kind, SHORT, qos).preempt_mode == mode


@pytest.mark.parametrize(
    ("partition", "stop_s", "expected"),
    [
        ({"max_time_s": 3599}, None, ["slurm.time"]),
        ({"max_time_s": 3600}, None, []),
        ({"grace_time_s": 0}, None, []),
        ({"grace_time_s": 0}, 11.0, ["slurm.partition"]),
        ({}, 39.0, []),
        ({}, 41.0, ["slurm.partition"]),
        ({"preempt_mode": "OFF"}, 41.0, []),
        ({"preempt_mode": "CANCEL"}, None, ["slurm.restart"]),
    ],
)
def test_a_partition_that_affects_the_run_is_a_warning(partition, stop_s, expected):
    assert found(stop_s=stop_s, **partition) == expected


def test_lines_that_a_wrapper_prints_around_an_answer_are_skipped():
    banner = "** 3 nodes are down = wait **\n"
    text = f"{banner}PartitionName=p\n   MaxTime=INFINITE TotalNodes=2\n{banner}"
    assert [each.name for each in preemption.parse_partitions(text)] == ["p"]
    assert preemption.parse_qos(f"{banner}requeue|00:00:30\n{banner}") == ("REQUEUE", 30)


@pytest.mark.parametrize(
    ("restart", "hint"), [("auto", "; a successor job waits"), ("requeue", "write auto")]
)
def test_a_site_that_cancels_preempted_jobs_is_a_problem_with_a_hint(restart, hint):
    sites = [Site(USUAL, replace(BATCH, preempt_mode="CANCEL"))]
    (problem,) = warnings.check(replace(HOUR, restart=restart), sites)
    assert hint in problem.in_one_line
    assert "\n" not in problem.in_one_line


@pytest.fixture
def scontrol(fake_slurm):
    """A fake scontrol that prints output of real ones; returns the clients."""
    fake_slurm.answer("scontrol", PARTITIONS)
    fake_slurm.answer("scontrol", CONFIG, when="*config")
    return fake_slurm


@pytest.mark.parametrize(
    ("partition", "expected"),
    [(None, [BATCH]), ("short", [SHORT]), ("short,batch", [BATCH, SHORT]), ("nowhere", [])],
)
def test_each_slurm_command_runs_once_and_the_jobs_partitions_are_returned(
    scontrol, partition, expected
):
    sites = preemption.query(replace(HOUR, partition=partition))
    assert [each.partition for each in sites] == expected
    assert len(scontrol.calls) == 2


@pytest.mark.parametrize(
    ("keys", "users", "expected"),
    [
        ({"qos": "gone"}, "", "gone"),
        ({"qos": "Gone"}, "", "gone"),
        ({}, "lab|lab|scavenger\nlab|vip|high\n", "scavenger"),
        ({"account": "vip"}, "lab|lab|scavenger\nlab|vip|high\n", "high"),
        ({"account": "VIP"}, "lab|lab|scavenger\nlab|vip|high\n", "high"),
        ({}, "lab|lab|\n", "normal"),
        ({}, "", "normal"),
    ],
)
def test_where_a_qos_decides_it_is_that_of_the_job_or_the_users_default(
    scontrol, keys, users, expected
):
    config = CONFIG.replace("preempt/partition_prio", "preempt/qos")
    scontrol.answer("scontrol", config, when="*config")
    scontrol.install("sacctmgr", "")
    scontrol.answer("sacctmgr", users, when="*show user*")
    scontrol.answer("sacctmgr", "cancel|00:00:30\n", when=f"*name={expected} *")
    (one,) = preemption.query(replace(HOUR, **keys))
    assert (one.preempt_mode, one.preemption_s) == ("CANCEL", 30 + 10)


def test_of_several_qos_each_may_be_the_jobs(scontrol):
    """Slurm takes a list since 24.11, and chooses one of it when the job starts."""
    config = CONFIG.replace("preempt/partition_prio", "preempt/qos")
    scontrol.answer("scontrol", config, when="*config")
    scontrol.install("sacctmgr", "")
    scontrol.answer("sacctmgr", "requeue|00:00:30\n", when="*name=safe *")
    scontrol.answer("sacctmgr", "cancel|00:00:00\n", when="*name=cheap *")
    sites = preemption.query(replace(HOUR, qos="safe,cheap"))
    found = [(each.preempt_mode, each.preemption_s) for each in sites]
    assert found == [("REQUEUE", 30 + 10), ("CANCEL", 10)]
