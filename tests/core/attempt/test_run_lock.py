"""Exactly one job may write to a run directory, and another one once that job is dead."""

import errno
import os
import subprocess
from dataclasses import asdict, replace

import pytest

from slurm_job_kit.jobs.base.errors import FailedError
from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.runs import run_lock
from slurm_job_kit.jobs.runs.run_lock import OwnedError
from slurm_job_kit.jobs.slurm import ask
from slurm_job_kit.jobs.slurm.job_list import Liveness
from tests.core.run_files import write_json


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


@pytest.fixture
def dead(run):
    """A dead owner of the run."""
    gone = replace(run_lock.this_process(None), job_id="local-gone", pid_start="1")
    run_lock.claim(run, gone, 1)
    return gone


def test_a_claim_says_who_and_which_attempt(run):
    me = run_lock.this_process(None)
    run_lock.claim(run, me, 3)
    assert run_lock.is_owned_by_start(run, me)
    assert read_json(run.owner)["attempt"] == 3
    assert os.listdir(run.path) == ["owner.json"]


def test_an_owner_that_evicts_at_the_same_moment_wins(run, dead, monkeypatch):
    winner = replace(run_lock.this_process(None), job_id="local-winner")
    loser = replace(winner, job_id="local-loser")

    def dies_just_now(*_):
        monkeypatch.undo()
        run_lock.claim(run, winner, 2)
        return Liveness(False)

    monkeypatch.setattr(run_lock, "life_of", dies_just_now)
    with pytest.raises(OwnedError, match="just now"):
        run_lock.claim(run, loser, 2)
    assert run_lock.is_owned_by_start(run, winner)


def test_an_owner_that_is_being_evicted_is_no_crash(run, dead, monkeypatch):
    monkeypatch.setattr(run_lock, "life_of", lambda *_: Liveness(bool(run.owner.unlink())))
    with pytest.raises(OwnedError, match="just now"):
        run_lock.claim(run, run_lock.this_process(None), 2)


def test_a_pid_that_was_given_out_again_is_no_living_owner():
    me = run_lock.this_process(None)
    boot, ticks = me.pid_start.split()
    starts = {f"{boot} 1": False, f"another-boot {ticks}": False, f" {ticks}": True, " 1": False}
    for start, is_alive in {me.pid_start: True, **starts}.items():  # " 1": without its boot
        assert run_lock.life_of(replace(me, pid_start=start)).is_alive is is_alive


def test_a_process_that_has_ended_and_is_not_waited_for_is_no_living_owner():
    with subprocess.Popen(["true"]) as process:
        owner = run_lock.process(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert run_lock.life_of(owner).is_alive is False


def test_a_process_of_another_user_that_proc_does_not_show_may_live():
    """The site may hide it (hidepid)."""
    other = replace(run_lock.this_process(None), uid=os.getuid() + 1)
    assert run_lock.life_of(other).is_alive is True
    assert run_lock.life_of(replace(other, pid_start="hidden")).is_alive is None


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ({}, "job local-x is still running it"),
        ({"host": "elsewhere"}, "owns it on elsewhere, and this host cannot"),
    ],
)
def test_an_owner_that_may_live_refuses(run, host, words):
    first = replace(run_lock.this_process(None), job_id="local-x", **host)
    run_lock.claim(run, first, 1)
    with pytest.raises(OwnedError, match=words):
        run_lock.claim(run, run_lock.this_process(None), 2)
    assert run_lock.is_owned_by_start(run, first)


def test_a_job_that_nobody_can_ask_about_is_not_replaced(run, fake_slurm, monkeypatch):
    monkeypatch.setattr(ask, "PATIENCE_S", 0.0)
    run_lock.claim(run, run_lock.this_process("7"), 1)
    fake_slurm.answer("scontrol", error="Unable to contact slurm controller", status=1)
    with pytest.raises(OwnedError, match="does not answer whether job 7 still runs"):
        run_lock.claim(run, run_lock.this_process("8"), 2)
    fake_slurm.answer("scontrol", "   JobState=FAILED Reason=NonZeroExitCode")
    run_lock.claim(run, run_lock.this_process("8"), 2)


