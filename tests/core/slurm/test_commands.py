"""Slurm's commands as fakes on PATH: requests, parsed answers, and answers that fail."""

import socket
import subprocess
import time
from pathlib import Path

import pytest

from slurm_job_kit.jobs.contract.records.queued import RecordedJob, RequeueAnswer
from slurm_job_kit.jobs.slurm import ask, cluster, job_list, sbatch
from slurm_job_kit.jobs.slurm.job import (
    Job,
    end_time,
    field_of,
    job_id_from,
    parse_job,
    request_requeue,
    set_excluded,
)

# From a real Slurm 22.05, shortened.
SHOWN = """\
JobId=12 JobName={name}
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:41 TimeLimit=00:30:00 TimeMin=N/A
   SubmitTime=2026-11-20T11:00:00 EligibleTime=2026-11-20T11:00:00
   PreemptEligibleTime=2026-11-20T11:00:00 PreemptTime=None
   Comment={name}
"""


@pytest.fixture
def slurm(fake_slurm, monkeypatch):
    """Slurm's clients; on PATH are only those that a test gives an answer to."""
    fake_slurm.remove()
    monkeypatch.setenv("PATH", str(fake_slurm.bin))
    return fake_slurm


@pytest.mark.parametrize(
    "name",
    [
        "train",
        "x JobState=CANCELLED Reason=None",
        "x Requeue=1 Restarts=99 PreemptTime=2026-01-01T00:00:00",
        "x ExpeditedRequeue=Yes",
        "%s 'a' \"b\" $(id) TimeLimit=1",
        "JobId=13",
    ],
)
def test_a_jobs_name_cannot_replace_another_key(name):
    text = SHOWN.format(name=name)
    assert parse_job(text) == Job("RUNNING", "None", 2, uid=1000, text=text)
    assert field_of(text, r"RunTime=\S+ TimeLimit=(\S+)") == "00:30:00"


@pytest.mark.parametrize("text", ["", "No jobs in the system\n", "JobState=RUNNING Reason=None"])
def test_output_without_a_job_is_none(text):
    assert parse_job(text) is None


@pytest.mark.parametrize(
    ("variables", "job_id"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"}, "12_0"),
    ],
)
def test_an_array_task_is_named_by_its_array_and_number(variables, job_id):
    assert job_id_from(variables) == job_id


# Of slurm_errno.c, 22.05 to 26.05.
@pytest.mark.parametrize(
    ("text", "is_answered"),
    [
        ("Unable to contact slurm controller (connect failure)", False),
        ("Socket timed out on send/recv operation", False),
        ("Protocol authentication error", False),  # of munge
        ("Invalid job id specified", True),
        ("Access/permission denied", True),
    ],
)
def test_an_error_of_the_connection_is_no_answer(text, is_answered):
    answer = subprocess.CompletedProcess(["scontrol"], 1, "", f"slurm_load_jobs error: {text}\n")
    assert ask.is_answered(answer) is is_answered


def test_a_command_that_hangs_returns_none(monkeypatch):
    monkeypatch.setattr(ask, "CALL_TIMEOUT_S", 0.1)
    assert ask.call(["sleep", "60"]) is None


@pytest.mark.parametrize(
    ("answer", "is_alive"),
    [
        (None, None),  # no scontrol
        ({"error": "slurm_load_jobs error: Invalid job id specified\n", "status": 1}, False),
        ({"output": "Job 5572597_4 not found\n", "status": 1}, False),  # a task of an array
        ({"output": "slow down\n"}, None),
    ],
)
def test_a_job_that_slurm_does_not_have_is_not_alive(slurm, answer, is_alive):
    if answer:
        slurm.answer("scontrol", **answer)
    assert job_list.life_of(RecordedJob("5572597_4")).is_alive is is_alive


@pytest.mark.parametrize(
    ("answer", "job_id", "problem"),
    [
        ({"output": "Submitted batch job 12 on cluster c\n"}, "12", None),
        ({"error": "no such account\n", "status": 1}, None, "no such account"),
        # A lost answer queues no second job.
        ({"error": "Socket timed out on send/recv\n", "status": 1}, None, "Socket timed out"),
    ],
)
def test_a_submission_gives_the_job_id_or_what_sbatch_printed(slurm, answer, job_id, problem):
    slurm.answer("sbatch", **answer)
    found, printed = sbatch.submit(["sbatch", "--hold", "x"], {"PATH": str(slurm.bin)})
    assert found == job_id and (problem is None or problem in printed)
    assert slurm.calls == ["sbatch --hold x"]
    assert sbatch.submit(["sbatch", "x"], {"PATH": "/nowhere"})[0] is None


