"""A site is parsed from Slurm's output, and a spec is checked against it at submit."""

from dataclasses import replace

import pytest

from slurm_job_kit.jobs.problems import dotted
from slurm_job_kit.jobs.rundir import RunDir, read_json
from slurm_job_kit.jobs.slurm import site, site_warnings
from slurm_job_kit.jobs.slurm.site import Config, Partition, Site
from slurm_job_kit.jobs.spec import Slurm
from tests.core import run_files

# From a real Slurm 22.05, shortened.
CONFIG = """\
Configuration data as of 2026-11-21T12:15:14
KillWait                = 10 sec
PreemptMode             = {mode}
PreemptType             = preempt/{kind}
SLURM_VERSION           = 22.05.8

Cgroup Support Configuration:
AllowedKmemSpace        = (null)

Slurmctld(primary) at ctl is UP
"""
# Further lines, and how long a requeued job waits then.
PLAIN = {
    "mode": "REQUEUE",
    "kind": "partition_prio",
}
PARTITIONS = """\
PartitionName=batch
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   AllocNodes=ALL Default=YES QoS=N/A
   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=30 Hidden=NO
   MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=n[1-4]
   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO
   OverTimeLimit=NONE PreemptMode=REQUEUE
   State=UP TotalCPUs=16 TotalNodes=4 SelectTypeParameters=NONE
   JobDefaults=(null)
   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
   TRES=cpu=16,mem=250G,node=4,billing=16

PartitionName=short
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   AllocNodes=login1 Default=NO QoS=N/A
   DefaultTime=00:05:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   MaxNodes=1 MaxTime=00:10:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=n[1-2]
   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO
   OverTimeLimit=NONE PreemptMode=GANG,CANCEL
   State=DOWN TotalCPUs=8 TotalNodes=2 SelectTypeParameters=NONE
   JobDefaults=(null)
   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
   TRES=cpu=8,mem=125G,node=2,billing=8

"""
BATCH = Partition("batch", True, None, 30, "REQUEUE", 4)
SHORT = Partition("short", False, 600, 0, "CANCEL", 2)
USUAL = Config("22.05.8", "partition_prio", "REQUEUE", 10)
HOUR = Slurm(time="01:00:00")


def config(**settings):
    return site.parse_config(CONFIG.format_map(PLAIN | settings))


def found(requested=HOUR, stop_s=None, **partition):
    """The keys of the warnings at a partition like batch."""
    sites = [Site(USUAL, replace(BATCH, **partition))]
    problems = site_warnings.check(requested, sites, stop_s)
    assert not any(problem.is_error for problem in problems)
    return [dotted(problem.path) for problem in problems]


def test_the_configuration_is_read_from_slurms_output():
    assert config() == USUAL


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mode": "GANG,CANCEL"}, {"preempt_mode": "CANCEL"}),
        ({"mode": "WITHIN,CANCEL"}, {"preempt_mode": "CANCEL"}),
        ({"mode": "PRIORITY,CANCEL"}, {"preempt_mode": "CANCEL"}),  # since 25.05
        ({"mode": "PRIORITY"}, {"preempt_mode": "OFF"}),
        ({"mode": "OFF", "kind": "none"}, {"preempt_mode": "OFF", "preempt_type": "none"}),
    ],
)
def test_each_setting_of_the_configuration_is_parsed(settings, expected):
    assert config(**settings) == replace(USUAL, **expected)


@pytest.mark.parametrize("text", ["", "slurm_load_ctl_conf error: Unable to contact", "x = y"])
def test_output_without_a_configuration_is_none(text):
    assert site.parse_config(text) is None


def test_partitions_are_parsed():
    assert site.parse_partitions(PARTITIONS) == [BATCH, SHORT]
    assert site.parse_partitions("") == []


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
    assert site.parse_qos(text) == expected


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
    assert Site(replace(USUAL, preempt_type=kind), SHORT, qos).preempt_mode == mode


def test_a_usual_site_has_no_problems():
    assert found() == []


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
    assert [each.name for each in site.parse_partitions(text)] == ["p"]
    assert site.parse_qos(f"{banner}requeue|00:00:30\n{banner}") == ("REQUEUE", 30)


@pytest.mark.parametrize(
    ("restart", "hint"),
    [("auto", "; a successor job waits"), ("requeue", "write auto")],
)
def test_a_site_that_cancels_preempted_jobs_is_a_problem_with_a_hint(restart, hint):
    sites = [Site(USUAL, replace(BATCH, preempt_mode="CANCEL"))]
    (problem,) = site_warnings.check(replace(HOUR, restart=restart), sites)
    assert hint in problem.in_one_line
    assert "\n" not in problem.in_one_line


def test_the_last_stop_is_read_from_the_attempts(tmp_path):
    run = RunDir(tmp_path)
    assert site_warnings.last_stop_s(run) is None
    for attempt, stop_s in enumerate((13.5, 12.0, None)):
        run_files.recorded(run, attempt=attempt, stop_s=stop_s)
    assert site_warnings.last_stop_s(run) == 12.0


def test_an_unknown_site_is_not_recorded(tmp_path):
    run = RunDir(tmp_path)
    assert site_warnings.record_site(run, HOUR, []).cancels_preempted is False
    assert not run.site.exists()
    assert site_warnings.record_site(run, HOUR, [Site(USUAL, SHORT)]).cancels_preempted is True
    assert read_json(run.site)["cancels_preempted"] is True


@pytest.fixture
def scontrol(fake_slurm):
    """A fake scontrol that prints output of real ones; returns the clients."""
    fake_slurm.answer("scontrol", PARTITIONS)
    fake_slurm.answer("scontrol", CONFIG.format_map(PLAIN), when="*config")
    return fake_slurm


@pytest.mark.parametrize(
    ("partition", "expected"),
    [(None, [BATCH]), ("short", [SHORT]), ("short,batch", [BATCH, SHORT]), ("nowhere", [])],
)
def test_each_slurm_command_runs_once_and_the_jobs_partitions_are_returned(
    scontrol, partition, expected
):
    sites = site.query(replace(HOUR, partition=partition))
    assert sites == [Site(USUAL, each) for each in expected]
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
    config = CONFIG.format_map(PLAIN).replace("preempt/partition_prio", "preempt/qos")
    scontrol.answer("scontrol", config, when="*config")
    scontrol.install("sacctmgr", "")
    scontrol.answer("sacctmgr", users, when="*show user*")
    scontrol.answer("sacctmgr", "cancel|00:00:30\n", when=f"*name={expected} *")
    (one,) = site.query(replace(HOUR, **keys))
    assert (one.preempt_mode, one.grace_time_s) == ("CANCEL", 30)


def test_of_several_qos_each_may_be_the_jobs(scontrol):
    """Slurm takes a list since 24.11, and chooses one of it when the job starts."""
    config = CONFIG.format_map(PLAIN).replace("preempt/partition_prio", "preempt/qos")
    scontrol.answer("scontrol", config, when="*config")
    scontrol.install("sacctmgr", "")
    scontrol.answer("sacctmgr", "requeue|00:00:30\n", when="*name=safe *")
    scontrol.answer("sacctmgr", "cancel|00:00:00\n", when="*name=cheap *")
    sites = site.query(replace(HOUR, qos="safe,cheap"))
    assert [(each.preempt_mode, each.grace_time_s) for each in sites] == [
        ("REQUEUE", 30),
        ("CANCEL", 0),
    ]


def test_a_controller_that_does_not_answer_blocks_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert site.query(HOUR) == []
    assert site_warnings.check(HOUR, []) == []
