"""A node is lost in an attempt: srun ends, the job gives the node back, the next attempt begins."""

import time

import pytest

from slurm_job_kit.jobs.attempt import attempts
from slurm_job_kit.jobs.base.stop_signals import StopSignals
from slurm_job_kit.jobs.contract.records import decode
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.records.nodes import AttemptPlan
from slurm_job_kit.jobs.contract.spec import Slurm, Spec
from slurm_job_kit.jobs.plugins.nodes import choose_nodes, lost_nodes
from slurm_job_kit.jobs.runs import fact_reader, run_lock
from slurm_job_kit.jobs.slurm import cluster
from tests.core import run_files


@pytest.fixture
def choose(run, fake_slurm, monkeypatch):
    """Returns what the plugin chooses for the next attempt of job 7, which has some nodes."""
    run.spec.write_text(Spec(slurm=Slurm(nodes=2, spare_nodes=1)).to_json())
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setenv("SLURMD_NODENAME", "a")

    def call(of_job):
        fake_slurm.answer("scontrol", f"   JobState=RUNNING Reason=None\n   NodeList={of_job}\n")
        return choose_nodes.choose(run, fact_reader.read_newest(run), "7", ["a", "b", "c"])

    return call


@pytest.mark.parametrize(("silent", "is_lost"), [("b", True), ("ab", False), ("", False)])
def test_a_node_is_lost_that_is_silent_in_three_looks_where_the_run_can_go_on_without_it(
    run, choose, monkeypatch, silent, is_lost
):
    """The network may come back where more nodes are silent than the run can do without."""
    monkeypatch.setattr(lost_nodes, "LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr(cluster, "is_answering", lambda *_: True)
    chosen = choose("a,b,c")
    run_files.opened(run)
    assert [*chosen.lost()] == []
    monkeypatch.setattr(cluster, "is_answering", lambda host, *_: host not in silent)
    looks = [[*chosen.lost()] for _ in range(3)]
    assert looks == [[], [], ["b"] if is_lost else []]


@pytest.mark.parametrize("of_job", ["a,b,c", "a,b"])
def test_nodes_are_looked_at_every_few_seconds_where_one_can_be_lost(
    run, choose, monkeypatch, of_job
):
    asked: list[str] = []

    def is_answering(host, *_):
        asked.append(host)
        return True

    monkeypatch.setattr(cluster, "is_answering", is_answering)
    chosen, now = choose(of_job), time.monotonic()
    run_files.opened(run)
    asked.clear()
    chosen.lost()
    assert asked == []
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    chosen.lost()
    chosen.lost()
    assert sorted(asked) == (["a", "b"] if of_job == "a,b,c" else [])


@pytest.mark.parametrize(
    ("is_taken_back", "can_requeue", "decision"),
    [(True, True, "retry"), (False, True, "requeue"), (False, False, "successor")],
)
def test_a_lost_node_is_given_back_or_the_next_attempt_begins_elsewhere(
    run, choose, fake_slurm, monkeypatch, is_taken_back, can_requeue, decision
):
    """Else Slurm would end the job as soon as it marks the node DOWN."""
    monkeypatch.setattr(cluster, "is_answering", lambda host, *_: host != "b")
    job = f"Requeue={int(can_requeue)} Restarts=0\n   NodeList=a,b,c"
    fake_slurm.set_state("7", "RUNNING", job)
    fake_slurm.install("scontrol", 'echo PENDING >"$FAKE_SLURM/state.7"', when="requeue*")
    fake_slurm.answer("scontrol", status=int(not is_taken_back), when="update*NodeList=*")
    run_files.opened(run)
    run_files.node(run.attempt(1), 0, host="a", torchrun_exit=1, end=5.0)
    me = run_lock.this_process("7")
    run_lock.claim(run, me, 1)
    attempts.close_and_execute(run, me, 1, StopSignals(), 1)
    (end,) = read_attempts(run)
    assert "scontrol update JobId=7 NodeList=a,c" in fake_slurm.calls
    assert (end.decision, end.reason.partition(";")[0]) == (decision, "no answer from b")


def test_an_attempt_starts_on_its_nodes_alone(run, choose, fake_slurm, monkeypatch):
    monkeypatch.setattr(cluster, "is_answering", lambda host, *_: host != "b")
    fake_slurm.answer("srun")
    chosen = choose("a,b,c")
    plan = decode(AttemptPlan, run_files.plan(nodes=[*chosen.nodes]), "here")
    assert attempts.run_srun(run, ["srun", "--nodes=3"], StopSignals(), plan, chosen) == 0
    (call,) = [call for call in fake_slurm.calls if "agent.sh" in call]
    assert " --nodes=2 --ntasks=2 --nodelist=a,c --overlap --no-kill " in call
