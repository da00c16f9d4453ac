"""A node is lost in an attempt: srun ends, the job gives the node back, the next attempt begins."""

import time

import pytest

from slurm_job_kit.jobs.attempt.attempts import start_srun
from slurm_job_kit.jobs.contract.records import decode
from slurm_job_kit.jobs.contract.records.nodes import AttemptPlan
from slurm_job_kit.jobs.contract.spec import Slurm, Spec
from slurm_job_kit.jobs.plugins.nodes import choose_nodes, lost_nodes
from slurm_job_kit.jobs.runs import fact_reader
from slurm_job_kit.jobs.slurm import cluster
from tests.core import run_files


@pytest.fixture
def choose(run, fake_slurm, monkeypatch):
    """Returns what the plugin chooses for the next attempt of job 7, which has some nodes."""
    run.spec.write_text(Spec(slurm=Slurm(nodes=2, spare_nodes=1)).to_json())
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setenv("SLURMD_NODENAME", "a")

    def call(of_job, is_taken_back=True):
        fake_slurm.answer("scontrol", f"   JobState=RUNNING Reason=None\n   NodeList={of_job}\n")
        fake_slurm.answer("scontrol", status=int(not is_taken_back), when="update*NodeList=*")
        facts = fact_reader.read_newest(run)
        return choose_nodes.choose(run, facts, "7", ["a", "b", "c"])

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
    ("of_job", "silent", "is_taken_back", "is_asked"),
    [
        ("a,b,c", "b", True, True),
        ("a,b,c", "b", False, True),  # the attempt begins all the same
        ("a,c", "b", True, False),  # a process that was killed since has done it
        ("a,b,c", "", True, False),  # another start, in which the node answers again
    ],
)
def test_a_lost_node_is_given_back_before_the_next_attempt(
    run, choose, fake_slurm, monkeypatch, capfd, of_job, silent, is_taken_back, is_asked
):
    """Else Slurm would end the job later."""
    monkeypatch.setattr(cluster, "is_answering", lambda host, *_: host != silent)
    run_files.opened(run)
    lost = {"unreachable_nodes": ["b"]}
    run_files.recorded(run, lost, cause="node", decision="retry")
    chosen = choose(of_job, is_taken_back)
    assert chosen.nodes == (("a", "c") if silent else ("a", "b"))
    assert ("scontrol update JobId=7 NodeList=a,c" in fake_slurm.calls) == is_asked
    assert ("could not release b" in capfd.readouterr().err) is not is_taken_back


def test_an_attempt_starts_on_its_nodes_alone(run, choose, fake_slurm, monkeypatch):
    monkeypatch.setattr(cluster, "is_answering", lambda host, *_: host != "b")
    fake_slurm.answer("srun")
    chosen = choose("a,b,c")
    plan = decode(AttemptPlan, run_files.plan(nodes=[*chosen.nodes]), "here")
    start_srun(run, plan, ["srun", "--nodes=3"], chosen.srun_args).wait(60)
    (call,) = [call for call in fake_slurm.calls if "agent.sh" in call]
    assert " --nodes=2 --ntasks=2 --nodelist=a,c --overlap --no-kill " in call
