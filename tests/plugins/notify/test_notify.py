"""notify.command: when it runs, what it gets, and that its failure changes nothing."""

import signal
import time
from dataclasses import replace

import pytest

from slurm_job_kit.jobs.attempt import close as close_module
from slurm_job_kit.jobs.attempt.decision import Action
from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.records.training import Result
from slurm_job_kit.jobs.contract.spec import Notify, Slurm, Spec
from slurm_job_kit.jobs.plugins.notify import hooks
from slurm_job_kit.jobs.runs import fact_reader, run_lock
from tests.core import run_files
from tests.core.run_files import write_json
from tests.core.waiting import is_running, wait_for

RECORD = 'printf "%s|" "$KIT_STATE" "$KIT_REASON" "$KIT_RUN_ID" "$KIT_RUN_DIR" "$PWD" >>said'


@pytest.fixture
def wanting(run, fake_slurm):
    """`wanting(command)`: a run with this notify.command whose attempt 1 belongs to this job."""

    def wants(command=RECORD, job_id="7"):
        spec = Spec(slurm=Slurm(restart="requeue"), notify=Notify(command))
        run.spec.write_text(spec.to_json())
        me = run_lock.this_process(job_id)
        run_lock.claim(run, me, 1)
        run_files.opened(run, 1)
        return run, me

    return wants


def held(run):
    """Call the hook as the core does once a run is held."""
    hooks.end(run, replace(fact_reader.read_newest(run), result=Result("held")), None)


def said(run):
    path = run.path / "said"
    return path.read_text().split("|")[:-1] if path.exists() else []


def test_a_complete_run_notifies_once_after_its_result(wanting):
    run, me = wanting(f"test -s result.json && {RECORD}")
    write_json(run.attempt(1).outcome, {"status": "completed", "global_step": 5})
    assert close_module.close(run, me, 1)[0].action is Action.DONE
    assert said(run) == ["completed", "", run.run_id, str(run.path), str(run.path)]


@pytest.mark.parametrize("job_id", ["7", None])
def test_a_held_run_notifies_with_its_reason(wanting, job_id):
    run, me = wanting(job_id=job_id)
    run_files.failed(run.attempt(1), 0, 5.0, "SpecError: no such key", would_repeat=True)
    assert close_module.close(run, me, 1)[0].action is Action.HOLD
    assert said(run)[0] == "held" and "no such key" in said(run)[1]


def test_a_requeue_and_a_retry_do_not_notify(wanting, fake_slurm):
    run, me = wanting()
    run_files.failed(run.attempt(1), 0, 5.0)
    assert close_module.close(run, me, 1)[0].action is Action.RETRY
    run.attempt(1).rank_error(0).unlink()
    run_files.node(run.attempt(1), 0, (5.0, "SIGTERM"))
    assert close_module.close(run, me, 1)[0].action is Action.REQUEUE
    assert said(run) == []


@pytest.mark.parametrize("command", ["exit 3", "no-such-command", "kill -9 $$"])
def test_a_command_that_fails_changes_nothing(wanting, command, capfd):
    run, me = wanting(command)
    write_json(run.attempt(1).outcome, {"status": "completed", "global_step": 5})
    assert close_module.close(run, me, 1)[0].action is Action.DONE
    assert read_json(run.result)["status"] == "completed" and not run.owner.exists()
    assert "notify.command failed with exit code" in capfd.readouterr().err


def test_a_command_that_does_not_end_is_killed_with_its_children(wanting, capfd, monkeypatch):
    run, _ = wanting("sleep 1000 & echo $! >pid; wait")
    monkeypatch.setattr(hooks, "LIMIT_S", 3.0)
    began = time.monotonic()
    held(run)
    assert time.monotonic() - began < 30
    assert "was ended after 3 s" in capfd.readouterr().err
    pid = int((run.path / "pid").read_text())
    wait_for(lambda: not is_running(pid))


def test_its_output_is_not_that_of_the_command(wanting, capfd):
    run, _ = wanting("echo said")
    held(run)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "said\n")


def test_the_command_can_end_its_own_processes(wanting):
    """The batch script's commands block the stop signals, and bash would inherit that."""
    run, _ = wanting("sleep 1000 & kill -TERM $!; wait $!; echo $? >code")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        held(run)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (run.path / "code").read_text() == "143\n"
