"""The command clean: what it deletes, and above all what it never deletes."""

import os
import shutil
import subprocess
import time

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.base import procfs
from slurm_job_kit.jobs.base.files import relink
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.queued import Submission, Successor
from slurm_job_kit.jobs.contract.records.training import Result
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.plugins.clean import clean
from slurm_job_kit.jobs.runs import code_snapshot
from tests.core import run_files
from tests.core.commands.test_two_hosts import run as run
from tests.core.run_files import make_checkpoint, make_code, make_run, write_json
from tests.core.two_hosts import look


def age(path, days=2.0):
    """Make a folder and all below it look as old as this."""
    then = time.time() - days * 86400
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names, "."):
            os.utime(os.path.join(folder, name), (then, then), follow_symlinks=False)


def ended(here, status="completed", run_id="20260101", job_id=None, days=40.0):
    """A run that ended."""
    run = make_run(here, run_id)
    make_checkpoint(run, 10)
    records.write(run.result, Result(status, global_step=30))
    if job_id is not None:
        records.write(run.submission, Submission(("sbatch",), job_id))
    age(run.path, days)
    return run


def everything(run):
    return sorted(str(path) for path in run.path.rglob("*"))


def stays_whole(run):
    before = everything(run)
    return main(["clean", "--yes"]) == 0 and everything(run) == before


def test_without_yes_it_lists_and_deletes_nothing(here, capfd):
    run = ended(here)
    before = everything(run)
    assert main(["clean", "--days", "-1"]) == 2
    assert main(["clean"]) == 0
    printed = capfd.readouterr().out
    assert "runs/tiny/20260101" in printed
    assert "1 run and 0 copies of code; nothing is deleted yet" in printed
    assert everything(run) == before


@pytest.mark.parametrize("status", ["completed", "held", "cancelled"])
def test_a_run_that_is_over_and_old_goes_with_the_folder_of_its_name(here, status):
    run = ended(here, status)
    relink(run.path.parent / "latest", run.run_id)
    assert main(["clean", "--yes"]) == 0
    assert not run.path.parent.exists()


def test_a_run_that_is_young_or_never_started_stays(here):
    young, never = ended(here, run_id="a", days=2), make_run(here, "b")
    age(never.path, 40)
    assert main(["clean", "--yes"]) == 0
    assert young.path.exists() and never.path.exists()
    assert main(["clean", "--yes", "--days", "1"]) == 0
    assert not young.path.exists() and never.path.exists()


def test_a_named_run_goes_at_any_age_and_no_other(here):
    run, other = ended(here, run_id="a", days=0), ended(here, run_id="b")
    assert main(["clean", "a", "--yes"]) == 0
    assert not run.path.exists() and other.path.exists()


def test_a_run_and_code_of_another_user_stay(here, monkeypatch, capfd):
    run, code = ended(here), here / "runs/.code" / ("0" * 64)
    code.mkdir(parents=True)
    age(code, 40)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert main(["clean", "--yes"]) == 0
    assert run.path.exists() and "it belongs to user " in capfd.readouterr().err
    assert code.exists()


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
@pytest.mark.parametrize("is_successor", [False, True])
def test_a_run_with_a_job_in_the_queue_stays_whole(slurm, here, state, is_successor):
    run = ended(here, job_id="12")
    if is_successor:
        records.write(run.successor, Successor("13", "12"))
    slurm.set_state("13" if is_successor else "12", state)
    assert stays_whole(run)


def test_a_run_that_trains_on_this_machine_stays_whole(here):
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        try:
            run = ended(here)
            owner = {"job_id": f"local-x-{process.pid}", "host": os.uname().nodename}
            began = procfs.start_of(process.pid)
            write_json(run.owner, run_files.claim(**owner, pid=process.pid, pid_start=began))
            assert stays_whole(run)
        finally:
            process.kill()


