"""The bad nodes that the next start of a job leaves out, and the calls of Slurm for it."""

import time

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.attempt import execute
from slurm_job_kit.jobs.base.files import append_jsonl
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.records.queued import Submission
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Slurm, Spec
from slurm_job_kit.jobs.runs import fact_reader
from slurm_job_kit.jobs.slurm.job import Job
from tests.core import run_files
from tests.plugins.nodes.kit import kept

DAY_S = 24 * 3600
NODES = [f"n{index}" for index in range(1, 5)]


@pytest.fixture
def run(tmp_path, fake_slurm, monkeypatch):
    """`run(records, present, **slurm)`: the calls of Slurm of an update of the list.

    This Slurm has four nodes, and takes no job without n4.
    """
    fake_slurm.answer("scontrol", when="update*")
    fake_slurm.answer("sbatch")
    fake_slurm.answer("sbatch", status=1, when="*--exclude=*n4*")
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def renewed(attempts, present="", **slurm):
        run_dir = RunDir(tmp_path / "run")
        run_dir.path.mkdir(exist_ok=True)
        run_dir.spec.write_text(Spec(slurm=Slurm(**{"nodes": 3, **slurm})).to_json())
        run_dir.attempts.unlink(missing_ok=True)
        for number, entry in enumerate(attempts):
            append_jsonl(run_dir.attempts, entry | {"attempt": number})
        earlier = len(fake_slurm.calls)
        facts, job = fact_reader.read(run_dir, 1), Job("PENDING", excluded=present)
        execute.exclude_nodes(run_dir, facts, "7", job)
        return fake_slurm.calls[earlier:]

    return renewed


def now(*bad, ago_s=0.0, **reason):
    return run_files.attempt(kept(*bad, **reason), nodes=NODES, stop=time.time() - ago_s)


def test_a_bad_node_is_left_out_after_slurm_was_asked(run, fake_slurm, capfd):
    asked = run([now("n2")])
    assert not [line for line in fake_slurm.env if line.startswith("SLURM_JOB_ID=")]
    assert asked[0].startswith("sbatch --test-only ") and "--exclude=n2 " in asked[0]
    assert asked[1:] == ["scontrol update JobId=7 ExcNodeList=n2"]
    message = "node n2 is left out of the next attempts for 24 h: preflight: wrong sums\n"
    assert capfd.readouterr().err == message


def test_what_the_user_left_out_stays_out(run):
    # The job needs two of four nodes.
    assert run([now("n2")], "n1", nodes=2, exclude="n1")[-1].endswith("ExcNodeList=n1,n2")


def test_without_bad_nodes_slurm_is_asked_nothing(run, capfd):
    assert run([now()]) == run([]) == run([now()], "n1", exclude="n1") == []
    # It is excluded already, and the last attempt failed for another reason.
    assert run([now("n2"), now()], "n2") == []
    assert run([now("n2", ago_s=-60)], suspect_hours=0) == []
    assert capfd.readouterr().err == ""


def test_what_a_user_left_out_of_a_job_stays_out_although_it_crashed_once(run):
    """By plain sbatch: the spec does not have it."""
    assert run([now("n2", is_left_out=False), now()], "n2") == []
    assert run([now("n2", kind="node_failure"), now()], "n2") == []


def test_a_node_comes_back_after_its_time(run):
    asked = run([now("n2", ago_s=DAY_S + 1), now()], "n2")
    assert asked == ["scontrol update JobId=7 ExcNodeList="]


def test_the_newest_bad_node_is_left_out_where_not_all_can_be(run, capfd):
    asked = run([now("n4"), now("n2")])
    assert asked[-1] == "scontrol update JobId=7 ExcNodeList=n2"
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("node n2 is left out")
    assert second.startswith("node n4 cannot be left out, too few other nodes")


def test_without_slurms_answer_nothing_is_left_out(run, fake_slurm, capfd):
    fake_slurm.answer("sbatch", error="Unable to contact slurm controller", status=1)
    assert not [call for call in run([now("n2")]) if "update" in call]
    assert "node n2 cannot be left out" in capfd.readouterr().err


def test_a_run_that_is_submitted_again_does_without_its_bad_nodes(run, tmp_path, capfd):
    run([now("n2")])
    run_dir = RunDir(tmp_path / "run")
    spec = Spec(slurm=Slurm(nodes=2, exclude="n1"))
    attempts = read_attempts(run_dir)
    capfd.readouterr()
    assert [*hooks.exclude(run_dir, spec, Submission(), attempts, ["n1"])] == ["n1", "n2"]
    printed = "node n2 is left out of the next attempts for 24 h: preflight: wrong sums"
    assert printed in capfd.readouterr().err
    taken_back = Submission(nodes_taken_back=time.time() + 1)
    assert [*hooks.exclude(run_dir, spec, taken_back, attempts, ["n1"])] == ["n1"]
