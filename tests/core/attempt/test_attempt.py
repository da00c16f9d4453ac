"""The batch script after a decision: its exit code, and a requeue that Slurm refuses."""

import re
import time
from dataclasses import replace

import pytest

from slurm_job_kit.jobs.attempt import attempts, collect_evidence, execute
from slurm_job_kit.jobs.attempt import close as close_module
from slurm_job_kit.jobs.attempt.decision import Action, Cause, Decision
from slurm_job_kit.jobs.base.files import append_jsonl, read_json, read_jsonl
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.node import interfaces
from slurm_job_kit.jobs.runs import fact_reader, run_lock
from slurm_job_kit.trainer.checkpoint.recovery import quarantine
from tests.core import file_operations, run_files
from tests.core.attempt import attempt_kit
from tests.core.run_files import write_json

RECORD = run_files.attempt(decision="requeue", cause="preemption")
ME = run_lock.this_process("7")
REQUEUE = Decision(Action.REQUEUE, Cause.PREEMPTION, "preempted")


@pytest.fixture
def slurm(tmp_path, fake_slurm):
    """Slurm's clients; `tmp_path` is the directory of a run without a successor."""
    RunDir(tmp_path).spec.write_text(Spec(slurm=Slurm(restart="requeue")).to_json())
    return fake_slurm


@pytest.fixture
def owned(tmp_path, slurm):
    """That run after the record of attempt 1, which job 7 owns."""
    run = RunDir(tmp_path)
    run_lock.claim(run, ME, 1)
    append_jsonl(run.attempts, RECORD)
    return run


def act(run, decision):
    return execute.execute(decision, run, fact_reader.read(run, 1), ME)


def test_a_refused_requeue_is_held_with_its_reason(owned, capfd):
    assert act(owned, REQUEUE) == 1
    assert "NOT requeued" in capfd.readouterr().err
    assert read_json(owned.result)["status"] == "held"
    assert "preempted; NOT requeued: " in read_json(owned.result)["reason"]
    last = read_jsonl(owned.attempts)[-1]
    assert (last["decision"], last["why"]["budget"]) == ("hold", "not_requeued")
    assert not owned.owner.exists()


def test_a_scancel_between_decision_and_requeue_is_recorded_as_one(owned, slurm):
    slurm.set_state("7", "CANCELLED")
    assert act(owned, REQUEUE) == 1
    assert read_json(owned.result)["status"] == "cancelled"
    (record,) = read_attempts(owned)
    assert (record.decision, record.cause) == ("cancel", "cancelled")


def test_a_start_that_was_superseded_meanwhile_ends_nothing(owned, slurm):
    now = replace(ME, restart_count=1)
    run_lock.claim(owned, now, 2)
    assert act(owned, REQUEUE) == 1
    assert read_jsonl(owned.attempts) == [RECORD]
    assert not owned.result.exists()
    assert run_lock.is_owned_by_start(owned, now)
    assert NO_MORE_STARTS not in slurm.calls