def test_without_an_answer_of_slurm_a_run_with_a_job_stays(slurm, here, capfd):
    run = ended(here, job_id="12")
    slurm.answer("squeue", error="Unable to contact slurm controller", status=1)
    assert main(["clean", "--yes"]) == 0
    assert run.path.exists() and "Slurm does not answer" in capfd.readouterr().err
    slurm.answer("squeue")
    assert main(["clean", "--yes"]) == 0
    assert not run.path.exists()


def test_a_run_that_was_resumed_after_slurm_was_asked_stays(here, monkeypatch):
    run = ended(here)
    size_of = clean.size_of

    def after_a_resume(path):
        records.write(run.submission, Submission(("sbatch",), "99"))
        return size_of(path)

    monkeypatch.setattr(clean, "size_of", after_a_resume)
    assert main(["clean", "--yes"]) == 1
    assert run.spec.exists()


def test_code_that_no_run_names_goes(here):
    run = make_run(here)
    checkout = make_code(here, run)
    named = code_snapshot.take(checkout, here / "runs", 0o750)
    relink(run.code, str(named))
    old = [here / "runs/.code" / name for name in ("0" * 64, ".copy-x", ".broken-x", ".deleted-x")]
    for unused in old:
        unused.mkdir()
    age(here / "runs/.code", 40)
    fresh = [here / "runs/.code" / name for name in ("1" * 64, ".broken-y")]
    for used in fresh:
        used.mkdir()
    planted = here / "runs/.code" / ("2" * 64)
    planted.symlink_to(checkout)
    os.utime(planted, (0, 0), follow_symlinks=False)
    assert main(["clean", "--yes"]) == 0
    assert {*(here / "runs/.code").iterdir()} == {named, planted, *fresh}


def test_the_next_clean_ends_one_that_was_killed(here, monkeypatch):
    run = ended(here)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(code_snapshot, "delete", killed)
        assert main(["clean", "--yes"]) == 130
    (left,) = (here / "runs").glob(".deleted-*")
    assert not run.path.exists()
    shutil.rmtree(left / "checkpoints")
    age(left, 40)
    assert main(["clean", "--yes"]) == 0
    assert not left.exists()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("notes.txt", "the kit makes no notes.txt in a run: move it out"),
        ("spec.json", "spec.json: not JSON"),
        ("name", "it is a run of tiny, in a folder of another name"),
    ],
)
def test_clean_keeps_what_no_run_of_the_kit_has(here, name, line, capfd):
    run = ended(here)
    if name == "name":
        run = RunDir(run.path.parent.rename(here / "runs/thesis") / run.run_id)
    else:
        (run.path / name).write_text("{")
    age(run.path, 40)
    assert stays_whole(run)
    assert f"{run.path.parent.name}/20260101 is kept: " in (err := capfd.readouterr().err)
    assert line in err


def test_clean_deletes_links_and_nothing_behind_them(here, capfd):
    precious, run = here / "precious", ended(here)
    (precious / "inner").mkdir(parents=True)
    (precious / "inner/thesis").write_text("x")
    precious.chmod(0o555)
    shutil.rmtree(run.checkpoints)
    run.checkpoints.symlink_to(precious)
    run.job_log.symlink_to(precious / "inner/thesis")
    age(run.path, 40)
    (here / "runs/.deleted-y").symlink_to(precious)
    (here / "runs/.code").symlink_to(precious)  # perhaps of several roots
    assert main(["clean", "--yes"]) == 0
    assert not run.path.exists() and (precious / "inner/thesis").exists()
    assert precious.stat().st_mode & 0o777 == 0o555
    assert f"all code is kept: {here}/runs/.code is a link" in capfd.readouterr().err
    precious.chmod(0o755)


def test_the_age_of_a_run_is_that_of_its_files_now(hosts, run):
    run_files.recorded(run)
    there = hosts.run_there(run)
    for path in (run.spec, run.submission, run.attempts, run.path):
        os.utime(path, (0, 0))
    look(hosts.there)
    assert clean.age_s(there) > 60
    run_files.recorded(run, decision="hold")
    assert clean.age_s(there) < 60