def started_again(job_id, restart_count):
    return replace(run_lock.this_process(job_id), restart_count=restart_count)


def test_a_start_of_a_job_is_known_by_slurms_count(monkeypatch):
    assert run_lock.this_process("7").restart_count == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert run_lock.this_process("7").restart_count == 3
    assert run_lock.this_process(None).restart_count == 0


def test_the_start_before_a_requeue_can_neither_claim_nor_release(run):
    before, now = started_again("7", 0), started_again("7", 1)
    run_lock.claim(run, before, 1)
    run_lock.claim(run, now, 2)
    with pytest.raises(OwnedError, match="job 7 was started again meanwhile"):
        run_lock.claim(run, before, 3)
    run_lock.release(run, before)
    assert run_lock.is_owned_by_start(run, now)
    for me, attempt in ((before, 1), (now, 1)):
        with pytest.raises(OwnedError, match="superseded"):
            run_lock.check_owned(run, me, attempt)


def test_an_earlier_start_cannot_take_the_lock_of_a_later_one(run):
    before, now = started_again("7", 0), started_again("7", 1)
    run_lock.claim(run, before, 1)
    lock = run.owner.with_name(f".owner-after-{read_json(run.owner)['token']}")
    write_json(lock, asdict(now) | {"attempt": 2, "token": "later"})
    with pytest.raises(OwnedError, match="another job took this run just now"):
        run_lock.claim(run, before, 2)


@pytest.mark.parametrize("num_dead", [1, 2])
def test_who_dies_while_it_replaces_an_owner_is_replaced_too(run, dead, num_dead):
    present = read_json(run.owner)
    for _ in range(num_dead):
        lock = run.owner.with_name(f".owner-after-{present['token']}")
        present = present | {"job_id": "local-also-gone", "token": f"{present['token']}-next"}
        write_json(lock, present)
    me = run_lock.this_process(None)
    run_lock.claim(run, me, 2)
    assert run_lock.is_owned_by_start(run, me)
    assert os.listdir(run.path) == ["owner.json"]


def test_who_replaces_an_owner_right_now_is_left_alone(run, dead):
    busy = asdict(replace(run_lock.this_process(None), job_id="local-busy"))
    lock = run.owner.with_name(f".owner-after-{read_json(run.owner)['token']}")
    write_json(lock, busy | {"attempt": 2, "token": "x"})
    with pytest.raises(OwnedError, match="just now"):
        run_lock.claim(run, run_lock.this_process(None), 2)
    assert run_lock.is_owned_by_start(run, dead)


@pytest.mark.parametrize(
    ("name", "has_owner"), [("link", False), ("link", True), ("replace", True)]
)
def test_a_call_whose_answer_was_lost_is_a_claim(run, request, monkeypatch, name, has_owner):
    if has_owner:
        request.getfixturevalue("dead")
    call = getattr(os, name)

    def repeated(*args):
        call(*args)
        if name == "link" or run.owner in args:
            call(*args)

    monkeypatch.setattr(os, name, repeated)
    run_lock.claim(run, run_lock.this_process(None), 2)
    assert run_lock.is_owned_by_start(run, run_lock.this_process(None))


@pytest.mark.parametrize(
    ("number", "way"),
    [(errno.ENOSPC, "df -i the inodes, quota -s yours.;"), (errno.EIO, "repair the disk")],
)
def test_what_keeps_the_record_from_the_disk_has_its_own_way_out(run, number, way):
    me = run_lock.this_process("7")
    with pytest.raises(FailedError, match=way), run_lock.release_on_disk_error(run, me):
        raise OSError(number, os.strerror(number))
