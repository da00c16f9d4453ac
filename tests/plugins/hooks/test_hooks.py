"""The hooks of a user: when they run and what they get; whatever they do changes nothing."""

import errno
import json
import signal
import threading
from dataclasses import replace

import pytest

from slurm_job_kit.jobs import hooks as core
from slurm_job_kit.jobs.attempt import close as close_module
from slurm_job_kit.jobs.attempt.decision import Action
from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.timeline import Timeline
from slurm_job_kit.jobs.contract.records.training import Result
from slurm_job_kit.jobs.contract.spec import Hooks, Launch, Slurm, Spec
from slurm_job_kit.jobs.plugins.hooks import hooks
from slurm_job_kit.jobs.runs import fact_reader, run_lock
from tests.core import run_files
from tests.core.run_files import write_json
from tests.core.waiting import is_running, wait_for

RECORD = 'echo "$KIT_STEP" >>said'
ALL = 'printf "%s|" "$KIT_STATE" "$KIT_REASON" "$KIT_RUN_ID" "$KIT_RUN_DIR" "$PWD" >>said'


@pytest.fixture
def own(run, fake_slurm):
    """`own(attempt)`: an attempt of a run with hooks, which belongs to this process."""

    def owns(attempt=1, job_id="7", script=None, **lines):
        launch = Launch(script=script)
        spec = Spec(slurm=Slurm(restart="requeue"), launch=launch, hooks=Hooks(**lines))
        run.spec.write_text(spec.to_json())
        run_files.opened(run, attempt)
        me = run_lock.this_process(job_id)
        run_lock.claim(run, me, attempt)
        return me

    return owns


@pytest.fixture
def begin(run, own, monkeypatch):
    """`begin(line, attempt)`: the block in which the agents of an attempt would run."""
    monkeypatch.setattr(hooks, "LOOK_INTERVAL_S", 0.1)

    def begins(line=RECORD, attempt=1, script=None):
        own(attempt, script=script, checkpoint=line)
        plan = fact_reader.read(run, attempt).plan
        assert plan is not None
        return core.beside(run, plan)

    return begins


def note(run, *steps, event="save"):
    """Note what rank 0 does: it commits checkpoints, or loads one."""
    for step in steps:
        Timeline(run, "rank-00000", 1).event(event, step=step)


def said(run, name="said"):
    path = run.path / name
    return path.read_text().split() if path.exists() else []


def ended(run, status="completed"):
    """Call the hooks as the core does once a run has its result."""
    core.end(run, replace(fact_reader.read_newest(run), result=Result(status)), None)


def complete(run, me):
    write_json(run.attempt(1).outcome, {"status": "completed", "global_step": 5})
    return close_module.close(run, me, 1)[0].action


def test_each_checkpoint_has_its_hook_once_over_three_attempts(run, begin):
    with begin():
        note(run, 5, event="loaded")  # a copy of another run's, by submit --from
        note(run, 10)
        wait_for(lambda: said(run) == ["10"])
    note(run, 20)  # killed between this commit and its hook
    with begin(attempt=2):
        note(run, 20, event="loaded")
        note(run, 30, 40)
        wait_for(lambda: "40" in said(run))
    with begin(attempt=3):  # killed between the commit of 50 and its event
        note(run, 50, event="loaded")
        wait_for(lambda: "50" in said(run))
        note(run, 20, event="loaded")  # by hand
        note(run, 30)  # with other content
    ended(run)
    assert said(run) == ["10", "20", "30", "40", "50", "30"]


def test_what_was_committed_before_a_resume_set_the_hook_has_none(run, begin):
    note(run, 10)
    with begin(attempt=2):
        wait_for(run.timeline("hooks").exists)
        note(run, 10, event="loaded")
        note(run, 20)
        wait_for(lambda: said(run))
    assert said(run) == ["20"]


def test_what_the_hook_of_a_checkpoint_gets(run, begin):
    write = 'printf "%s|" "$PWD" "$KIT_RUN_ID" "$KIT_RUN_DIR" "$KIT_CHECKPOINT" "$KIT_STATE" '
    write += '"$KIT_REASON" "$KIT_METRICS" >part; mv part all'
    lines = [{"step": 5, "epoch": 1, "train_loss": 0.5}, {"step": 10, "eval_loss": 2.0}]
    lines.append({"step": 15, "train_loss": 0.1})
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"st')
    with begin(write):
        note(run, 10)
        wait_for((run.path / "all").exists)
    *facts, metrics, _ = (run.path / "all").read_text().split("|")
    checkpoint = str(run.checkpoints / "step-00000010")
    assert facts == [str(run.path), run.run_id, str(run.path), checkpoint, "running", ""]
    assert json.loads(metrics) == {"epoch": 1, "train_loss": 0.5, "eval_loss": 2.0}


