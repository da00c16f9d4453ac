"""The command clean: what it deletes, and above all what it never deletes."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from slurm_job_kit.jobs import procfs, records
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands import clean
from slurm_job_kit.jobs.commands.submit_claim import hold_claim
from slurm_job_kit.jobs.records.queued import Submission, Successor
from slurm_job_kit.jobs.records.training import Result
from slurm_job_kit.jobs.rundir import relink, write_json
from slurm_job_kit.jobs.runs import code_snapshot
from slurm_job_kit.jobs.runs.freeze import link_in_default_root
from slurm_job_kit.jobs.spec import Checkpoint, Spec, Train
from tests.unit import run_files
from tests.unit.run_files import REPOSITORY, make_checkpoint, make_code, make_run, opened

UNCOMMITTED = ".tmp-step-00000050-attempt-1"


def age(path, days=2.0):
    """Make a folder and all below it look as old as this."""
    then = time.time() - days * 86400
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names, "."):
            os.utime(os.path.join(folder, name), (then, then), follow_symlinks=False)


def ended(here, status="completed", run_id="20260101", job_id=None, days=2.0):
    """A run that ended with three checkpoints, the first one the best, and with leftovers."""
    run = make_run(here, run_id)
    for step in (10, 20, 30):
        make_checkpoint(run, step)
    (run.checkpoints / "best").write_text("step-00000010\n")
    for name in (
        "quarantined-step-00000005",
        "aside-step-00000040",
        ".tmp-step-00000050-attempt-1",
    ):
        (run.checkpoints / name).mkdir()
    (run.path / ".spec.json.4711.tmp").write_text("x")
    run.compile_cache.mkdir()
    records.write(run.result, Result(status, global_step=30))
    if job_id is not None:
        records.write(run.submission, Submission(("sbatch",), job_id))
    age(run.path, days)
    return run


def names(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


OF_COMPLETE = ["best", "latest", "step-00000010", "step-00000030"]


def everything(run):
    return sorted(str(path) for path in run.path.rglob("*"))


def test_a_dry_run_lists_and_deletes_nothing(here, capfd):
    run = ended(here)
    before = everything(run)
    assert main(["clean"]) == 0
    printed = capfd.readouterr().out
    assert "step-00000020: neither the latest nor the best" in printed
    assert "in 6 places; nothing is deleted yet" in printed and "export" in printed
    assert everything(run) == before


def test_a_complete_run_keeps_its_latest_and_best_checkpoint(here):
    run = ended(here)
    assert main(["clean", "--yes"]) == 0
    assert names(run) == OF_COMPLETE
    assert not run.compile_cache.exists() and not (run.path / ".spec.json.4711.tmp").exists()
    assert main(["compare", str(run.path), str(run.path)]) in (0, 1)
    assert main(["clean", "--yes"]) == 0


@pytest.mark.parametrize("status", ["held", "cancelled"])
def test_a_run_that_can_be_resumed_loses_only_temporary_files(here, status):
    run = ended(here, status)
    before = set(names(run))
    assert main(["clean", "--yes"]) == 0
    assert before - set(names(run)) == {UNCOMMITTED}
    assert run.compile_cache.exists()


@pytest.mark.parametrize("status", ["stopped", "completed"])
def test_a_run_without_a_result_stays_whole(here, status):
    """It crashed with its machine: a resume may need all of it."""
    run = ended(here)
    run.result.unlink()
    run_files.recorded(run)
    write_json(opened(run, 2).outcome, {"status": status, "global_step": 30})
    age(run.path)
    before = everything(run)
    assert main(["clean", "--yes"]) == 0
    assert everything(run) == before


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
@pytest.mark.parametrize("is_successor", [False, True])
def test_a_run_with_a_job_in_the_queue_stays_whole(slurm, here, state, is_successor):
    run = ended(here, job_id="12")
    if is_successor:
        records.write(run.successor, Successor("13", "12", "because"))
    slurm.enqueue("13" if is_successor else "12", here, "x")
    before = everything(run)
    assert main(["clean", "--yes"]) == 0
    assert everything(run) == before


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_run_that_plain_sbatch_queued_stays_whole(slurm, here, is_cut):
    run, never = ended(here), make_run(here, "20260102")
    age(never.path)
    slurm.enqueue("12", here, f"/x/slurm/ddp.sbatch {run.path}")
    slurm.enqueue("13", never.path.parent, f"slurm/ddp.sbatch {never.run_id}")
    if is_cut:  # Slurm 24.11 without accounting: either job may be of either run
        slurm.hide_arguments()
    before = everything(run), everything(never)
    assert main(["clean", "--yes"]) == 0
    assert (everything(run), everything(never)) == before


def test_a_run_whose_job_slurm_does_not_know_about_is_cleaned_only_with_an_answer(
    slurm, here, capfd
):
    run = ended(here, job_id="12")
    before = everything(run)
    slurm.answer("squeue", error="Unable to contact slurm controller", status=1)
    assert main(["clean", "--yes"]) == 0
    assert everything(run) == before and "Slurm does not answer" in capfd.readouterr().err
    slurm.answer("squeue")
    calls = len(slurm.calls)
    assert main(["clean", "--yes"]) == 0
    assert names(run) == OF_COMPLETE
    assert len(slurm.calls) == calls + 1


def test_a_run_that_trains_on_this_machine_stays_whole(here):
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        try:
            run = ended(here)
            owner = {"job_id": f"local-x-{process.pid}", "host": os.uname().nodename}
            began = procfs.start_of(process.pid)
            write_json(run.owner, run_files.claim(**owner, pid=process.pid, pid_start=began))
            before = everything(run)
            assert main(["clean", "--yes"]) == 0
            assert everything(run) == before
        finally:
            process.kill()


def test_a_run_that_another_command_queues_just_now_stays_whole(here, capfd):
    run = ended(here)
    with hold_claim(run):
        before = everything(run)
        script = f"import sys; sys.argv = ['', 'clean', '--yes']; sys.path[0] = '{REPOSITORY}'\n"
        script += "from slurm_job_kit.jobs.__main__ import main; raise SystemExit(main())"
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 1
        assert everything(run) == before
    assert "is submitting or cancelling it" in capfd.readouterr().err


def test_a_run_that_was_resumed_after_slurm_was_asked_stays_whole(here, monkeypatch):
    run = ended(here)
    before = set(names(run))
    delete = clean.delete

    def after_a_resume(*args):
        records.write(run.submission, Submission(("sbatch",), "99"))
        return delete(*args)

    monkeypatch.setattr(clean, "delete", after_a_resume)
    assert main(["clean", "--yes"]) == 1
    assert set(names(run)) == before


def test_checkpoints_that_the_user_or_another_run_wants_stay(here):
    kept = ended(here, run_id="a")
    kept.spec.write_text(Spec(name="tiny", checkpoint=Checkpoint(keep_every_steps=20)).to_json())
    named, other = ended(here, run_id="b"), make_run(here, "c")
    path = str(named.checkpoints / "step-00000020")
    other.spec.write_text(Spec(name="tiny", train=Train(init_from=path)).to_json())
    assert main(["clean", "--yes"]) == 0
    assert "step-00000020" in names(kept) and "step-00000020" in names(named)


def test_where_a_spec_cannot_be_read_no_checkpoint_is_deleted(here, capfd):
    run, damaged = ended(here), make_run(here, "b")
    damaged.spec.write_text("{")
    assert main(["clean", "--yes"]) == 0
    assert "step-00000020" in names(run)
    assert "all checkpoints are left alone" in capfd.readouterr().err


def test_checkpoints_of_a_users_script_stay(here):
    run = ended(here)
    text = Spec.read(run.spec).to_json().replace('"script": null', '"script": "own.py"')
    run.spec.write_text(text)
    before = set(names(run))
    assert main(["clean", "--yes"]) == 0
    assert set(names(run)) == before


def test_options_limit_what_is_deleted(here):
    old, young = ended(here, run_id="a", days=40), ended(here, run_id="b", days=2)
    never = make_run(here, "c")
    age(never.path, 40)
    assert main(["clean", "--yes", "--older-than", "30d", "--checkpoints"]) == 0
    assert names(old) == [UNCOMMITTED, *OF_COMPLETE]
    assert old.compile_cache.exists() and never.path.exists() and len(names(young)) == 8
    assert main(["clean", "b", "--yes"]) == 0
    assert names(young) == OF_COMPLETE and never.path.exists()
    assert main(["clean", "--runs", "--yes"]) == 0
    assert not never.path.exists() and old.compile_cache.exists()


@pytest.mark.parametrize("words", [["nosuch"], ["--older-than", "soon"]])
def test_bad_input_is_refused(here, words, capfd):
    ended(here)
    assert main(["clean", *words]) == 2
    assert "hint" in capfd.readouterr().err


def test_a_run_that_never_started_goes_with_its_links_and_its_code(here):
    never, other = make_run(here, "20260102"), make_run(here, "20260103")
    make_code(here, never)
    make_code(here, other, model="x = 2")
    relink(never.path.parent / "latest", never.run_id)
    (here / "runs/.jobs").mkdir()
    relink(here / "runs/.jobs/slurm-1", "../tiny/gone")
    relink(here / "runs/.jobs/slurm-2", "../tiny/20260103")
    age(never.path)
    age(here / "runs/.code")
    assert main(["clean", "--yes"]) == 0
    assert not never.path.exists() and other.path.exists()
    assert [path.name for path in (here / "runs/.code").iterdir()] == [other.code.resolve().name]
    assert os.readlink(never.path.parent / "latest") == other.run_id
    assert os.listdir(here / "runs/.jobs") == ["slurm-2"]
    assert sorted(os.listdir(here / "runs")) == [".code", ".jobs", "tiny"]


def test_a_run_that_was_frozen_just_now_stays(here):
    run = make_run(here)
    make_code(here, run)
    assert main(["clean", "--yes"]) == 0
    assert run.code.is_dir()


@pytest.mark.parametrize("root", ["runs", "elsewhere"])
def test_the_points_of_a_sweep_and_their_code_stay(here, root):
    """They have no job of their own before they start. A sweep may lie in another runs root."""
    point = make_run(here, root=root)
    make_code(here, point)
    sweep = point.path.with_name("sweep-1")
    (sweep / "points").mkdir(parents=True)
    (sweep / "points/0").symlink_to(f"../../{point.run_id}")
    (sweep / "sweep.json").write_text("{")  # damaged
    if root != "runs":
        for each in (point.path, sweep):
            link_in_default_root(each)
    for folder in {root, "runs"}:
        age(here / folder)
    assert main(["clean", "--yes"]) == 0
    assert point.code.is_dir()


def test_unused_code_and_unfinished_deletions_of_another_root_are_deleted(here):
    run = make_run(here, root="elsewhere")
    make_code(here, run)
    link_in_default_root(run.path)
    unused = here / "elsewhere/.code" / ("0" * 64)
    unused.mkdir()
    unfinished = here / "elsewhere/.deleted-x"
    unfinished.mkdir()
    write_json(run.result, {"status": "completed"})
    for folder in ("elsewhere", "runs"):
        age(here / folder)
    assert main(["clean", "--yes"]) == 0
    assert run.code.is_dir() and not unused.exists() and not unfinished.exists()


def test_the_code_that_a_run_had_before_a_resume_with_code_stays(here):
    run = ended(here)
    checkout = make_code(here, run)
    before = code_snapshot.take(checkout, here / "runs")
    (checkout / "model.py").write_text("x = 5\n")
    after = code_snapshot.take(checkout, here / "runs")
    snapshots = [
        {"code": each.name, "attempt": 1, "step": 0, "time": 1.0} for each in (before, after)
    ]
    write_json(run.provenance, {"code": after.name, "snapshots": snapshots, **PROVENANCE})
    relink(run.code, str(after))
    age(here / "runs/.code")
    assert main(["clean", "--yes"]) == 0
    assert before.is_dir() and after.is_dir()


PROVENANCE: dict[str, object] = {
    "git_sha": None,
    "git_diff": None,
    "python": "3",
    "interpreter": "x",
    "host": "x",
    "versions": {},
    "lock_sha256": None,
}


@pytest.mark.parametrize("moment", ["taken", "linked"])
def test_code_that_a_submit_takes_while_it_is_deleted_stays(here, moment, monkeypatch):
    """The submit comes after clean has looked: its copy is fresh, or its run has the link."""
    gone = make_run(here)
    checkout = make_code(here, gone)
    code = gone.code.resolve()
    shutil.rmtree(gone.path)
    age(here / "runs/.code")
    delete = clean.delete

    def during_a_submit(*args):
        if moment == "taken":
            assert code_snapshot.take(checkout, here / "runs") == code
        else:
            make_run(here, "new").code.symlink_to(code)
        return delete(*args)

    monkeypatch.setattr(clean, "delete", during_a_submit)
    assert main(["clean", "--yes"]) == 0
    assert code_snapshot.is_whole(code)


def test_a_clean_that_is_killed_leaves_whole_checkpoints_and_the_next_one_ends_it(
    here, monkeypatch
):
    run, never = ended(here), make_run(here, "never")
    make_code(here, never)
    age(never.path)
    age(here / "runs/.code")
    rmtree = shutil.rmtree
    whole: list[bool] = []

    def killed(path, *_):
        if whole:
            whole.pop()
            return rmtree(path)
        for name in ("state.pt", "spec.json", "model.py"):
            (path / name).unlink(missing_ok=True)
        raise KeyboardInterrupt

    for number in range(6):  # of folders that are deleted before the kill
        whole[:] = [True] * number
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", killed)
            main(["clean", "--yes"])
        for name in names(run):
            if name.startswith("step-"):
                assert (run.checkpoints / name / "state.pt").exists()
        assert not never.path.exists() or never.spec.exists()
        assert not never.path.exists() or code_snapshot.is_whole(never.code.resolve())
    age(here / "runs")
    assert main(["clean", "--yes"]) == 0
    assert names(run) == OF_COMPLETE and os.listdir(here / "runs/.code") == []
    assert sorted(os.listdir(here / "runs")) == [".code", "tiny"]
    assert main(["clean"]) == 0