def test_an_attempt_that_is_superseded_while_slurm_is_silent_is_not_recorded(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    run.spec.write_text(Spec().to_json())
    run_lock.claim(run, ME, 1)

    def silent_for_long(*_):
        run_lock.claim(run, replace(ME, restart_count=1), 2)

    monkeypatch.setattr(collect_evidence, "show_job", silent_for_long)
    with pytest.raises(run_lock.OwnedError, match="attempt 1 is superseded"):
        close_module.close(run, ME, 1)
    assert not run.attempts.exists()


@pytest.mark.parametrize(("crashes", "delay_s"), [(0, 0), (1, 0), (2, 2), (3, 8), (5, 60)])
def test_each_crash_without_progress_waits_longer(tmp_path, crashes, delay_s):
    run = RunDir(tmp_path)
    run_files.recorded(run, attempt=100, stop=time.time() - 90_000)  # of the day before
    for attempt in range(crashes):
        run_files.recorded(run, attempt=attempt)
    assert execute.retry_delay_s(read_attempts(run)) == delay_s


def test_a_requeue_is_asked_for_once_and_never_of_a_finished_job(owned, slurm):
    slurm.set_state("7", "PENDING")
    assert act(owned, REQUEUE) == 1
    asked = [call for call in slurm.calls if "requeue" in call]
    assert asked == ["scontrol requeue Incomplete 7"]
    assert not owned.result.exists()


NO_MORE_STARTS = "scontrol update JobId=7 Requeue=0"


@pytest.mark.parametrize(
    ("action", "job_state", "is_over"),
    [
        ("done", "RUNNING", False),  # exit 0: no site requeues it
        ("hold", "RUNNING", True),
        ("cancel", "CANCELLED", True),
        ("wait", "RUNNING", False),
        ("requeue", "PENDING", False),
        ("requeue", "RUNNING", True),  # refused
        ("requeue", "CANCELLED", True),
        ("successor", "RUNNING", True),  # none can be queued, so it is held
    ],
)
def test_slurm_does_not_start_a_job_again_whose_run_has_ended(
    owned, slurm, action, job_state, is_over
):
    """An expedited job, or one with an exit code of RequeueExit, is requeued or held otherwise."""
    slurm.set_state("7", job_state)
    act(owned, Decision(Action(action), Cause.PREEMPTION, "x"))
    assert (NO_MORE_STARTS in slurm.calls) == is_over


@pytest.mark.parametrize(
    ("lists", "code"),
    [
        ("RequeueExit = (null)", 1),
        ("RequeueExit = 1", 3),
        ("RequeueExit = 5\nRequeueExitHold = 1-4,6", 7),
        ("RequeueExit = 0-255", 1),
    ],
)
def test_the_exit_code_of_a_held_run_is_none_that_the_site_requeues(owned, slurm, lists, code):
    slurm.answer("scontrol", f"PreemptType = preempt/none\n{lists}\n", when="show config")
    assert act(owned, Decision(Action.HOLD, Cause.CRASH, "x")) == code
    assert act(owned, Decision(Action.WAIT, Cause.PREEMPTION, "x")) == 1


def test_a_job_may_start_again_whose_requeue_got_no_answer(owned, slurm):
    slurm.remove("scontrol")
    act(owned, REQUEUE)
    assert NO_MORE_STARTS not in slurm.calls


@pytest.mark.parametrize(
    ("owner", "is_over"),
    [({"job_id": "8"}, True), ({"restart_count": 1}, False), ({"attempt": "unreadable"}, True)],
)
def test_a_refused_job_is_not_started_again_but_a_later_start_of_it_is_left_alone(
    run, command, slurm, owner, is_over
):
    claim = run_files.claim(**owner)
    slurm.set_state(claim["job_id"], "RUNNING")
    write_json(run.owner, claim)
    assert command("open", "a") == 1
    assert (NO_MORE_STARTS in slurm.calls) == is_over


@pytest.fixture
def run(tmp_path):
    """A run directory as `freeze` makes it, of a user's own script."""
    run_dir = run_files.frozen(tmp_path / "run", Spec(launch=Launch(script="x.py")))
    run_dir.attempt(1).path.mkdir()
    return run_dir


@pytest.fixture
def command(run, slurm, monkeypatch):
    """The batch script's commands, inside of job 7."""
    monkeypatch.setattr(execute, "MAX_DELAY_S", 0)
    monkeypatch.setattr(interfaces, "is_own", lambda _: True)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "4102444800")

    def call(word, *arguments):
        if word == "close":
            return closed(run, int(arguments[0]))
        return attempts.open_next(run, ME, arguments, "10.0.0.1")[1]

    return call


def closed(run, attempt=1, *stops, srun_exit=0):
    """The exit code of the batch process after the srun step of an attempt."""
    return attempts.close_and_execute(run, ME, attempt, attempt_kit.stops(*stops), srun_exit)


def close(run, code, attempt=1):
    run_files.node(run.attempt(attempt), 0, host="a", torchrun_exit=code, end=1.0)


def test_no_attempt_begins_where_the_first_node_lacks_the_interface(run, command, capfd):
    launch = Launch(script="x.py", interface="nope9")
    run.spec.write_text(Spec(slurm=Slurm(nodes=2), launch=launch).to_json())
    assert command("open", "a", "b") == 1
    assert "launch.interface: nope9 is no interface with an address" in capfd.readouterr().err
    assert not run.attempt(1).plan.exists() and not run.owner.exists()


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 0), (1, execute.EXIT_RETRY)])
def test_a_timeline_that_cannot_be_written_changes_nothing(run, command, exit_code, expected):
    run.timeline("x").parent.rmdir()
    assert command("open", "a") == 0
    assert read_json(run.attempt(1).plan)["deadline"] == 4102444800.0  # the end of the time limit
    close(run, exit_code)
    assert command("close", "1") == expected
    assert len(read_jsonl(run.attempts)) == 1


def test_a_shell_whose_job_runs_again_elsewhere_leaves_the_steps_alone(run, command, slurm):
    """They have the same ids: job 7's first srun step is 7.0 in each of its starts."""
    assert command("open", "a") == 0
    run_files.node(run.attempt(1), 0, host="a", torchrun_exit=None, end=None, step_id="0")
    slurm.set_state("7", "RUNNING", "Requeue=1 Restarts=1")
    command("close", "1")
    assert slurm.cancelled == []
    assert read_jsonl(run.attempts)[-1]["cause"] == "requeued"


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_close_that_cannot_record_is_one_line_and_never_0(run, command, capfd, exit_code):
    assert command("open", "a") == 0
    close(run, exit_code)
    run.attempts.symlink_to("/dev/null/x")  # root can write to a read-only file
    capfd.readouterr()
    assert command("close", "1") == 1
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    words = "Not a directory; cannot record what happens to the run"
    assert said == [f"error: {run.attempts}: {words}"]
    assert not run.owner.exists()