def test_the_checkpoints_of_a_script_are_those_that_it_reports(run, begin):
    with begin(f'{RECORD}; echo "<$KIT_CHECKPOINT>$KIT_METRICS" >>said', script="x.py"):
        write_json(run.progress, {"step": 7, "metrics": {"loss": 0.5}})
        note(run, 7)
        wait_for(lambda: len(said(run)) == 3)
    assert said(run) == ["7", '<>{"loss":', "0.5}"]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("echo why; exit 3", "failed with exit code 3: why"),
        ("kill -9 $$", "failed with exit code 137"),
        ("sleep 1000", "was killed after 1 s, with all that it started"),
        ("head -c 20000000 /dev/zero; echo; echo much; exit 1", "failed with exit code 1: much"),
    ],
)
def test_a_hook_that_goes_wrong_is_one_line_and_is_not_repeated(
    run, begin, command, line, capfd, monkeypatch
):
    monkeypatch.setattr(hooks, "LIMIT_S", 1.0 if "sleep" in command else 60.0)
    with begin(f"{RECORD}; {command}"):
        note(run, 10, 20)
        about = "hooks.checkpoint of step {} " + line + "; the run is not affected\n"
        printed = []

        def both():
            printed.append(capfd.readouterr().err)
            return "".join(printed) == about.format(10) + about.format(20)

        wait_for(both)
    ended(run)
    assert said(run) == ["10", "20"] and capfd.readouterr().err == ""


def test_a_hook_at_the_end_of_an_attempt_is_killed_with_its_group_and_runs_again(run, begin, capfd):
    with begin('sleep 1000 & echo "$!" >>pids; wait'):
        note(run, 10)
        (pid,) = wait_for(lambda: said(run, "pids"))
    wait_for(lambda: not is_running(int(pid)))
    assert capfd.readouterr().err == ""
    with begin(attempt=2):
        wait_for(lambda: said(run) == ["10"])


def test_a_hook_is_not_cut_off_by_the_end_of_the_training(run, begin, monkeypatch):
    monkeypatch.setattr(hooks, "END_WAIT_S", 0.1)
    with begin(f"echo >begun; until test -e result; do sleep 0.1; done; sleep 0.5; {RECORD}"):
        note(run, 10)
        wait_for((run.path / "begun").exists)
        write_json(run.attempt(1).outcome, {"status": "completed", "global_step": 10})
        (run.path / "result").touch()
    assert said(run) == ["10"]


def test_at_the_end_of_a_run_a_hook_that_hangs_is_the_last_one(run, begin, monkeypatch):
    monkeypatch.setattr(hooks, "LIMIT_S", 1.0)
    with begin(f"{RECORD}; sleep 1000"):
        pass
    note(run, 10, 20, 30)
    ended(run)
    assert said(run) == ["10"]


def test_a_run_that_may_be_continued_keeps_its_hooks_for_then(run, begin):
    with begin():
        pass
    note(run, 10)
    ended(run, "held")
    assert said(run) == []
    with begin(attempt=2):
        wait_for(lambda: said(run) == ["10"])


def test_an_attempt_that_was_superseded_runs_none(run, begin):
    with begin():
        write_json(run.owner, run_files.claim(job_id="8"))
        note(run, 10)
        wait_for(lambda: "hooks.checkpoint" not in [each.name for each in threading.enumerate()])
    assert said(run) == []


def test_a_complete_run_has_its_hook_once_after_its_result(run, own):
    assert complete(run, own(end=f"test -s result.json && {ALL}")) is Action.DONE
    facts = ["completed", "", run.run_id, str(run.path), str(run.path), ""]
    assert (run.path / "said").read_text().split("|") == facts


@pytest.mark.parametrize("job_id", ["7", None])
def test_a_held_run_has_its_hook_with_its_reason(run, own, job_id):
    me = own(job_id=job_id, end=ALL)
    run_files.failed(run.attempt(1), 0, 5.0, "SpecError: no such key", would_repeat=True)
    assert close_module.close(run, me, 1)[0].action is Action.HOLD
    state, reason, *_ = (run.path / "said").read_text().split("|")
    assert state == "held" and "no such key" in reason


def test_a_requeue_and_a_retry_have_no_hook(run, own):
    me = own(end=RECORD)
    run_files.failed(run.attempt(1), 0, 5.0)
    assert close_module.close(run, me, 1)[0].action is Action.RETRY
    run.attempt(1).rank_error(0).unlink()
    run_files.node(run.attempt(1), 0, (5.0, "SIGTERM"))
    assert close_module.close(run, me, 1)[0].action is Action.REQUEUE
    assert said(run) == []


def test_a_hook_at_the_end_that_fails_changes_nothing(run, own, capfd):
    assert complete(run, own(end="no-such-command")) is Action.DONE
    assert read_json(run.result)["status"] == "completed" and not run.owner.exists()
    printed = capfd.readouterr()
    assert printed.out == "" and "hooks.end failed with exit code 127: bash: " in printed.err


def test_a_hook_can_end_its_own_processes(run, own):
    """The batch script's commands block the stop signals, and bash would inherit that."""
    own(end="sleep 1000 & kill -TERM $!; wait $!; echo $? >code")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        ended(run, "held")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (run.path / "code").read_text() == "143\n"


def test_a_run_that_is_cancelled_in_the_queue_has_its_hook(run, own):
    run.spec.write_text(Spec(hooks=Hooks(end=ALL)).to_json())
    close_module.end_cancelled(run)
    assert said(run)[0].startswith("cancelled|the")


def test_a_disk_that_fails_at_the_end_of_an_attempt_ends_no_attempt(run, begin, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(hooks, "END_WAIT_S", 0.1)
    with begin("sleep 100"):
        note(run, 5)
        wait_for(lambda: (run.path / "timeline").exists())
        monkeypatch.setattr(records, "read_leniently", fails)
