"""The successor job: when and how it is queued, and when it must not continue the run."""

import os
from dataclasses import replace

import pytest

from slurm_job_kit.jobs.attempt import execute, successor
from slurm_job_kit.jobs.attempt.decision import Action, Cause, Decision, budget_used
from slurm_job_kit.jobs.attempt.open import open_attempt
from slurm_job_kit.jobs.records.ended import read_attempts
from slurm_job_kit.jobs.rundir import RunDir, read_json, read_jsonl, write_json
from slurm_job_kit.jobs.runs import fact_reader, lookup, run_lock
from slurm_job_kit.jobs.slurm.sbatch import SCRIPT
from slurm_job_kit.jobs.spec import Launch, Slurm, Spec
from tests.core import run_files

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
    return run_dir


def now(run):
    return fact_reader.read_newest(run)


def ensure(run, attempt):
    """Writes the files that the opening of this attempt of job 7 writes."""
    successor.ensure(run, fact_reader.read(run, attempt - 1), "7")


def opened(run, attempt, job_id):
    run_files.opened(run, attempt, job_id=job_id, nodes=["a"])


def closed(run, decision, job_state="RUNNING", attempt=1):
    evidence = {"job_state": job_state, "has_progress": True}
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
    write_json(run.site, {"cancels_preempted": cancels})
    spec = replace(SPEC, slurm=Slurm(restart=wished))
    assert bool(successor.reason_for(replace(now(run), spec=spec), can_requeue)) is expected
    assert slurm.calls == []  # the submit has recorded it


def test_a_run_that_was_only_frozen_asks_for_its_site_once(run, slurm):
    spec = replace(SPEC, slurm=Slurm())
    assert not successor.site_of_job(run, replace(now(run), spec=spec)).cancels_preempted
    assert slurm.calls == ["scontrol show config"]
    assert not run.site.exists()  # the output of this one cannot be parsed


QOS_CONFIG = """PreemptMode             = REQUEUE
PreemptType             = preempt/qos
"""


@pytest.mark.parametrize("restart", ["auto", "requeue"])
@pytest.mark.parametrize("own_qos", ["high", "cancelling"])
def test_the_qos_that_the_site_has_given_the_job_decides(run, slurm, monkeypatch, own_qos, restart):
    slurm.answer("scontrol", QOS_CONFIG, when="*config")
    slurm.answer("scontrol", "PartitionName=p Default=YES\n", when="*partition*")
    slurm.install("sacctmgr", "")
    slurm.answer("sacctmgr", "requeue|00:00:30\n", when="*name=high *")
    slurm.answer("sacctmgr", "cancel|00:00:30\n", when="*name=cancelling *")
    write_json(run.site, {"cancels_preempted": False, "qos": "high"})
    monkeypatch.setenv("SLURM_JOB_QOS", own_qos)
    opened(run, 2, "6")
    run.spec.write_text(replace(SPEC, slurm=Slurm(restart=restart)).to_json())
    ensure(run, 3)
    cancels = own_qos == "cancelling"
    assert run.successor.exists() is (cancels and restart == "auto")
    assert now(run).site.cancels_preempted is cancels  # the end of the attempt reads it, too


def test_it_has_the_same_script_and_options_but_what_is_one_jobs_own(run, slurm):
    options = ["--job-name=x", "--nodes=2", "--requeue", "--open-mode=append", "--hold"]
    options += ["--dependency=afterok:3", "--begin=now+1hour", "--deadline=now+2hours"]
    argv = ["sbatch", *options, "/code/slurm/ddp.sbatch", "/run"]
    write_json(run.submission, {"argv": argv, "job_id": "7"})
    kept = ["sbatch", "--job-name=x", "--nodes=2", "--open-mode=append"]
    after = ["--dependency=afterany:7", "--requeue", "/code/slurm/ddp.sbatch", "/run"]
    assert successor.argv_after(run, now(run), "7", True) == [*kept, *after]
    assert successor.argv_after(run, now(run), "7", False)[-3] == "--no-requeue"


