"""A site is parsed from Slurm's output, and a spec is checked against it at submit."""

from dataclasses import replace

import pytest

from slurm_job_kit.jobs.problems import dotted
from slurm_job_kit.jobs.rundir import RunDir, read_json
from slurm_job_kit.jobs.slurm import client, site, site_warnings
from slurm_job_kit.jobs.slurm.site import Config, Partition, Site
from slurm_job_kit.jobs.spec import Slurm, advised_lead_s
from tests.unit import run_files

# From a real Slurm 22.05, shortened.
CONFIG = """\
Configuration data as of 2026-11-21T12:15:14
AccountingStorageType   = accounting_storage/none
AuthInfo                = socket=/run/munge/socket,cred_expire=5
JobRequeue              = {requeue}
JobSubmitPlugins        = {plugins}
KillWait                = 10 sec
OverTimeLimit           = {over}
PreemptMode             = {mode}
PreemptType             = preempt/{kind}
SLURM_VERSION           = 22.05.8
SlurmctldParameters     = {parameters}

Cgroup Support Configuration:
AllowedKmemSpace        = (null)

Slurmctld(primary) at ctl is UP
"""
# Further lines, and how long a requeued job waits then.
DELAYS = [
    ("AuthInfo = socket=/x,cred_expire=5", 6),
    ("AuthInfo = (null)", 121),
    ("", 121),
    ("AuthInfo = cred_expire=5\nSchedulerParameters = bf_interval=1,requeue_delay=30", 31),
    ("SchedulerParameters = requeue_delay=0", 1),
]
PLAIN = {
    "requeue": 1,
    "plugins": "(null)",
    "over": "0 min",
    "mode": "REQUEUE",
    "kind": "partition_prio",
    "parameters": "(null)",
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
BATCH = Partition("batch", True, "UP", None, None, 0, 30, "REQUEUE", "ALL", "", 4)
SHORT = Partition("short", False, "DOWN", 600, 1, 0, 0, "CANCEL", "login1", "", 2)
USUAL = Config(
    "22.05.8", "partition_prio", "REQUEUE", True, 10, "", False, False, False, requeue_delay_s=6
)
HOUR = Slurm(time="01:00:00")


def config(**settings):
    return site.parse_config(CONFIG.format_map(PLAIN | settings))


def found(requested=HOUR, stop_s=None, of=USUAL, **partition):
    """The problems at a partition like batch, each as `error` or `note` with the key."""
    sites = [Site(of, replace(BATCH, **partition))]
    problems = site_warnings.check(requested, sites, stop_s)
    return [("error " if r.is_error else "note ") + dotted(r.path) for r in problems]


def test_the_configuration_is_read_from_slurms_output():
    assert config() == USUAL


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"requeue": 0}, {"is_requeued": False}),
        ({"mode": "GANG,CANCEL"}, {"preempt_mode": "CANCEL"}),
        ({"mode": "WITHIN,CANCEL"}, {"preempt_mode": "CANCEL"}),
        ({"mode": "PRIORITY,CANCEL"}, {"preempt_mode": "CANCEL"}),  # since 25.05
        ({"mode": "PRIORITY"}, {"preempt_mode": "OFF"}),
        ({"mode": "OFF", "kind": "none"}, {"preempt_mode": "OFF", "preempt_type": "none"}),
        ({"over": "5 min"}, {"over_time_limit": "5 min"}),
        ({"over": "UNLIMITED"}, {"over_time_limit": "UNLIMITED"}),
        ({"parameters": "preempt_send_user_signal,x"}, {"sends_user_signal": True}),
        ({"plugins": "lua"}, {"chooses_partition": True}),
    ],
)
def test_each_setting_of_the_configuration_is_parsed(settings, expected):
    assert config(**settings) == replace(USUAL, **expected)


@pytest.mark.parametrize(
    ("printed", "has_accounting"),
    [("accounting_storage/none", False), ("(null)", False), ("accounting_storage/slurmdbd", True)],
)
def test_no_accounting_is_read_from_older_and_newer_slurms(printed, has_accounting):
    text = CONFIG.format_map(PLAIN).replace("accounting_storage/none", printed)
    config = site.parse_config(text)
    assert config is not None and config.has_accounting is has_accounting


def test_newer_slurms_have_parameters_of_preemption():
    text = CONFIG.format_map(PLAIN) + "PreemptParameters       = send_user_signal\n"
    assert site.parse_config(text) == replace(USUAL, sends_user_signal=True)


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
    ("partition", "requested", "expected"),
    [
        ({"max_time_s": 3599}, HOUR, ["error slurm.time"]),
        ({"max_time_s": 3600}, HOUR, []),
        ({"max_nodes": 1}, replace(HOUR, nodes=2), ["error slurm.nodes"]),
        ({"min_nodes": 2}, HOUR, ["error slurm.nodes"]),
        # They may lift the partition's limits.
        ({"max_time_s": 3599}, replace(HOUR, qos="long"), ["note slurm.time"]),
        ({"max_time_s": 3599, "qos": "long"}, HOUR, ["note slurm.time"]),
        ({"state": "DOWN"}, HOUR, ["note slurm.partition"]),
        ({"grace_time_s": 0}, HOUR, ["note slurm.partition"]),
        ({"grace_time_s": 0, "preempt_mode": "OFF"}, HOUR, []),
        ({"preempt_mode": "CANCEL"}, HOUR, ["note slurm.restart"]),
        ({"alloc_nodes": "login1"}, HOUR, []),
        ({"alloc_nodes": "login1"}, replace(HOUR, restart="successor"), ["note slurm.restart"]),
    ],
)
def test_a_partition_that_affects_the_run_is_a_problem(partition, requested, expected):
    assert found(requested, **partition) == expected


