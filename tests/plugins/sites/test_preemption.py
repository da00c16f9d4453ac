"""What preemption does is parsed from Slurm's output; a spec is checked against it at submit."""

import pytest

from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Slurm
from slurm_job_kit.jobs.plugins.sites import preemption
from slurm_job_kit.jobs.plugins.sites.preemption import Preemption, Site

# From a real Slurm 22.05, shortened.
CONFIG = """\
Configuration data as of 2026-11-21T12:15:14
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
"""
PARTITIONS = """\
PartitionName=batch
   AllocNodes=ALL Default=YES QoS=N/A
   OverTimeLimit=NONE PreemptMode=REQUEUE

PartitionName=short
   AllocNodes=login1 Default=NO QoS=N/A
   OverTimeLimit=NONE PreemptMode=GANG,PRIORITY,CANCEL
"""
BATCH = Site("partition batch", "REQUEUE")
SHORT = Site("partition short", "CANCEL")


BANNER = "** 3 nodes are down = wait **\n"  # of a wrapper


@pytest.fixture
def scontrol(fake_slurm):
    """A fake scontrol that prints output of real ones; returns the clients."""
    fake_slurm.answer("scontrol", f"{BANNER}{PARTITIONS}{BANNER}")
    fake_slurm.answer("scontrol", CONFIG, when="*config")
    return fake_slurm


@pytest.mark.parametrize(
    ("partition", "expected"),
    [(None, [BATCH]), ("short", [SHORT]), ("short,batch", [BATCH, SHORT]), ("nowhere", [])],
)
def test_each_slurm_command_runs_once_and_the_jobs_partitions_are_returned(
    scontrol, partition, expected
):
    assert preemption.query(Slurm(partition=partition)) == expected
    assert len(scontrol.calls) == 2


@pytest.fixture
def qos(scontrol):
    """The clients of a Slurm where QOS decide."""
    config = CONFIG.replace("preempt/partition_prio", "preempt/qos")
    scontrol.answer("scontrol", config, when="*config")
    scontrol.install("sacctmgr", "")
    return scontrol


@pytest.mark.parametrize(
    ("answer", "mode", "is_clusters"),
    [
        ("cheap|within,cancel\n", "CANCEL", False),
        (f"{BANNER}cheap|priority\n{BANNER}", "OFF", False),
        ("cheap|cluster\n", "REQUEUE", True),
        ("", "REQUEUE", True),
    ],
)
def test_a_qos_has_a_mode_of_its_own_or_the_clusters(qos, answer, mode, is_clusters):
    qos.answer("sacctmgr", answer)
    expected = Site("QOS cheap", mode, "cheap", is_clusters)
    assert preemption.query(Slurm(qos="Cheap", partition="short")) == [expected]


def test_a_slurm_that_preempts_nothing_cancels_nothing(scontrol, tmp_path):
    config = "PreemptMode = CANCEL\nPreemptType = preempt/none\n"
    scontrol.answer("scontrol", config, when="*config")
    sites = preemption.query(Slurm())
    assert preemption.record(RunDir(tmp_path), sites) == Preemption(cancels=False)


def test_each_qos_of_a_list_may_be_the_jobs_and_without_one_only_the_job_knows(qos, tmp_path):
    """Slurm takes a list since 24.11, and chooses one of it when the job starts."""
    qos.answer("sacctmgr", "safe|requeue\n", when="*name=safe *")
    qos.answer("sacctmgr", "cheap|cancel\n", when="*name=cheap *")
    sites = preemption.query(Slurm(qos="safe,Cheap"))
    assert [each.preempt_mode for each in sites] == ["REQUEUE", "CANCEL"]
    assert preemption.record(RunDir(tmp_path), preemption.query(Slurm())) is None
    assert preemption.record(RunDir(tmp_path), sites) == Preemption(True, "safe")