def test_after_plain_sbatch_it_asks_for_what_the_spec_says(run, slurm):
    write_json(run.submission, {"argv": None, "job_id": "7"})
    run.spec.write_text(replace(SPEC, slurm=Slurm(nodes=3, mem="4G")).to_json())
    argv = successor.argv_after(run, now(run), "7_1", True)
    assert {"--nodes=3", "--mem=4G", f"--chdir={run.path}", "--output=job.log"} <= set(argv)
    assert argv[-4:-2] == ["--dependency=afterany:7_1", "--requeue"]
    assert argv[-2:] == [str(run.kit / SCRIPT), str(run.path)]


def test_it_is_queued_once_noted_and_found_by_its_id(run, slurm, monkeypatch):
    write_json(run.site, {})  # asked at submit
    monkeypatch.setenv("KIT_RUNS", str(run.path.parent.parent))
    ensure(run, 1)
    ensure(run, 2)
    assert [call.split(" ")[0] for call in slurm.calls] == ["scontrol", "sbatch"]
    noted = {"job_id": "8", "after": "7", "reason": "slurm.restart=successor"}
    assert read_json(run.successor) == noted
    assert lookup.find("8") == run


def test_it_gets_the_environment_but_nothing_of_the_enclosing_job(run, slurm, monkeypatch):
    for name, value in {"OWN": "1", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    ensure(run, 1)
    seen = dict(line.split("=", 1) for line in slurm.env if "=" in line)
    assert (seen["OWN"], seen["KIT_SUCCEEDS"]) == ("1", "2026:7") and "SLURM_JOB_ID" not in seen
    assert lookup.predecessor(run, seen) == "7"
    assert lookup.predecessor(RunDir(run.path.parent / "other"), seen) is None


def test_a_site_that_takes_no_job_from_a_job_is_told_and_stops_nothing(run, slurm, capfd):
    slurm.answer("sbatch", "", "sbatch: error: Access/permission denied\n", 1)
    ensure(run, 1)
    assert not run.successor.exists()
    said = capfd.readouterr().err
    assert "no successor of job 7" in said
    assert "permission denied" in said
    assert "make resume" in said


def test_one_that_cannot_be_noted_is_cancelled(run, slurm):
    facts = now(run)
    run.successor.mkdir()
    with pytest.raises(OSError, match="directory"):
        successor.queue(run, facts, "7", True, "because")
    assert "scancel 8" in slurm.calls


def test_the_note_of_an_earlier_job_goes_where_none_is_needed(run, slurm):
    write_json(run.successor, {"job_id": "7", "after": "6", "reason": ""})
    write_json(run.site, {"cancels_preempted": False})
    run.spec.write_text(replace(SPEC, slurm=Slurm()).to_json())
    ensure(run, 1)
    assert not run.successor.exists()


def test_nothing_is_left_to_go_on_with_so_it_is_cancelled(run, slurm):
    successor.cancel(run, now(run), "7")
    ensure(run, 1)
    successor.cancel(run, now(run), "other")
    assert read_json(run.successor)["job_id"] == "8"
    successor.cancel(run, now(run), "7")
    assert [call for call in slurm.calls if "scancel" in call] == ["scancel 8"]
    assert not run.successor.exists()


@pytest.mark.parametrize(("state", "queued"), [("PENDING", 0), ("CANCELLED", 1), (None, 1)])
def test_a_run_is_handed_over_to_somebody_who_is_there(run, slurm, state, queued):
    write_json(run.successor, {"job_id": "8", "after": "7", "reason": ""})
    show(slurm, state)
    slurm.answer("sbatch", "Submitted batch job 9\n")
    assert successor.confirm(run, now(run), "7")[0]
    assert len([call for call in slurm.calls if call.startswith("sbatch")]) == queued
    record = read_json(run.successor)
    assert (record["after"], record["job_id"]) == ("7", "9" if queued else "8")


def test_a_run_whose_user_wants_no_successor_is_handed_over_to_nobody(run, slurm):
    run.spec.write_text(replace(SPEC, slurm=Slurm(restart="requeue")).to_json())
    assert successor.confirm(run, now(run), "7") == (None, "")
    assert slurm.calls == []


def check(run, job_id="8", after="7"):
    return successor.check_predecessor(run, now(run), job_id, after)


def test_a_job_that_a_user_submitted_checks_nothing(run, slurm):
    assert check(run, after=None).may_continue
    assert slurm.calls == []


def test_it_checks_once_and_not_again_when_it_was_requeued(run, slurm):
    opened(run, 2, "8")
    assert check(run).may_continue
    assert slurm.calls == []


def test_it_keeps_off_a_run_that_went_on_as_another_job(run, slurm):
    opened(run, 2, "9")
    predecessor = check(run)
    assert (predecessor.may_continue, predecessor.final_action) == (False, None)
    assert "job 9" in predecessor.reason


@pytest.mark.parametrize("status", ["held", "cancelled"])
def test_a_run_that_has_ended_stays_so(run, slurm, status):
    write_json(run.result, {"status": status, "reason": "three crashes"})
    predecessor = check(run)
    assert (predecessor.may_continue, predecessor.final_action) == (False, None)
    assert status in predecessor.reason
    assert "three crashes" in predecessor.reason


@pytest.mark.parametrize("recorded", [None, "retry", "requeue", "wait", "successor"])
@pytest.mark.parametrize(
    ("state", "may_continue", "final_action"),
    [
        ("CANCELLED", False, Action.CANCEL),
        ("PENDING", False, None),
        ("COMPLETING", False, None),
        ("FAILED", True, None),
        ("NODE_FAIL", True, None),
        ("PREEMPTED", True, None),
        ("TIMEOUT", True, None),
    ],
)
def test_whatever_was_recorded_what_slurm_says_of_the_job_counts(
    run, slurm, recorded, state, may_continue, final_action
):
    if recorded:
        closed(run, recorded)
    show(slurm, state)
    predecessor = check(run)
    assert (predecessor.may_continue, predecessor.final_action) == (may_continue, final_action)


@pytest.mark.parametrize(
    ("line", "may_continue"), [("7|CANCELLED by 0\n", False), ("7|NODE_FAIL\n", True), ("", False)]
)
def test_a_job_that_left_the_queue_is_asked_of_sacct(run, slurm, line, may_continue):
    show(slurm, None)
    slurm.answer("sacct", line)
    assert check(run).may_continue is may_continue


@pytest.mark.parametrize(
    ("decision", "job_state", "may_continue"),
    [
        ("successor", "RUNNING", True),
        ("successor", "COMPLETING", False),  # preempted, or cancelled in its grace
        ("requeue", "RUNNING", False),  # it may have been cancelled in the queue
        (None, "", False),
    ],
)
def test_where_nobody_knows_only_a_job_that_handed_over_is_succeeded(
    run, slurm, decision, job_state, may_continue
):
    if decision:
        closed(run, decision, job_state)
    show(slurm, None)
    slurm.answer("sacct", "", "Slurm accounting storage is disabled\n", 1)
    predecessor = check(run)
    assert predecessor.may_continue is may_continue
    if not may_continue:
        assert predecessor.final_action is Action.HOLD
        assert "make resume" in predecessor.reason


@pytest.mark.parametrize(
    ("line", "cancels", "may_continue", "final_action"),
    [
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-21T12:16:47 DUE TO PREEMPTION ***", 1, 1, None),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-21T12:16:47 DUE TO PREEMPTION ***", 0, 0, "hold"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-21T12:16:47 ***", 1, 0, "cancel"),
        # Slurm 26.05
        (
            "*** JOB 7 ON n1 CANCELLED AT 2026-11-21T12:16:47 DUE to SIGNAL Terminated ***",
            1,
            0,
            "cancel",
        ),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-21T12:16:47 DUE TO TASK FAILURE ***", 1, 0, "hold"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-11-21T12:16:47 DUE TO JOB REQUEUE ***", 1, 0, "hold"),
        ("*** JOB 70 ON n1 CANCELLED AT 2026-11-21T12:16:47 DUE TO PREEMPTION ***", 1, 0, "hold"),
        ("*** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T12:16:47 DUE TO PREEMPTION ***", 1, 0, "hold"),
    ],
)
def test_without_accounting_the_log_says_whether_slurm_or_a_user_ended_the_job(
    run, slurm, line, cancels, may_continue, final_action
):
    show(slurm, None)
    write_json(run.site, {"cancels_preempted": bool(cancels)})
    run.job_log.write_text(f"slurmstepd-n1: error: {line}\nbye\n")
    predecessor = check(run)
    assert (predecessor.may_continue, predecessor.final_action) == (
        bool(may_continue),
        final_action,
    )