@pytest.mark.parametrize(
    ("stop_s", "expected"),
    [
        (39.0, []),
        (41.0, ["note slurm.partition"]),
        (121.0, ["note slurm.partition", "note slurm.signal_lead_s"]),
    ],
)
def test_a_measured_stop_is_compared_with_grace_time_and_lead_time(stop_s, expected):
    assert found(stop_s=stop_s) == expected


def test_submit_advises_the_lead_that_the_log_of_such_a_run_advises():
    (*_, problem) = site_warnings.check(HOUR, [Site(USUAL, BATCH)], 121.0)
    assert f"write {advised_lead_s(121.0)}" in problem.hint


def test_job_requeue_0_is_a_problem():
    assert found(of=replace(USUAL, is_requeued=False)) == ["note slurm.restart"]


def test_with_a_submit_plugin_a_limit_is_only_a_warning():
    assert found(of=replace(USUAL, chooses_partition=True), max_time_s=9) == ["note slurm.time"]


def test_lines_that_a_wrapper_prints_around_an_answer_are_skipped():
    banner = "** 3 nodes are down = wait **\n"
    text = f"{banner}PartitionName=p\n   MaxTime=INFINITE TotalNodes=2\n{banner}"
    assert [each.name for each in site.parse_partitions(text)] == ["p"]
    assert site.parse_qos(f"{banner}requeue|00:00:30\n{banner}") == ("REQUEUE", 30)


def test_of_several_partitions_one_that_works_is_enough():
    works, fails = Site(USUAL, BATCH), Site(USUAL, replace(BATCH, name="b", max_time_s=9))
    assert site_warnings.check(HOUR, [fails, works]) == []
    assert [r.is_error for r in site_warnings.check(HOUR, [fails, fails])] == [True]


@pytest.mark.parametrize(
    ("restart", "hint"),
    [("auto", "a successor job waits for its end"), ("requeue", "write auto")],
)
def test_a_site_that_cancels_preempted_jobs_is_a_problem_with_a_hint(restart, hint):
    sites = [Site(USUAL, replace(BATCH, preempt_mode="CANCEL"))]
    (problem,) = site_warnings.check(replace(HOUR, restart=restart), sites)
    assert hint in problem.in_one_line
    assert "\n" not in problem.in_one_line


def test_the_qos_is_named_where_it_decides_on_preemption():
    config = replace(USUAL, preempt_type="qos", kill_wait_s=10)
    site = Site(config, BATCH, ("CANCEL", 5), "scavenger")
    told = [problem.in_one_line for problem in site_warnings.check(HOUR, [site])]
    assert len(told) == 2 and all("QOS scavenger" in line for line in told), told


def test_the_slowest_stop_is_read_from_the_attempts(tmp_path):
    run = RunDir(tmp_path)
    assert site_warnings.slowest_stop_s(run) is None
    for attempt, stop_s in enumerate((3.5, 12.0, None)):
        run_files.recorded(run, attempt=attempt, stop_s=stop_s)
    assert site_warnings.slowest_stop_s(run) == 12.0


def test_an_unknown_site_is_not_recorded(tmp_path):
    run = RunDir(tmp_path)
    assert site_warnings.record_site(run, HOUR, []).cancels_preempted is False
    assert not run.site.exists()
    assert site_warnings.record_site(run, HOUR, [Site(USUAL, SHORT)]).cancels_preempted is True
    assert read_json(run.site)["sites"] == [Site(USUAL, SHORT).summary]


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
    assert (one.preempt_mode, one.grace_time_s, one.qos_name) == ("CANCEL", 30, expected)


def test_of_several_qos_each_may_be_the_jobs(scontrol):
    """Slurm takes a list since 24.11, and chooses one of it when the job starts."""
    config = CONFIG.format_map(PLAIN).replace("preempt/partition_prio", "preempt/qos")
    scontrol.answer("scontrol", config, when="*config")
    scontrol.install("sacctmgr", "")
    scontrol.answer("sacctmgr", "requeue|00:00:30\n", when="*name=safe *")
    scontrol.answer("sacctmgr", "cancel|00:00:00\n", when="*name=cheap *")
    sites = site.query(replace(HOUR, qos="safe,cheap"))
    assert [(each.qos_name, each.preempt_mode, each.grace_time_s) for each in sites] == [
        ("safe", "REQUEUE", 30),
        ("cheap", "CANCEL", 0),
    ]


