"""The attempts of a run on some nodes of its job, from the reasons of the attempt before."""

import pytest

from slurm_job_kit.jobs.attempt import attempts
from slurm_job_kit.jobs.base.console import quantity
from slurm_job_kit.jobs.base.stop_signals import StopSignals
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.node import interfaces
from slurm_job_kit.jobs.plugins.nodes import choose_nodes
from slurm_job_kit.jobs.plugins.nodes.records import found_in
from slurm_job_kit.jobs.runs import run_lock
from slurm_job_kit.jobs.slurm import cluster
from tests.core import run_files
from tests.core.attempt.attempt_kit import open_attempt
from tests.plugins.nodes.kit import kept

TWO = Slurm(nodes=2, spare_nodes=2)
RANGE = Slurm(nodes="2-3")


@pytest.mark.parametrize(
    ("slurm", "of_job", "silent", "suspects", "kind", "nodes", "spares", "out"),
    [
        (TWO, "n1,n2,n3,n4", "n1", [], "", ["n2", "n3"], ["n4"], []),
        (TWO, "n1,n2,n3,n4", "", ["n1", "n3"], "bad_node", ["n2", "n4"], [], ["n1", "n3"]),
        (TWO, "n1,n2,n3,n4", "", ["n1"], "node_failure", ["n2", "n3"], ["n4"], ["n1"]),
        (TWO, "n2,n3,n4", "", [], "", ["n2", "n3"], ["n4"], []),  # n1 was given back
        # Too few others: some of them take part, and lost ones last.
        (TWO, "n1,n2,n3,n4", "n1", ["n2", "n3", "n4"], "bad_node", ["n2", "n3"], [], ["n4"]),
        (RANGE, "n1,n2,n3", "n2", ["n1"], "bad_node", ["n1", "n3"], [], []),
        (RANGE, "n1,n2,n3", "", [], "", ["n1", "n2", "n3"], [], []),
    ],
)
def test_an_attempt_takes_the_nodes_that_answer_and_are_not_suspected(
    run, fake_slurm, monkeypatch, capfd, slurm, of_job, silent, suspects, kind, nodes, spares, out
):
    monkeypatch.setattr(choose_nodes, "MORE_LOOKS_EVERY_S", 0.0)
    run.spec.write_text(Spec(slurm=slurm).to_json())
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", nodes[0])
    monkeypatch.setattr(interfaces, "is_own", lambda _: True)
    monkeypatch.setattr(cluster, "is_answering", lambda host, *_: host not in silent.split(","))
    fake_slurm.answer("scontrol", f"   JobState=RUNNING Reason=None\n   NodeList={of_job}\n")
    if suspects:
        run_files.recorded(run, kept(*suspects, kind=kind))
    at_start = ["n1", "n2", "n3", "n4"][: slurm.job_nodes]
    plan = open_attempt(run, run_lock.this_process("7"), at_start, "10.0.0.1")
    assert plan is not None and list(plan.nodes) == nodes
    (line,) = [text for text in capfd.readouterr().err.splitlines() if "rendezvous at" in text]
    count = f"; {quantity(len(spares), 'spare')} ({', '.join(spares)})" if spares else ""
    others = [f"; {node} is left out" for node in out]
    assert line.endswith(f"){count}{''.join(others)}")


def test_where_the_first_node_is_left_out_another_one_says_where_the_agents_meet(
    run, fake_slurm, monkeypatch, capfd
):
    run.spec.write_text(Spec(slurm=Slurm(nodes=2, spare_nodes=1)).to_json())
    run_files.recorded(run, kept("n1"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(cluster, "is_answering", lambda *_: True)
    fake_slurm.answer("scontrol", "   JobState=RUNNING Reason=None\n   NodeList=n1,n2,n3\n")
    printed = "*** Welcome ***\nthe agents meet at:\n"
    fake_slurm.answer("srun", f"{printed}10.0.0.2\naddress of n2\n15555\neth0 10.0.0.2\n")
    plan = open_attempt(run, run_lock.this_process("7"), ["n1", "n2", "n3"], "10.0.0.1")
    assert plan is not None
    assert (plan.nodes, plan.head.endpoint) == (("n2", "n3"), "10.0.0.2:15555")
    assert plan.head.interfaces == ("eth0 10.0.0.2",)
    (asked,) = [call for call in fake_slurm.calls if call.startswith("srun")]
    assert "--jobid=7 --nodelist=n2 " in asked
    assert asked.endswith(f".jobs.plugins.nodes.head {run.path} 2 n2 n3")
    run_lock.release(run, run_lock.this_process("7"))
    fake_slurm.answer("srun", error="srun: error: no route\n", status=1)
    monkeypatch.setattr(interfaces, "is_own", lambda _: True)
    plan = open_attempt(run, run_lock.this_process("7"), ["n1", "n2", "n3"], "10.0.0.1")
    assert plan is not None and (plan.nodes, plan.head.address) == (("n1", "n3"), "10.0.0.1")
    assert "n2 named no address" in capfd.readouterr().err


WITH_SPARE = Slurm(nodes=2, spare_nodes=1)


@pytest.mark.parametrize(
    ("slurm", "of_job", "is_left_out"),
    [(WITH_SPARE, "a,b,c", True), (WITH_SPARE, "a,b", False), (Slurm(nodes="1-2"), "a,b", True)],
)
def test_a_node_that_crashes_twice_is_left_out_where_the_run_has_enough_fit_nodes(
    run, fake_slurm, monkeypatch, slurm, of_job, is_left_out
):
    """Slurm would start no job without the node."""
    run.spec.write_text(Spec(slurm=slurm, launch=Launch(script="x.py")).to_json())
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr("time.sleep", lambda _: None)
    fake_slurm.refuse(1)
    fake_slurm.answer("scontrol", f"   JobState=RUNNING Reason=None\n   NodeList={of_job}\n")
    crash = kept("b", kind="unknown", is_left_out=False)
    run_files.recorded(run, crash, cause="crash", decision="retry")
    run_files.opened(run, 2)
    for rank, node in enumerate("ab"):
        run_files.node(run.attempt(2), rank, host=node, torchrun_exit=1, end=5.0)
    run_files.failed(run.attempt(2), 1, 4.0, host="b")
    run_lock.claim(run, run_lock.this_process("7"), 2)
    attempts.close_and_execute(run, run_lock.this_process("7"), 2, StopSignals(), 1)
    (reason,) = found_in(read_attempts(run)[-1].evidence).reasons
    assert (reason.node, reason.is_left_out) == ("b", is_left_out)
