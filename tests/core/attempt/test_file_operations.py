"""What `attempt.close` and the next `attempt.open` ask of the file system that holds the run."""

import pytest

from slurm_job_kit.jobs.attempt import attempts, execute
from slurm_job_kit.jobs.base.stop_signals import StopSignals
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.rundir import Timeline
from slurm_job_kit.jobs.contract.spec import Slurm, Spec
from slurm_job_kit.jobs.node import interfaces
from slurm_job_kit.jobs.runs import run_lock
from tests.core import file_operations, run_files
from tests.core.run_files import write_json

NODES = ("a", "b")


@pytest.fixture
def run(tmp_path):
    """A run directory as `freeze` makes it. The repository has the one file that marks a kit."""
    run_dir = run_files.frozen(tmp_path / "runs/x/1", Spec(slurm=Slurm(nodes=2)))
    run_files.freeze_code(run_files.make_kit(tmp_path / "repository"), run_dir)
    write_json(run_dir.submission, {"argv": None, "job_id": "7"})
    write_json(run_dir.site, {"cancels_preempted": False})
    return run_dir


@pytest.fixture
def job(run, fake_slurm, monkeypatch):
    """`job(start, word, ...)`: a command of the batch script in a start of job 7.

    Returns: what it did to the files of the run directory. Code and kit are frozen.
    """
    requeue = 'echo PENDING >"$FAKE_SLURM/state.7"\necho "Requeue=1 Restarts=9"'
    fake_slurm.install("scontrol", f'{requeue} >"$FAKE_SLURM/requeue.7"', when="requeue*")
    monkeypatch.setattr(execute, "SPREAD_S", 0.0)
    monkeypatch.setattr(interfaces, "is_own", lambda _: True)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "4102444800")

    def call(start, word, attempt=0):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(start))
        fake_slurm.set_state("7", "RUNNING", f"Requeue=1 Restarts={start}")
        me = run_lock.this_process("7")
        with file_operations.watched(run.path, "code", "kit") as operations:
            if word == "open":
                assert attempts.open_next(run, me, NODES, "10.0.0.1")[1] == 0
            else:
                attempts.close_and_execute(run, me, attempt, StopSignals())
        return operations

    return call


def trained(run, attempt, *signals, code):
    """Write what agents and ranks leave after a save."""
    for rank, node in enumerate(NODES):
        run_files.node(run.attempt(attempt), rank, *signals, host=node, torchrun_exit=code, end=3.0)
        Timeline(run, f"rank-{rank:05d}", attempt).event("first_step", step=1)
    step = 50 * attempt
    (run.checkpoints / f"step-{step:08d}").mkdir()
    write_json(run.progress, {"step": step})


def stopped(run, attempt):
    trained(run, attempt, (2.0, "SIGTERM"), code=0)
    write_json(run.attempt(attempt).outcome, {"status": "stopped", "global_step": 50 * attempt})


def crashed(run, attempt):
    trained(run, attempt, code=1)
    run_files.failed(run.attempt(attempt), attempt % 2, 2.0)  # twice would exclude a node


# Where each takes 5 ms, both commands together wait 0.3 s for the run directory.
@pytest.mark.parametrize(
    ("end", "decision", "most"), [(stopped, "requeue", 71), (crashed, "retry", 82)]
)
def test_the_end_of_an_attempt_and_the_start_of_the_next_take_few_file_operations(
    run, job, end, decision, most
):
    job(0, "open")
    for attempt in (1, 2, 3):  # the number does not grow with the attempts
        end(run, attempt)
        closing = job(attempt - 1, "close", attempt)
        assert read_attempts(run)[-1].decision == decision
        opening = job(attempt, "open")
        assert run.attempt(attempt + 1).plan.is_file()
        both = closing.total() + opening.total()
        assert both <= most, f"close: {closing}\nopen: {opening}"
    assert ("open", "spec.json") in closing and ("fsync", "attempts.jsonl") in closing
    assert ("fsync", "attempt-4") in opening
