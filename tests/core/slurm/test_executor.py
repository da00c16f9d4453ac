"""submitit's executor runs a given sbatch command line as it is."""

import errno
import os

import pytest
import submitit.core.utils

from slurm_job_kit.jobs.base.errors import FailedError
from slurm_job_kit.jobs.slurm import ask, executor

HOSTILE = "a 'b' \"c\" $(touch pwned) `d` %j * --wrap=e ü\nline"
TEXT = "#!/bin/sh\ntrue\n"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "ddp.sbatch"
    path.write_text(TEXT)
    return path


@pytest.fixture
def submit(tmp_path, script):
    (tmp_path / "submitit").mkdir()

    def call(*options, environ=None):
        argv = ["sbatch", *options, str(script), "/runs/1"]
        return executor.submit(argv, environ or os.environ, tmp_path / "submitit")

    return call


def test_each_argument_reaches_sbatch_unchanged(fake_slurm, submit, script, tmp_path):
    assert submit(f"--comment={HOSTILE}", "--nodes=2") == "4711"
    assert fake_slurm.argv == [f"--comment={HOSTILE}", "--nodes=2", str(script), "/runs/1"]
    assert not list(tmp_path.rglob("pwned"))


def test_sbatch_gets_the_given_environment_and_this_process_keeps_its_own(
    fake_slurm, submit, monkeypatch, tmp_path
):
    monkeypatch.setenv("HIDDEN", "1")
    before = dict(os.environ)
    submit(environ={"PATH": os.environ["PATH"], "OWN": "1"})
    seen = [line.partition("=")[0] for line in fake_slurm.env]
    assert "OWN=1" in fake_slurm.env and "HIDDEN" not in seen
    assert dict(os.environ) == before
    # submitit keeps a copy of the batch script.
    files = [path for path in (tmp_path / "submitit").iterdir() if not path.is_symlink()]
    assert [path.read_text() for path in files] == [TEXT]


@pytest.mark.parametrize(
    "error, told",
    [
        ("Unable to contact slurm controller (connect failure)", "nothing is queued"),
        ("Unable to contact slurm controller (receive failure)", "job may be queued"),
    ],
)
def test_a_missing_answer_is_no_refusal(fake_slurm, submit, error, told):
    fake_slurm.refuse(1, f"sbatch: error: Batch job submission failed: {error}")
    with pytest.raises(FailedError, match=told) as caught:
        submit()
    assert "refused" not in str(caught.value) and error in str(caught.value)


def test_an_sbatch_that_crashes_may_have_queued_the_job(fake_slurm, submit):
    fake_slurm.install("sbatch", "kill -SEGV $$")
    with pytest.raises(FailedError, match="(?s)has crashed, the job may be queued") as caught:
        submit()
    assert caught.value.may_be_queued


def test_a_slow_sbatch_is_told_before_it_ends(fake_slurm, submit, monkeypatch, capfd):
    monkeypatch.setattr(ask, "SLOW_S", 0.0)
    fake_slurm.install("sbatch", "/usr/bin/sleep 0.5; echo 'Submitted batch job 4711'")
    assert submit() == "4711"
    assert "still waiting for sbatch" in capfd.readouterr().err


@pytest.mark.parametrize("missing", ["sbatch", "srun"])
def test_a_missing_client_is_an_error(fake_slurm, submit, monkeypatch, missing):
    fake_slurm.remove(missing)
    monkeypatch.setenv("PATH", str(fake_slurm.bin))
    with pytest.raises(FailedError, match="sbatch was not started, nothing is queued"):
        submit()


BANNER = "Dear users, 3 nodes are down until 2026.\nJob limit: 100\n"


# What sites and their wrappers of sbatch print; the job is 4711.
@pytest.mark.parametrize(
    "answer",
    [
        "4711;west\n",
        f"{BANNER}Submitted batch job 4711\nYour quota: 12 % of 500 GB, job 17 was the last\n",
        f"job 12 is your 3rd job today\n{BANNER}4711\n",
        f"{BANNER}sbatch: submitted batch job 4711 on cluster west\n",
    ],
)
def test_the_job_id_is_read_among_other_lines(fake_slurm, submit, answer):
    fake_slurm.answer("sbatch", answer)
    assert submit() == "4711"
    assert fake_slurm.cancelled == []


def test_a_job_that_could_not_be_cancelled_needs_its_run_directory(fake_slurm):
    fake_slurm.answer("scancel", "", "scancel: error: Socket timed out", 1)
    error = executor.cancel_unrecorded("4711", OSError(errno.ENOSPC, "No space left"))
    assert error.may_be_queued and "scancel 4711" in str(error)


def test_a_job_whose_script_cannot_be_kept_is_cancelled(fake_slurm, submit, monkeypatch):
    """The disk is full after sbatch: submitit renames its file then."""

    def full(self, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(submitit.core.utils.JobPaths, "move_temporary_file", full)
    with pytest.raises(FailedError, match="job 4711 was cancelled: .*No space left"):
        submit()
    assert fake_slurm.calls[-1] == "scancel 4711"
