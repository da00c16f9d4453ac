"""Slurm's lists of jobs, from fakes of squeue and sacct on PATH."""

import os
import time
from typing import Any

from slurm_job_kit.jobs.contract.records.queued import RecordedJob
from slurm_job_kit.jobs.slurm import job_list
from slurm_job_kit.jobs.slurm.job import Job
from tests.core.fake_slurm import squeue_line

SACCT = "12|CANCELLED by 0\n13|TIMEOUT\n"


def test_the_queue_comes_from_one_query(fake_slurm):
    lines = squeue_line("12", "RUNNING", "1795507000|1-00:10:00|2|n[1-2]|None")
    lines += squeue_line("13_2", "PENDING", "N/A|UNLIMITED|1||ReqNodeNotAvail, a|b")
    fake_slurm.answer("squeue", lines)
    jobs, me = job_list.queue([7, 5, 7]), os.getuid()
    started: dict[str, Any] = {"start": 1795507000.0, "left_s": 87000, "num_nodes": 2}
    assert jobs == {
        "12": Job("RUNNING", uid=me, nodes="n[1-2]", **started),
        "13_2": Job("PENDING", "ReqNodeNotAvail, a|b", uid=me, num_nodes=1),
    }
    (call,) = fake_slurm.calls
    assert f"--user={','.join(map(str, sorted({5, 7, me})))}" in call
    assert "--array" in call and "--states=all" in call


def test_a_refused_query_is_no_empty_queue(fake_slurm, monkeypatch):
    fake_slurm.answer("squeue")
    assert job_list.queue() == {}
    fake_slurm.answer("squeue", status=1)
    assert job_list.queue() is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert job_list.queue() is None


def test_a_job_of_a_cluster_has_not_ended_where_the_name_of_this_one_is_unknown(fake_slurm):
    fake_slurm.answer("squeue")
    fake_slurm.answer("scontrol", status=1)
    (life,) = job_list.ask([RecordedJob("12", os.getuid(), "far")]).values()
    assert life.is_alive is None and "cluster far" in life.hint


def test_past_states_come_from_sacct_alone(fake_slurm):
    fake_slurm.answer("sacct", SACCT)
    assert job_list.past_states(["12", "13"]) == {"12": "CANCELLED", "13": "TIMEOUT"}
    fake_slurm.answer("sacct", SACCT, status=1)
    assert job_list.past_states(["12"]) == {}


# The accounting learns at the third question that the job has ended.
LATE = """
if [ $(wc -l <"$FAKE_SLURM/calls") -le 2 ]; then
    echo "12|REQUEUED"
else
    echo "12|CANCELLED by 0"
fi
"""


def test_the_end_of_a_job_is_awaited_while_the_accounting_has_an_earlier_start(
    fake_slurm, monkeypatch
):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    fake_slurm.install("sacct", LATE)
    assert job_list.end_state("12") == "CANCELLED"
    fake_slurm.answer("sacct", "12|REQUEUED\n")
    assert job_list.end_state("12", delay_s=0.0) is None
    fake_slurm.remove("sacct")
    assert job_list.end_state("12") is None