OF_QOS = "cpu=2" + "|" * 10  # GrpTRES and ten more columns


@pytest.mark.parametrize(
    ("reason", "of_root", "of_partition", "exceeds"),
    [
        ("AssocGrpCpuLimit", "cpu=2", "", True),
        ("AssocGrpCpuLimit", "cpu=8", "", False),
        ("QOSGrpCpuLimit", "", OF_QOS, True),
        ("QOSGrpCpuLimit", "", "", False),
    ],
)
def test_limits_of_the_account_above_and_of_the_partitions_qos_count(
    scontrol, reason, of_root, of_partition, exceeds
):
    partition = PARTITIONS.replace("QoS=N/A", "QoS=part", 1)
    scontrol.answer("scontrol", partition, when="*partition*")
    scontrol.install("sacctmgr", "")
    scontrol.answer("sacctmgr", "|top||||||\n", when="*account=lab *")
    scontrol.answer("sacctmgr", f"|root|{of_root}|||||\n", when="*account=top *")
    scontrol.answer("sacctmgr", of_partition, when="*name=normal,part *")
    name = partition.split()[0].partition("=")[2]
    job = client.Job("PENDING", reason, 0, False, "01:00:00", account="lab", qos="normal",
                     partition=name, tres="cpu=4,mem=1G,node=1", uid=1)  # fmt: skip
    assert site.exceeds_alone(job) is exceeds


@pytest.mark.parametrize(
    ("partition", "nodes", "exceeds"),
    [
        ("batch", 4, False),  # some of them are down: a matter of time
        ("batch", 5, True),
        ("short", 2, True),
        ("short,batch", 2, False),
        ("gone", 2, False),
    ],
)
def test_a_job_exceeds_the_nodes_of_its_partitions_or_waits_for_those_that_are_down(
    scontrol, partition, nodes, exceeds
):
    scontrol.answer("scontrol", PARTITIONS, when="*partition*")
    job = client.Job("PENDING", "PartitionNodeLimit", 0, False, "01:00:00", partition=partition,
                     tres=f"cpu=4,mem=1G,node={nodes}", uid=1)  # fmt: skip
    assert site.exceeds_alone(job) is exceeds


def test_a_controller_that_does_not_answer_blocks_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert site.query(HOUR) == []
    assert site_warnings.check(HOUR, []) == []


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"mail-type": "END,FAIL"}, []),
        ({"mail_type": "all"}, ["note slurm.sbatch_args"]),
        ({"mail-type": "END,REQUEUE"}, ["note slurm.sbatch_args"]),
        ({"mail-type": "BEGIN"}, ["note slurm.sbatch_args"]),
    ],
)
def test_a_mail_at_each_restart_is_a_warning(arguments, problems):
    assert found(replace(HOUR, sbatch_args=arguments)) == problems


@pytest.mark.parametrize(("lines", "delay_s"), DELAYS)
def test_how_long_a_requeued_job_waits_is_read_from_the_site(lines, delay_s):
    config = site.parse_config(f"PreemptType = preempt/none\n{lines}\n")
    assert config is not None and config.requeue_delay_s == delay_s


@pytest.mark.parametrize(
    ("parameters", "is_refused"),
    [("(null)", True), ("enable_stepmgr,enable_expedited_requeue", False)],
)
def test_an_expedited_requeue_needs_a_site_that_has_it(tmp_path, parameters, is_refused):
    config = site.parse_config(CONFIG.format(**PLAIN | {"parameters": parameters}))
    assert config is not None
    here = Site(config, site.parse_partitions(PARTITIONS)[0])
    requested = Slurm(sbatch_args={"requeue": "expedite"})
    errors = [p for p in site_warnings.check(requested, [here]) if p.is_error]
    assert [dotted(p.path) for p in errors] == ["slurm.sbatch_args.requeue"] * is_refused
    run = RunDir(tmp_path)
    assert site_warnings.record_site(run, requested, [here]).requeue_delay_s == 0
    assert site_warnings.record_site(run, Slurm(), [here]).requeue_delay_s == 6


@pytest.mark.parametrize(
    ("version", "changes", "errors"),
    [
        ("20.02.7", {"spare_nodes": 1}, ["error slurm.spare_nodes"]),
        ("19.05.8", {"spare_nodes": 1}, ["error slurm.spare_nodes"]),
        ("20.02.7", {"nodes": "1-2"}, ["error slurm.nodes"]),
        ("20.02.7", {}, []),
        ("20.11.0", {"spare_nodes": 1}, []),
        ("26.05.5", {"spare_nodes": 1}, []),
        ("", {"spare_nodes": 1}, []),  # not known
    ],
)
def test_a_choice_of_nodes_needs_a_slurm_whose_srun_has_overlap(version, changes, errors):
    requested = replace(HOUR, **changes)
    assert found(requested, of=replace(USUAL, version=version)) == errors