def test_excluded_nodes_are_replaced_and_an_error_is_returned(slurm):
    slurm.answer("scontrol")
    assert set_excluded("12", ["n1", "n2"]) == ""
    assert slurm.calls == ["scontrol update JobId=12 ExcNodeList=n1,n2"]
    slurm.answer("scontrol", error="Access denied\n", status=1)
    assert set_excluded("12", []) == "Access denied"
    slurm.remove("scontrol")
    assert "does not answer" in set_excluded("12", [])


def test_a_requeue_without_an_answer_returns_no_answer(slurm):
    assert request_requeue("12").answer is RequeueAnswer.NO_ANSWER
    error = "slurm_load_jobs error: Invalid job id specified"  # slurmctld has lost the job
    slurm.answer("scontrol", error=error, status=1)
    requeued = request_requeue("12")
    assert requeued.answer is RequeueAnswer.NO_ANSWER
    assert "job 12" in requeued.problem and error in requeued.problem


# A fake, because a real controller cannot be down for exactly two calls.
AWAY_TWICE = """
if [ $(wc -l <"$FAKE_SLURM/calls") -le 2 ]; then
    echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
fi
echo "   JobState=PENDING Reason=BeginTime Dependency=(null)"
"""


def test_a_call_is_repeated_while_slurmctld_does_not_answer(slurm, monkeypatch):
    slurm.install("scontrol", AWAY_TWICE)
    monkeypatch.setattr(ask, "MAX_PAUSE_S", 0.01)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    requeued = request_requeue("12")
    assert requeued.job and requeued.job.state == "PENDING"
    assert requeued.answer is RequeueAnswer.ACCEPTED
    asked = ["requeue Incomplete 12", "show job 12", "show job 12"]
    assert slurm.calls == [f"scontrol {words}" for words in asked]


NODES = """\
NodeName=a1 Arch=x86_64 CoresPerSocket=1
   NodeAddr=10.91.0.11 NodeHostName=vm-1 Version=22.05.8
   BootTime=1764084040 SlurmdStartTime=1764096328

NodeName=a2 CoresPerSocket=1
   NodeAddr=a2 NodeHostName=vm-2
   BootTime=None SlurmdStartTime=None
   Comment=NodeAddr=10.0.0.1

"""


def test_slurm_shows_addresses_and_other_values_of_nodes(slurm):
    slurm.answer("scontrol", NODES)
    assert cluster.node_addresses(["a1", "a2"]) == {"a1": "10.91.0.11", "a2": "a2"}
    assert cluster.of_nodes(["a1", "a2"], r"BootTime=(\d+) ") == {"a1": "1764084040"}
    slurm.answer("scontrol", error="slurm_load_node error: Unable to contact", status=1)
    assert cluster.node_addresses(["a1"]) == {}


def test_a_slurmd_answers_or_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert cluster.is_answering("127.0.0.1", port)
    assert not cluster.is_answering("127.0.0.1", port)
    assert cluster.is_answering("127.0.0.1", port, is_refusal_enough=True)
    assert cluster.is_answering("no-such-host.invalid", port)  # unknown: counts as answering


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the kernel has no IPv6")
def test_a_refusal_over_ipv6_alone_shows_that_the_node_is_up():
    """slurmd listens on IPv4 only unless the site has set EnableIPv6."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert cluster.is_answering("::1", port)
    assert cluster.is_answering("::1", port)


@pytest.mark.parametrize(
    ("variables", "paths", "reason"),
    [
        ({}, ["none"], None),
        ({"SLURM_CONF": "/etc/slurm.conf"}, ["none"], "SLURM_CONF is set"),
        ({"SLURM_CONF_SERVER": "ctl:6817"}, ["none"], "SLURM_CONF_SERVER is set"),
        ({"MODULEPATH": "/nowhere:{here}"}, ["none"], "{here} has a slurm module"),
        ({}, ["slurm"], "{here}/slurm exists"),
    ],
)
def test_a_slurm_that_is_not_loaded_is_detected(slurm, tmp_path, variables, paths, reason):
    slurm.answer("sbatch")
    (tmp_path / "slurm").mkdir()
    environ = {key: value.format(here=tmp_path) for key, value in variables.items()}
    found = cluster.unloaded_reason(
        {"PATH": "/nowhere"} | environ, [tmp_path / each for each in paths]
    )
    assert found == (reason and reason.format(here=tmp_path))
    # A host without munge and /etc/slurm: Slurm 23.11.
    assert Path("/run/slurm") in cluster.CLUSTER_PATHS


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [("1795252802\n", 0, 1795252802.0), ("N/A\n", 0, None), ("", 1, None)],
)
def test_slurm_22_05_prints_the_end_of_the_time_limit_in_squeue(slurm, text, status, expected):
    slurm.answer("squeue", text, status=status)
    assert end_time("7", {}) == expected
    assert "--jobs=7" in slurm.calls[0]
