"""The successor job: when and how it is queued, and when it must not continue the run."""

import os
from dataclasses import replace

import pytest

from slurm_job_kit.jobs.attempt import execute
from slurm_job_kit.jobs.attempt.decision import Action, Cause, Decision
from slurm_job_kit.jobs.base.errors import FailedError
from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.plugins.sites import hooks, predecessor, successor
from slurm_job_kit.jobs.runs import fact_reader, lookup, run_lock
from slurm_job_kit.jobs.slurm.sbatch import SCRIPT
from tests.core import run_files
from tests.core.attempt.attempt_kit import open_attempt
from tests.core.run_files import write_json

SHOWN = """\
JobId=7
   JobState={} Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1
"""
GONE = "slurm_load_jobs error: Invalid job id specified\n"
SPEC = Spec(name="x", slurm=Slurm(restart="successor"), launch=Launch(script="x.py"))


@pytest.fixture
def slurm(fake_slurm, monkeypatch):
    """Slurm's clients, outside of a job; sbatch takes job 8."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "KIT_"))]:
        monkeypatch.delenv(name)
    fake_slurm.answer("sbatch", "Submitted batch job 8\n")
    show(fake_slurm, "RUNNING")
    return fake_slurm


def show(slurm, state):
    """Let scontrol show every job in a state; None: it knows none."""
    if state:
        slurm.answer("scontrol", SHOWN.format(state))
    else:
        slurm.answer("scontrol", error=GONE, status=1)


@pytest.fixture
def run(tmp_path):
    """A run directory whose attempt 1 was opened by job 7."""
    run_dir = run_files.frozen(tmp_path / "runs/x/2026", SPEC)
    opened(run_dir, 1, "7")
    lookup.remember(run_dir, "8")
    return run_dir


def now(run):
    return fact_reader.read_newest(run)


def ensure(run, attempt):
    """Writes the files that the opening of this attempt of job 7 writes."""
    hooks.successor(run, fact_reader.read(run, attempt - 1), run_lock.this_process("7"), False)


def known(run, cancels, qos=None):
    """Record what submit has found out about preemption."""
    write_json(run.path / "preemption.json", {"cancels": cancels, "qos": qos})


def opened(run, attempt, job_id):
    run_files.opened(run, attempt, job_id=job_id, nodes=["a"])


def closed(run, decision, job_state="RUNNING", attempt=1, **seen):
    evidence = {"job_state": job_state, "has_progress": True, **seen}
    fields = {"decision": decision, "cause": "preemption", "reason": "because"}
    run_files.recorded(run, evidence, attempt=attempt, **fields)


@pytest.mark.parametrize(
    ("wished", "can_requeue", "cancels", "expected"),
    [
        ("auto", True, False, False),
        ("auto", False, False, True),
        ("auto", True, True, True),
        ("requeue", False, True, False),
        ("successor", True, False, True),
    ],
)
def test_a_successor_is_wanted_where_the_key_or_the_site_says_so(
    run, slurm, wished, can_requeue, cancels, expected
):
    known(run, cancels)
    spec = replace(SPEC, slurm=Slurm(restart=wished))
    assert bool(successor.reason_for(run, spec, can_requeue)) is expected
    assert slurm.calls == []  # the submit has recorded it


QOS_CONFIG = """PreemptMode             = REQUEUE
PreemptType             = preempt/qos
"""


@pytest.mark.parametrize("own_qos", ["high", "cancelling"])
def test_the_qos_that_the_site_has_given_the_job_decides(run, slurm, monkeypatch, own_qos):
    slurm.answer("scontrol", QOS_CONFIG, when="*config")
    slurm.answer("scontrol", "PartitionName=p Default=YES\n", when="*partition*")
    slurm.install("sacctmgr", "")
    slurm.answer("sacctmgr", "cancelling|cancel\n", when="*name=cancelling *")
    known(run, False, "high")
    monkeypatch.setenv("SLURM_JOB_QOS", own_qos)
    cancels = own_qos == "cancelling"
    reason = successor.reason_for(run, replace(SPEC, slurm=Slurm()), True)
    assert bool(reason) is cancels
    assert read_json(run.path / "preemption.json") == {"cancels": cancels, "qos": own_qos}


def test_it_has_the_same_script_and_options_but_what_is_one_jobs_own(run, slurm):
    options = ["--job-name=x", "--nodes=2", "--requeue=expedite", "--open-mode=append", "--hold"]
    options += ["--dependency=afterok:3", "--begin=now+1hour", "--deadline=now+2hours"]
    argv = ["sbatch", *options, "/code/slurm/ddp.sbatch", "/run"]
    kept = ["sbatch", "--job-name=x", "--nodes=2", "--open-mode=append"]
    after = ["--dependency=afterany:7", "--requeue=expedite", "/code/slurm/ddp.sbatch", "/run"]
    assert successor.argv_after(argv, "7", True) == [*kept, *after]
    assert successor.argv_after(argv, "7", False)[-3] == "--no-requeue"


def test_after_plain_sbatch_it_asks_for_what_the_spec_says(run, slurm):
    write_json(run.submission, {"argv": None, "job_id": "7_1"})
    slurm_keys = Slurm(nodes=3, mem="4G", restart="successor")
    run.spec.write_text(replace(SPEC, slurm=slurm_keys).to_json())
    successor.queue(run, now(run), "7_1", True, "because")
    (argv,) = [call.split(" ") for call in slurm.calls if call.startswith("sbatch ")]
    assert {"--nodes=3", "--mem=4G", f"--chdir={run.path}", "--output=job.log"} <= set(argv)
    assert argv[-4:-2] == ["--dependency=afterany:7_1", "--requeue"]
    assert argv[-2:] == [str(run.kit / SCRIPT), str(run.path)]


def test_it_is_queued_once_noted_and_found_by_its_id(run, slurm, monkeypatch):
    known(run, False)
    monkeypatch.setenv("KIT_RUNS", str(run.path.parent.parent))
    ensure(run, 1)
    ensure(run, 2)
    assert [call.split(" ")[0] for call in slurm.calls] == ["scontrol", "sbatch"]
    assert read_json(run.successor) == {"job_id": "8", "after": "7"}
    assert lookup.find("8") == run


def test_it_gets_the_environment_but_nothing_of_the_enclosing_job(run, slurm, monkeypatch):
    for name, value in {"OWN": "1", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    ensure(run, 1)
    seen = dict(line.split("=", 1) for line in slurm.env if "=" in line)
    assert (seen["OWN"], seen["KIT_SUCCEEDS"]) == ("1", "2026:7") and "SLURM_JOB_ID" not in seen
    assert lookup.predecessor(run, seen) == "7"
    assert lookup.predecessor(RunDir(run.path.parent / "other"), seen) is None


def test_one_that_cannot_be_noted_is_cancelled(run, slurm):
    facts = now(run)
    run.successor.mkdir()
    with pytest.raises(OSError, match="directory"):
        successor.queue(run, facts, "7", True, "because")
    assert "scancel 8" in slurm.calls


def test_nothing_is_left_to_go_on_with_so_it_is_cancelled(run, slurm):
    me, other = run_lock.this_process("7"), run_lock.this_process("9")
    hooks.end(run, now(run), me)
    ensure(run, 1)
    hooks.end(run, now(run), other)
    hooks.end(run, now(run), None)
    assert read_json(run.successor)["job_id"] == "8"
    hooks.end(run, now(run), me)
    assert [call for call in slurm.calls if "scancel" in call] == ["scancel 8"]
    assert not run.successor.exists()


@pytest.mark.parametrize(("state", "queued"), [("PENDING", 0), ("CANCELLED", 1), (None, 1)])
def test_a_run_is_handed_over_to_somebody_who_is_there(run, slurm, state, queued):
    write_json(run.successor, {"job_id": "8", "after": "7"})
    show(slurm, state)
    slurm.answer("sbatch", "Submitted batch job 9\n")
    assert successor.confirm(run, now(run), "7")[0]
    assert len([call for call in slurm.calls if call.startswith("sbatch")]) == queued
    record = read_json(run.successor)
    assert (record["after"], record["job_id"]) == ("7", "9" if queued else "8")


def test_an_interactive_job_has_no_successor(run, slurm):
    """It took the nodes back after Ctrl-C."""
    slurm.answer("scontrol", SHOWN.format("RUNNING").replace("BatchFlag=1", "BatchFlag=0"))
    closed(run, "requeue")
    assert successor.ensure(run, now(run), "6") == (None, "")
    assert successor.confirm(run, now(run), "7") == (None, "")
    assert not [call for call in slurm.calls if call.startswith("sbatch")]


def check(run, job_id="8"):
    """How the check of job `job_id`, the successor of job 7, ends: continues, or why not.

    Also how the run ends by that: held or cancelled; None: it does not.
    """
    try:
        predecessor.check(run, now(run), run_lock.this_process(job_id), "7")
    except FailedError as error:
        result = read_json(run.result)
        return str(error), result and result["status"]
    return "continues", None


def test_it_checks_once_and_not_again_when_it_was_requeued(run, slurm):
    opened(run, 2, "8")
    assert check(run)[0] == "continues"
    assert slurm.calls == []


def test_an_attempt_of_a_third_job_is_not_recorded_as_lost(run, slurm, monkeypatch):
    """That job may have a successor of its own."""
    monkeypatch.setenv("KIT_SUCCEEDS", f"{run.run_id}:7")
    opened(run, 2, "9")
    with pytest.raises(FailedError, match="job 9 continued"):
        open_attempt(run, run_lock.this_process("8"), ["a"], "10.0.0.1")
    assert not run.attempts.exists() and not run.result.exists()


@pytest.mark.parametrize("status", ["held", "cancelled"])
def test_a_run_that_has_ended_stays_so(run, slurm, status):
    write_json(run.result, {"status": status, "reason": "three crashes"})
    reason, end = check(run)
    assert status in reason and "three crashes" in reason and end == status


@pytest.mark.parametrize(
    ("state", "continues", "end"),
    [
        ("CANCELLED", False, "cancelled"),
        ("PENDING", False, None),
        ("COMPLETING", False, None),
        ("FAILED", True, None),
        ("PREEMPTED", True, None),
    ],
)
def test_whatever_was_recorded_what_slurm_says_of_the_job_counts(run, slurm, state, continues, end):
    closed(run, "successor")
    show(slurm, state)
    reason, ended = check(run)
    assert (reason == "continues", ended) == (continues, end)


NO_ACCOUNTING = ("", "Slurm accounting storage is disabled\n", 1)


@pytest.mark.parametrize(
    ("sacct", "decision", "job_state", "end"),
    [
        (("7|CANCELLED by 0\n",), None, "", "cancelled"),
        (("7|NODE_FAIL\n",), None, "", None),
        # Where nobody knows, only a job that handed over is succeeded.
        (NO_ACCOUNTING, "successor", "RUNNING", None),
        (NO_ACCOUNTING, "successor", "COMPLETING", "held"),  # cancelled in its grace?
        (NO_ACCOUNTING, "requeue", "RUNNING", "held"),  # it may have been cancelled in the queue
    ],
)
def test_a_job_that_left_the_queue_is_asked_of_sacct(run, slurm, sacct, decision, job_state, end):
    if decision:
        closed(run, decision, job_state)
    show(slurm, None)
    slurm.answer("sacct", *sacct)
    reason, ended = check(run)
    assert ended == end and (reason == "continues") is (end is None)
    assert ("make resume" in reason) == (end == "held")


REQUEUE = Decision(Action.REQUEUE, Cause.PREEMPTION, "preempted")
HAND_OVER = Decision(Action.SUCCESSOR, Cause.TIME_LIMIT, "the time limit is near")


@pytest.fixture
def me(run, monkeypatch):
    """Job 7, which owns the run and has recorded the end of its attempt."""
    monkeypatch.setattr(execute, "SPREAD_S", 0)
    closed(run, "requeue")
    me = run_lock.this_process("7")
    run_lock.claim(run, me, 1)
    return me


def last(run):
    record = read_jsonl(run.attempts)[-1]
    return record["decision"], record["evidence"]["job_state"]


def test_a_refused_requeue_hands_the_run_over(run, slurm, me, capfd):
    assert execute.execute(REQUEUE, run, now(run), me) == 1
    assert last(run) == ("successor", "RUNNING")
    assert read_json(run.successor)["job_id"] == "8"
    assert "NOT requeued" in capfd.readouterr().err
    assert not run.owner.exists()
    assert not run.result.exists()


REFUSED = """\
sbatch: error: QOSMaxSubmitJobPerUserLimit
sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)
"""


@pytest.mark.parametrize("decision", [REQUEUE, HAND_OVER])
def test_a_hold_has_the_words_in_which_slurm_refused_the_successor(run, slurm, me, capfd, decision):
    slurm.answer("sbatch", error=REFUSED, status=1)
    assert execute.execute(decision, run, now(run), me) == 1
    reason = read_json(run.result)["reason"]
    assert "QOSMaxSubmitJobPerUserLimit; sbatch: error: Batch job" in reason
    record = read_jsonl(run.attempts)[-1]
    assert (record["decision"], record["reason"]) == ("hold", reason)
    assert read_json(run.result)["status"] == "held" and "make resume" in capfd.readouterr().err


@pytest.mark.parametrize(("waits", "decision"), [(True, "successor"), (False, "cancel")])
def test_one_that_preemption_may_have_cancelled_is_left_to_the_successor_to_judge(
    run, slurm, me, waits, decision
):
    closed(run, "requeue", plugins={"sites": {"has_successor": waits}})
    preempted = SHOWN.format("COMPLETING") + "   PreemptTime=2026-11-21T12:16:47\n"
    slurm.answer("scontrol", preempted)
    assert execute.execute(REQUEUE, run, now(run), me) == 1
    assert last(run) == (decision, "COMPLETING")  # only Slurm can tell which