@pytest.mark.parametrize(
    ("stop_s", "status", "advised"),
    [(90, "stopped", None), (110, "stopped", 150), (121, "completed", None)],
)
def test_a_stop_that_hardly_fits_before_a_time_limit_is_a_warning(
    run, command, capfd, stop_s, status, advised
):
    assert command("open", "a") == 0
    now = time.time()
    run_files.node(run.attempt(1), 0, (now - stop_s, "SIGTERM"), end=now)
    write_json(run.attempt(1).outcome, {"status": status, "global_step": 1, "checkpoint": None})
    command("close", "1")
    warned = re.findall(
        r"120 s after its signal: set slurm.signal_lead_s: (\d+)", capfd.readouterr().err
    )
    assert warned == ([] if advised is None else [str(advised)])


@pytest.mark.parametrize(
    ("signal", "preempted", "kind"),
    [("SIGTERM", "2026-01-01", "preemption"), ("SIGUSR1", "None", "not_saved")],
)
def test_a_stop_that_was_killed_before_its_save_names_what_it_lacked(
    run, command, slurm, signal, preempted, kind
):
    run.spec.write_text(Spec().to_json())
    assert command("open", "a") == 0
    slurm.set_state("7", "RUNNING", f"PreemptEligibleTime=2026-01-01 PreemptTime={preempted}")
    warned, first_step = time.time() - 50, {"event": "first_step", "attempt": 1, "step": 1}
    append_jsonl(run.timeline("rank-00000"), first_step | {"t": warned})
    run_files.node(run.attempt(1), 0, (warned, signal), end=None, torchrun_exit=None)
    command("close", "1")
    last = read_attempts(run)[-1]
    assert last.why.kind == kind and "; killed before the save finished" in last.reason


def test_a_close_names_each_checkpoint_that_its_attempt_put_aside(run, command, capfd):
    old, *new = (run.checkpoints / f"step-{step:08d}" for step in (5, 10, 15))
    for path in (old, *new):
        path.mkdir()
    quarantine(old, "long ago")
    assert command("open", "a") == 0
    assert "attempt 1: 1 node, rendezvous at" in capfd.readouterr().err
    asides = [quarantine(path, "a.pt has 1 bytes, not 2\nand more") for path in new]
    (asides[1] / "REASON").unlink()  # the disk was full
    close(run, 0)
    assert command("close", "1") == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "damaged" in line]
    told = "attempt 1: a damaged checkpoint was put aside"
    assert said == [
        f"{told}, {asides[0]}: a.pt has 1 bytes, not 2",
        f"{told}, {asides[1]}: the reason is in rank 0's log",
    ]
    (record,) = read_jsonl(run.attempts)
    assert record["quarantined"] == [aside.name for aside in asides]


def test_the_jobs_log_has_the_end_of_the_ranks_log_and_the_reason_in_one_line(run, command, capfd):
    assert command("open", "a") == 0
    record = {"rank": 0, "host": "a", "time": 1.0, "would_repeat": True}
    record |= {"error": "it is nan\n  hint: a lower lr", "kind": "not_finite"}
    run.attempt(1).rank_log(0).write_text("error: it is nan\n  hint: a lower lr\n")
    write_json(run.attempt(1).rank_error(0), record)
    capfd.readouterr()
    assert command("close", "1") == 1
    *lines, hint = capfd.readouterr().err.splitlines()
    assert "not_finite, log " in hint and "make resume RUN=run SET=" in hint
    assert lines[2:-1] == ["error: it is nan", "  hint: a lower lr"]
    assert lines[-1] == "attempt 1: crash: rank 0 on a: it is nan -> hold"
    assert read_json(run.result)["reason"] == "rank 0 on a: it is nan"


@pytest.mark.parametrize(
    ("exit_code", "stops", "status"),
    [(0, [], "completed"), (1, ["SIGTERM"], "held"), (1, [], None)],
)
def test_a_close_writes_the_result_once_and_only_at_the_end_of_the_run(
    run, command, slurm, exit_code, stops, status
):
    spec = Spec(slurm=Slurm(restart="requeue"), launch=Launch(script="x.py"))
    run.spec.write_text(spec.to_json())
    slurm.set_state("7", "RUNNING", "Requeue=0 Restarts=0")
    with file_operations.watched(run.path) as opening:
        assert command("open", "a") == 0
    close(run, exit_code)
    with file_operations.watched(run.path) as operations:
        closed(run, 1, *stops)
    assert ("fsync", "attempt-1") in opening and ("fsync", "attempts.jsonl") in operations
    renames = [path for name, path in operations.elements() if name == "os.rename"]
    assert sum(run.result.name in path for path in renames) == (status is not None)
    assert (read_json(run.result) or {}).get("status") == status


def test_an_open_writes_the_result_of_a_run_whose_last_record_says_done(run, command):
    """The batch script was killed between the record and the result."""
    write_json(run.attempt(1).plan, run_files.plan(nodes=["a"]))
    write_json(run.attempt(1).outcome, {"status": "completed", "global_step": 9})
    run_files.recorded(run, decision="done", cause="completed")
    assert command("open", "a") == 0
    assert read_json(run.result)["status"] == "completed"
    assert not run.attempt(2).path.exists()
