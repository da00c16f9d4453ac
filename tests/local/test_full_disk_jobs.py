"""A run's disk fills up or disappears: the reason in one line, and no checkpoint is lost."""

import contextlib
import shutil
import signal
import subprocess
import threading

import pytest

from slurm_job_kit.jobs.rundir import RunDir, read_json, read_jsonl
from tests.checkout import copy_checkout
from tests.local.local_kit import wait_for
from tests.slurm.faults.harm_storage import fill

SIZE = "size=96m"  # submit needs 64 MiB free
SPEC = """
name: full
train:
  model: tests.parts:perceptron
  dataset: tests.parts:table
  objective: tests.parts:classification
  epochs: 100
  lr: 0.01
  micro_batch_size: 8
  eval_every_epochs: 50
checkpoint: {every_epochs: 5, keep_last: 99}
"""
PATIENT = """
import time
from pathlib import Path
print("there", flush=True)
while not Path("%s").exists():
    time.sleep(0.01)
Path("%s").touch()
"""
OWN = "name: full\nlaunch: {script: patient.py}\n"


@pytest.fixture
def disk(tmp_path):
    """A small separate disk for the kit's runs."""
    root = tmp_path / "runs"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", SIZE, "tmpfs", str(root)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield root
    subprocess.run(["umount", "--lazy", str(root)], check=True)


@contextlib.contextmanager
def full(disk):
    """A block in which the disk has no free block: what another process frees is taken, too.

    A save in flight frees its own blocks, and the run's end could be recorded in them.
    """
    filler, is_over = fill(disk), threading.Event()

    def refill():
        while not is_over.wait(0.001):
            fill(disk)

    thread = threading.Thread(target=refill)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        filler.unlink()


def submit(kit, text):
    config = kit.root.with_name("full.yaml")
    config.write_text(text)
    return kit.start("submit", config, "--cluster", "local")


def started(kit, *path):
    """The run directory, as soon as `path` exists in it."""
    latest = kit.root / "full/latest"
    wait_for(lambda: any(latest.glob("/".join(path))), f"no {path}")
    return RunDir(latest.resolve())


def error_line(run, stderr):
    """The one line with the reason; checks that no process of the kit broke."""
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in stderr
    if run.job_log.exists():
        assert "Traceback" not in run.job_log.read_text()
    return line


def committed(run):
    return {path.name for path in run.checkpoints.glob("step-*")}


@pytest.mark.slow
def test_a_full_disk_ends_in_one_line_and_a_resume_completes(disk, kit):
    process = submit(kit, SPEC)
    run = started(kit, "checkpoints", "step-*")
    with full(disk):
        kept = committed(run)
        status, _, stderr = kit.end(process)
        assert status == 1
        assert "No space left on device" in error_line(run, stderr)
        assert kept & committed(run), "no older checkpoint is left"

    status, _, stderr = kit.run("resume", run.run_id, "--cluster", "local")
    assert status == 0, stderr
    assert read_json(run.result)["status"] == "completed"
    loaded = [e for e in read_jsonl(run.timeline("rank-00000")) if e["event"] == "loaded"]
    assert loaded[-1]["step"] >= int(min(kept).removeprefix("step-"))


@pytest.mark.room("scripts")
def test_a_run_directory_that_vanishes_kills_no_script_and_is_told_in_one_line(tmp_path, kit):
    kit.repository = tmp_path / "copy"
    copy_checkout(kit.repository)
    (kit.repository / "patient.py").write_text(PATIENT % (tmp_path / "may_end", tmp_path / "ended"))
    process = submit(kit, OWN)
    run = started(kit, "logs", "rank-00000.log")
    wait_for(lambda: "there" in run.rank_log(0).read_text(), "the script does not run")
    shutil.rmtree(run.path)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)  # the agent's next interval, and several of the local run's
    (tmp_path / "may_end").touch()
    status, _, stderr = kit.end(process, 60)
    assert status == 1, stderr
    assert (tmp_path / "ended").exists()
    assert "the run directory is gone" in error_line(run, stderr)
