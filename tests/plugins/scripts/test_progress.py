"""Whether an attempt of a user's script saved something new."""

import json
import os

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.attempt import collect_evidence, decision, record_writer
from slurm_job_kit.jobs.base.files import append_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.plugins.scripts import progress
from slurm_job_kit.jobs.runs import evidence, fact_reader, run_lock
from tests.core import run_files
from tests.core.run_files import opened, write_json
from tests.core.two_hosts import look


@pytest.fixture
def script(run):
    run.spec.write_text(Spec(launch=Launch(script="x.py")).to_json())


def has_progress(run, number):
    facts, me = fact_reader.read(run, number), run_lock.this_process(None)
    return collect_evidence.of_ended(run, facts, me, (), 0).evidence.has_progress


def opened_now(run, number, moment=None):
    plan = opened(run, number, checkpoint=fact_reader.newest_checkpoint(run, True)).plan
    os.utime(plan, moment and (moment, moment))


@pytest.mark.usefixtures("script")
def test_a_newer_file_is_progress_of_a_script_of_ones_own(run):
    (run.checkpoints / "sub").mkdir()
    for moment, name in enumerate(("z.pt", "sub/a.pt")):
        (run.checkpoints / name).touch()
        os.utime(run.checkpoints / name, (moment, moment))
    opened_now(run, 1, 5)
    run.work.mkdir(exist_ok=True)
    (run.work / "model.pt").touch()  # no other folder counts
    assert not has_progress(run, 1)
    os.utime(run.checkpoints / "z.pt", (10, 10))
    assert has_progress(run, 1)


@pytest.mark.usefixtures("script")
def test_a_step_that_a_script_reports_as_saved_is_progress_and_a_newer_file_still_is(run):
    (run.checkpoints / "x.pt").touch()
    os.utime(run.checkpoints / "x.pt", (1, 1))
    opened_now(run, 1, 5)
    write_json(run.saved, {"step": 100})
    assert fact_reader.newest_checkpoint(run, True) == "step-00000100"
    assert has_progress(run, 1)
    opened_now(run, 2, 5)
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


def ended(run, number, job_state):
    """The facts of an attempt, its ending, and what is decided after it."""
    facts, me = fact_reader.read(run, number), run_lock.this_process(None)
    seen = hooks.evidence(run, facts, me, evidence.rank_evidence(facts, job_state), None)
    ending = decision.Ending(seen)
    used, budget = decision.history_of(facts.attempts), decision.budget_of(facts.spec)
    return facts, ending, hooks.decide(facts, ending, decision.decide(ending, used, budget))


def time_limit(run, number, write=None):
    """An attempt up to the time limit; returns what is decided after it."""
    opened_now(run, number)
    if write is not None:
        write(number)
    facts, ending, decided = ended(run, number, "TIMEOUT")
    record_writer.record(run, facts, ending, decided)
    return decided


@pytest.mark.usefixtures("script")
def test_a_script_that_shows_no_progress_is_held_after_twenty_restarts_and_again_after_a_resume(
    run,
):
    for first in (1, 22):
        for number in range(first, first + 20):
            assert time_limit(run, number).action == "successor"
        held = time_limit(run, first + 20)
        assert (held.action, held.budget) == ("hold", "max_restarts")
        assert "the kit sees no progress" in held.reason and "time limit" in held.reason


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("attempt", [1, 20, 21])
def test_a_script_that_saved_once_is_not_held_after_twenty_restarts(run, attempt):
    def save(number):
        if number == attempt:
            write_json(run.saved, {"step": number})

    for number in range(1, 23):
        assert time_limit(run, number, save).action == "successor"


@pytest.mark.parametrize(
    "spec",
    [Spec(launch=Launch(script="x.py"), slurm=Slurm(max_restarts=200)), Spec()],
    ids=["slurm.max_restarts", "the trainer"],
)
def test_twenty_restarts_hold_no_run_with_a_limit_of_its_own_and_none_of_the_trainer(run, spec):
    run.spec.write_text(spec.to_json())
    run_files.recorded(run, cause="preemption", decision="requeue")
    record = json.loads(run.attempts.read_text())
    for number in range(2, 22):
        append_jsonl(run.attempts, record | {"attempt": number})
    opened(run, 22)
    facts, ending, _ = ended(run, 22, "PREEMPTED")
    requeue = decision.Decision(decision.Action.REQUEUE, decision.Cause.PREEMPTION, "preempted")
    assert hooks.decide(facts, ending, requeue) is requeue


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
    assert progress.newest_file(there) > before
