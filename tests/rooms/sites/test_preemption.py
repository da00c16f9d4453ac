"""What preemption does is parsed from Slurm's output; a spec is checked against it at submit."""

import pytest

from slurm_job_kit.jobs.rooms.sites import preemption, warnings
from slurm_job_kit.jobs.rooms.sites.preemption import Partition, Preemption, Site
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Slurm

# From a real Slurm 22.05, shortened.
CONFIG = """\
Configuration data as of 2026-11-21T12:15:14
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
BATCH = Partition("batch", True, "REQUEUE", 4)
SHORT = Partition("short", False, "CANCEL", 2)
USUAL = {"PreemptMode": "REQUEUE", "PreemptType": "preempt/partition_prio"}


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cheap|cancel\n", "CANCEL"),
        ("cheap|within,cancel\n", "CANCEL"),
        ("cheap|cluster\n", None),
        ("", None),
    ],
)
def test_a_qos_has_a_mode_of_its_own_or_the_clusters(text, expected):
    assert preemption.parse_qos(text) == expected


@pytest.mark.parametrize(
    ("kind", "qos_mode", "mode"),
    [
        ("partition_prio", None, "CANCEL"),
        ("qos", None, "REQUEUE"),
        ("qos", "OFF", "OFF"),
        ("none", None, "OFF"),
    ],
)
def test_preempt_type_decides_which_preempt_mode_counts(kind, qos_mode, mode):
    of_kind = USUAL | {"PreemptType": f"preempt/{kind}"}
    assert Site(of_kind, SHORT, qos_mode).preempt_mode == mode


def test_lines_that_a_wrapper_prints_around_an_answer_are_skipped():
    banner = "** 3 nodes are down = wait **\n"
    text = f"{banner}PartitionName=p\n   MaxTime=INFINITE TotalNodes=2\n{banner}"
    assert [each.name for each in preemption.parse_partitions(text)] == ["p"]
    assert preemption.parse_qos(f"{banner}low|requeue\n{banner}") == "REQUEUE"


@pytest.mark.parametrize(
    ("restart", "hint"),
    [("auto", "; a successor job waits"), ("requeue", "write auto"), ("successor", None)],
)
def test_a_site_that_cancels_preempted_jobs_is_a_warning_with_a_hint(restart, hint):
    sites = [Site(USUAL, BATCH), Site(USUAL, SHORT)]
    lines = [each.in_one_line for each in warnings.check(Slurm(restart=restart), sites)]
    assert len(lines) == (hint is not None)
    assert all("partition short cancels" in line and str(hint) in line for line in lines)


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
    sites = preemption.query(Slurm(partition=partition))
    assert [each.partition for each in sites] == expected
    assert len(scontrol.calls) == 2


def test_each_qos_of_a_list_may_be_the_jobs_and_without_one_only_the_job_knows(scontrol, tmp_path):
    """Slurm takes a list since 24.11, and chooses one of it when the job starts."""
    config = CONFIG.replace("preempt/partition_prio", "preempt/qos")
    scontrol.answer("scontrol", config, when="*config")
    scontrol.install("sacctmgr", "")
    scontrol.answer("sacctmgr", "safe|requeue\n", when="*name=safe *")
    scontrol.answer("sacctmgr", "cheap|cancel\n", when="*name=cheap *")
    sites = preemption.query(Slurm(qos="safe,Cheap"))
    assert [each.preempt_mode for each in sites] == ["REQUEUE", "CANCEL"]
    assert preemption.record(RunDir(tmp_path), preemption.query(Slurm())) is None
    assert preemption.record(RunDir(tmp_path), sites) == Preemption(True, "safe")