def test_a_successor_of_a_cancelled_job_writes_down_that_the_run_was_cancelled(
    run, slurm, monkeypatch
):
    monkeypatch.setenv("KIT_SUCCEEDS", f"{run.run_id}:7")
    show(slurm, "CANCELLED")
    me = run_lock.this_process("8")
    refused = "job 8 does not continue the run: job 7 was cancelled"
    with pytest.raises(successor.EndedError, match=refused):
        open_attempt(run, me, ["a"], "10.0.0.1")
    assert read_json(run.result)["status"] == "cancelled"
    (record,) = read_attempts(run)
    assert (record.decision, record.cause) == ("cancel", Cause.LOST)
    assert run_lock.read(run) is None
    decision = Decision(Action.CANCEL, Cause.LOST, "x")
    assert decision.action == record.decision
    assert budget_used(read_attempts(run)).restarts == 0  # a resume begins anew


def test_a_run_that_was_through_before_its_job_was_cancelled_is_complete(run, slurm, monkeypatch):
    monkeypatch.setenv("KIT_SUCCEEDS", f"{run.run_id}:7")
    show(slurm, "CANCELLED")
    write_json(run.attempt(1).outcome, {"status": "completed", "global_step": 9})
    assert open_attempt(run, run_lock.this_process("8"), ["a"], "10.0.0.1") is None
    assert read_json(run.result)["status"] == "completed"
    (record,) = read_jsonl(run.attempts)
    assert record["decision"] == "done"
    assert run_lock.read(run) is None


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
sbatch: note: GPU hours are billed
sbatch: error: QOSMaxSubmitJobPerUserLimit
sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)
"""


@pytest.mark.parametrize("decision", [REQUEUE, HAND_OVER])
def test_a_hold_has_the_words_in_which_slurm_refused_the_successor(run, slurm, me, capfd, decision):
    slurm.answer("sbatch", error=REFUSED, status=1)
    assert execute.execute(decision, run, now(run), me) == 1
    reason = read_json(run.result)["reason"]
    assert "QOSMaxSubmitJobPerUserLimit; error: Batch job" in reason and "billed" not in reason
    record = read_jsonl(run.attempts)[-1]
    assert (record["decision"], record["reason"]) == ("hold", reason)
    assert read_json(run.result)["status"] == "held" and "make resume" in capfd.readouterr().err


@pytest.mark.parametrize(("cancels", "decision"), [(True, "successor"), (False, "cancel")])
def test_one_that_preemption_may_have_cancelled_is_left_to_the_successor_to_judge(
    run, slurm, me, cancels, decision
):
    write_json(run.site, {"cancels_preempted": cancels})
    preempted = SHOWN.format("COMPLETING") + "   PreemptTime=2026-11-21T12:16:47\n"
    slurm.answer("scontrol", preempted)
    assert execute.execute(REQUEUE, run, now(run), me) == 1
    assert last(run) == (decision, "COMPLETING")  # only Slurm can tell which


def test_one_that_was_cancelled_takes_its_successor_with_it(run, slurm, me):
    write_json(run.successor, {"job_id": "8", "after": "7", "reason": ""})
    show(slurm, "COMPLETING")
    assert execute.execute(REQUEUE, run, now(run), me) == 1
    assert last(run) == ("cancel", "COMPLETING")
    assert "scancel 8" in slurm.calls
    assert read_json(run.result)["status"] == "cancelled"
