"""In which state a run is: what may live is never judged as ended."""

import os
from dataclasses import asdict

import pytest

from slurm_job_kit.jobs.runs import run_lock, state
from slurm_job_kit.jobs.runs.state import RunPhase
from slurm_job_kit.jobs.slurm import job_list
from tests.core import run_files
from tests.core.fake_slurm import squeue_line
from tests.core.run_files import make_run, write_json

CONFIG = "ClusterName             = here\nPreemptType             = preempt/none\n"


@pytest.fixture
def run(slurm, here):
    """A run that was queued as job 7."""
    run = make_run(here)
    write_json(run.submission, {"argv": None, "job_id": "7"})
    return run


def died_here(run):
    """The run had a process on this machine, which is gone."""
    claim = asdict(run_lock.this_process(None)) | {"pid_start": "1", "attempt": 1}
    write_json(run.owner, claim)


@pytest.mark.parametrize("shown", ["COMPLETED", "RUNNING"])
def test_a_job_of_another_cluster_is_unknown_whatever_has_its_id_here(run, slurm, shown):
    write_json(run.submission, {"argv": None, "job_id": "7", "uid": os.getuid(), "cluster": "b"})
    slurm.answer("scontrol", CONFIG, when="show config")
    line = squeue_line("7", shown)
    slurm.answer("squeue", line.replace(f"\x1f{os.getuid()}\n", "\x1f4001\n"))
    run_state = state.read(run)
    assert run_state.phase is RunPhase.UNKNOWN
    assert run_state.life and "cluster b" in run_state.life.hint


def test_a_user_whom_the_host_does_not_know_hides_no_job(run, slurm):
    slurm.answer("squeue", squeue_line("7", "RUNNING"))
    slurm.answer("squeue", error="squeue: error: Invalid user: 4001\n", when="*--user=*")
    assert state.read(run).phase is RunPhase.RUNNING


def test_a_reason_with_a_newline_hides_no_job(run, slurm):
    slurm.answer("squeue", squeue_line("7", "PENDING", "N/A|UNLIMITED|1||a\nb"))
    (job,) = (job_list.queue() or {}).values()
    assert job.reason == "a\nb"
    slurm.answer("squeue", squeue_line("7", "PENDING", "N/A|UNLIMITED|1||a\x1fb"))
    assert job_list.queue() is None  # what cannot be read is no answer


def test_a_run_that_cannot_be_read_still_has_its_job(run, slurm, capsys):
    run.attempts.write_text("{}\n")
    slurm.set_state("7", "RUNNING")
    run_state = state.read(run)
    assert run_state.phase is RunPhase.UNREADABLE and run_state.lives["7"].is_alive


def test_a_process_that_died_says_nothing_about_a_job_that_was_queued_later(run, slurm):
    died_here(run)
    slurm.answer("squeue", status=1)
    assert state.read(run).phase is RunPhase.UNKNOWN
    slurm.answer("squeue", squeue_line("7", "TIMEOUT"))
    assert state.read(run).word == "timeout"


def test_a_process_that_lives_here_is_the_run_whatever_is_unknown_of_an_earlier_job(run, slurm):
    """Job 7 ended in another cluster; `resume --cluster local` continues the run here."""
    write_json(run.submission, {"argv": None, "job_id": "7", "uid": os.getuid(), "cluster": "b"})
    slurm.answer("scontrol", CONFIG, when="show config")
    run_lock.claim(run, run_lock.this_process(None), 2)
    run_state = state.read(run)
    assert run_state.phase is RunPhase.RUNNING and run_state.process is not None


def test_the_owner_takes_no_fact_from_the_job_that_was_queued(run):
    write_json(run.submission, {"argv": None, "job_id": "7", "uid": 5, "cluster": "b"})
    write_json(run.owner, run_files.claim())
    (job,) = state.read_files(run).jobs
    assert (job.uid, job.cluster) == (5, "b")


def test_a_run_that_was_cancelled_before_it_began_has_ended(run, slurm):
    run.cancelled.write_text("now: jobs cancel: 7\n")
    run_state = state.read(run)
    assert (run_state.phase, run_state.is_over) == (RunPhase.CANCELLED, True)
