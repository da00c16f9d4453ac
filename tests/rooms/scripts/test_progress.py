"""Whether an attempt of a user's script saved something new."""

import json
import os
import shutil
from functools import partial

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.attempt import collect_evidence, decision, record_writer
from slurm_job_kit.jobs.rooms.scripts import progress
from slurm_job_kit.jobs.rundir import RunDir, append_jsonl, write_json
from slurm_job_kit.jobs.runs import checkpoint_lookup, fact_reader, interpret, run_lock
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


@pytest.mark.usefixtures("script")
def test_a_step_saved_again_is_no_progress_though_its_file_is_newer(run):
    run_files.recorded(run, checkpoint="step-00000300")
    opened_now(run, 2)
    write_json(run.saved, {"step": 200})
    (run.checkpoints / "step-200.pt").touch()
    assert not has_progress(run, 2)


def reports(run, number, first, last):
    write_json(run.progress, {"step": last})
    events = run.timeline("rank-00000")
    append_jsonl(events, {"t": 1.0, "event": "first_step", "attempt": number, "step": first})


# first and last step of the attempts before, and of this one -> whether a newer file is progress
BEGINNINGS = [
    ([(1, 100)], (1, 90), False),
    ([(1, 100)], (1, 110), True),
    ([(1, 100)], (51, 90), True),
    ([(1, 100), (51, 90)], (51, 90), False),
    ([(1, 100), (51, 90)], (81, 90), True),
    ([], (1, 90), True),
    ([(5, 5)], (5, 5), True),  # epochs, each longer than an attempt
    ([(1, 900), (901, 950), (101, 200)], (201, 300), True),  # after a start from an older save
]


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(("earlier", "now", "is_new"), BEGINNINGS)
def test_a_newer_file_of_a_script_that_begins_again_is_no_progress(run, earlier, now, is_new):
    for number, (first, last) in enumerate(earlier, 1):
        run_files.recorded(run, attempt=number, first_step=first, last_step=last)
    number = len(earlier) + 1
    opened_now(run, number)
    reports(run, number, *now)
    (run.checkpoints / "last.pt").touch()
    assert has_progress(run, number) is is_new


@pytest.mark.usefixtures("script")
def test_steps_that_a_script_counts_in_each_epoch_do_not_show_where_it_began(run):
    run_files.recorded(run, first_step=1, last_step=90)
    opened_now(run, 2)
    reports(run, 2, 1, 60)
    reports(run, 2, 1, 80)  # kit_stop.py notes where the steps went back
    (run.checkpoints / "epoch-7.pt").touch()
    assert has_progress(run, 2)


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("sees", ["nothing", "a file", "a saved step"])
def test_a_later_beginning_is_progress_only_where_the_save_before_it_was_not_seen(run, sees):
    run_files.recorded(run, first_step=1, last_step=60, checkpoint="step-00000050")
    if sees == "a file":
        (run.checkpoints / "last.pt").touch()
    if sees == "a saved step":
        write_json(run.saved, {"step": 50})
    opened_now(run, 2)
    reports(run, 2, 51, 55)
    assert has_progress(run, 2) is (sees == "nothing")


@pytest.mark.usefixtures("script")
def test_steps_before_a_resume_by_the_user_do_not_count(run):
    run_files.recorded(run, first_step=1, last_step=100, decision="hold")
    opened_now(run, 2)
    reports(run, 2, 1, 50)
    (run.checkpoints / "last.pt").touch()
    assert has_progress(run, 2)


def time_limit(run, number, write):
    """An attempt of a job of its own, up to the time limit; returns what is decided after it."""
    opened_now(run, number)
    plan = run.attempt(number).plan
    write_json(plan, json.loads(plan.read_text()) | {"job_id": str(4710 + number)})
    write(number)
    facts, me = fact_reader.read(run, number), run_lock.this_process(None)
    evidence = hooks.evidence(run, facts, me, interpret.rank_evidence(facts, "TIMEOUT"), None)
    used, budget = decision.budget_used(facts.attempts), decision.budget_of(facts.spec)
    decided = hooks.decide(facts, evidence, decision.decide(evidence, used, budget))
    record_writer.record(run, facts, evidence, decided)
    return decided


def by_job(run, number, name="last.pt"):
    path = run.work / f"out/{4710 + number}" / name
    path.parent.mkdir(parents=True)
    path.touch()


