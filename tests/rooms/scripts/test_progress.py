"""Whether an attempt of a user's script saved something new."""

import os

import pytest

from slurm_job_kit.jobs.attempt import collect_evidence
from slurm_job_kit.jobs.rooms.scripts import progress
from slurm_job_kit.jobs.rundir import RunDir, write_json
from slurm_job_kit.jobs.runs import checkpoint_lookup, fact_reader, run_lock
from slurm_job_kit.jobs.spec import Launch, Spec
from tests.core import run_files
from tests.core.run_files import opened
from tests.core.two_hosts import look


@pytest.fixture
def script(run):
    run.spec.write_text(Spec(launch=Launch(script="x.py")).to_json())


def has_progress(run, number):
    facts, me = fact_reader.read(run, number), run_lock.this_process(None)
    return collect_evidence.of_ended(run, facts, me, (), 0).has_progress


def opened_now(run, number):
    progress.note_begin(run)
    opened(run, number, checkpoint=checkpoint_lookup.newest(run, True))


@pytest.mark.usefixtures("script")
def test_a_newer_file_is_progress_of_a_script_of_ones_own(run):
    (run.checkpoints / "sub").mkdir()
    for moment, name in enumerate(("z.pt", "sub/a.pt")):
        (run.checkpoints / name).touch()
        os.utime(run.checkpoints / name, (moment, moment))
    opened_now(run, 1)
    run.work.mkdir(exist_ok=True)
    (run.work / "model.pt").touch()  # no other folder counts
    assert not has_progress(run, 1)
    os.utime(run.checkpoints / "z.pt", (10, 10))
    assert has_progress(run, 1)


@pytest.mark.usefixtures("script")
def test_a_step_that_a_script_reports_as_saved_is_progress_and_a_newer_file_still_is(run):
    (run.checkpoints / "x.pt").touch()
    os.utime(run.checkpoints / "x.pt", (1, 1))
    opened_now(run, 1)
    write_json(run.saved, {"step": 100})
    assert checkpoint_lookup.newest(run, True) == "step-00000100"
    assert has_progress(run, 1)
    opened_now(run, 2)
    assert not has_progress(run, 2)
    run.saved.unlink()  # by a scratch purge
    assert not has_progress(run, 2)
    os.utime(run.checkpoints / "x.pt", (10, 10))
    assert has_progress(run, 2)
    opened_now(run, 3)
    write_json(run.saved, {"step": 110})
    assert has_progress(run, 3)


@pytest.mark.usefixtures("script")
def test_a_script_that_begins_again_has_progress_when_it_is_behind_every_earlier_save(run):
    run_files.recorded(run, checkpoint="step-00000300")
    opened(run, 2, checkpoint="step-00000100")
    for step, is_new in ((200, False), (300, False), (310, True)):
        write_json(run.saved, {"step": step})
        assert has_progress(run, 2) is is_new


def test_a_checkpoint_that_a_script_overwrites_in_place_is_progress(hosts):
    run = RunDir(hosts.here / "x/1")
    run.checkpoints.mkdir(parents=True)
    saved = run.checkpoints / "last.ckpt"
    saved.write_bytes(b"1" * 100)
    os.utime(saved, (1, 1))
    look(hosts.there)
    there = hosts.run_there(run)
    before = progress.newest_file(there)
    saved.write_bytes(b"2" * 100)
    assert str(progress.newest_file(there)) > str(before)