WRITES = {
    "by the job": (by_job, "each start begins at step 0: work/out/4716/last.pt has the id of"),
    "by the job in KIT_CHECKPOINT_DIR": (
        lambda run, n: (run.checkpoints / f"{4710 + n}.pt").touch(),
        "each start begins at step 0: checkpoints/4716.pt has the id of the job",
    ),
    "reported steps": (lambda run, n: reports(run, n, 1, 90 + n), "each start begins at step 0;"),
    "saved steps": (lambda run, n: write_json(run.saved, {"step": 20}), "no step above 20 was sa"),
}


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("how", WRITES)
def test_a_script_that_begins_again_is_held_at_its_time_limits(run, how):
    write, why = WRITES[how]
    for number in range(1, 6):
        assert time_limit(run, number, partial(write, run)).action == "successor"
    held = time_limit(run, 6, partial(write, run))
    assert (held.action, held.budget) == ("hold", "no_progress")
    assert held.reason.startswith(f"5 attempts without progress: {why}")


def with_log_by_job(run, number):
    by_job(run, number, "train.log")
    (run.work / "last.pt").touch()


def with_best_by_job(run, number):
    by_job(run, number, "best.pt")
    (run.work / "last.pt").touch()


def with_newest_of_all_jobs(run, number):
    """A start that reads the newest folder of any job, and saves into one of its own."""
    for path in run.work.glob(f"out/{4709 + number}/*"):
        os.utime(path, ns=(path.stat().st_mtime_ns + 1, path.stat().st_mtime_ns))
    by_job(run, number)


def by_job_with_steps(run, number):
    by_job(run, number)
    reports(run, number, 10 * number, 10 * number + 5)


def after_an_older_save(run, number):
    first, last = (1000, 9999) if number == 1 else (100 * number, 100 * number + 99)
    reports(run, number, first, last)
    write_json(run.saved, {"step": last})


CONTINUES = [
    with_newest_of_all_jobs,
    by_job_with_steps,
    lambda run, number: reports(run, number, 5, 5),  # an epoch, longer than eight attempts
    after_an_older_save,
    lambda run, number: None,  # it saves where the kit does not see it
    with_log_by_job,
    with_best_by_job,
    lambda run, number: reports(run, number, 10 * number, 10 * number + 5),
    lambda run, number: write_json(run.saved, {"step": number}),
]


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("write", CONTINUES)
def test_a_script_that_continues_is_not_held_at_its_time_limits(run, write):
    for number in range(1, 9):
        assert time_limit(run, number, partial(write, run)).action == "successor"


@pytest.mark.usefixtures("script")
def test_the_hold_after_crashes_names_that_each_start_begins_again(run):
    for number in (1, 2):
        run_files.recorded(run, attempt=number, first_step=1, last_step=90)
    opened_now(run, 3)
    reports(run, 3, 1, 90)
    facts, me = fact_reader.read(run, 3), run_lock.this_process(None)
    evidence = collect_evidence.of_ended(run, facts, me, (), 0)
    used, budget = decision.budget_used(facts.attempts), decision.budget_of(facts.spec)
    held = hooks.decide(facts, evidence, decision.decide(evidence, used, budget))
    assert held.action == "hold" and held.reason.startswith("3 crashes within 24 hours")
    assert held.reason.endswith("; each start begins at step 0")


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


# text of the script, report -> whether its exit with 0 after a Ctrl-C is the end of a local run
AFTER_CTRL_C = [
    ("print(1)", None, "done"),
    ("from kit_stop import Stop", None, "hold"),
    ("import os\nos.environ['KIT_STOP_FILE']", None, "hold"),
    ("print(1)", {"step": 5, "total": 9}, "hold"),
]


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(("text", "report", "action"), AFTER_CTRL_C)
def test_a_script_that_cannot_see_a_ctrl_c_and_exits_with_0_is_complete(run, text, report, action):
    shutil.rmtree(run.code, ignore_errors=True)
    run.code.mkdir()
    (run.code / "x.py").write_text(text)
    folder = opened(run, 1, job_id="local-1")
    for number in range(2):
        run_files.node(folder, number, (1.0, "SIGTERM"))
    folder.stop_requested.touch()
    if report:
        write_json(run.progress, report)
    facts, me = fact_reader.read(run, 1), run_lock.this_process(None)
    evidence = hooks.evidence(run, facts, me, interpret.rank_evidence(facts, "LOCAL"), None)
    used, budget = decision.budget_used(facts.attempts), decision.budget_of(facts.spec)
    assert decision.decide(evidence, used, budget).action == action
    on_slurm = hooks.evidence(run, facts, me, interpret.rank_evidence(facts, "RUNNING"), None)
    assert on_slurm.outcome == "stopped"
    run.spec.write_text(Spec(launch=Launch(script="x.py", stop_signal="TERM")).to_json())
    facts = fact_reader.read(run, 1)
    evidence = hooks.evidence(run, facts, me, interpret.rank_evidence(facts, "LOCAL"), None)
    assert evidence.outcome == "stopped"
