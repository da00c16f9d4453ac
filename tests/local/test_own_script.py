"""A user's own torchrun script under the kit: its life cycle and its stop."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from slurm_job_kit.jobs.base.files import read_json, read_jsonl
from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_name
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.checkout import copy_checkout
from tests.core.waiting import wait_for
from tests.local.local_kit import FOREIGN, REPOSITORY

pytestmark = pytest.mark.plugin("scripts")
EXAMPLE = REPOSITORY / "configs/own_script/train.py"
STEPS = 1500
OWN = """
name: own
slurm: {nodes: 2}
launch: {script: %s, args: [%d], stop_signal: %s}
"""
# Rank 0 records each signal that reaches it, and starts a process that outlives it; rank 1 handles
# none. Both run until they may end.
UNAWARE = """
import os, signal, subprocess, sys, time
from pathlib import Path
seen = []
if os.environ["RANK"] == "0":
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: seen.append(number))
    subprocess.Popen(["sleep", "1000"])
print(f"there {os.getpid()}", flush=True)  # at once: the reader wants both
while not Path(os.environ["KIT_STOP_FILE"]).with_name("may_end").exists():
    time.sleep(0.01)
print("seen", seen, "deadline", repr(os.environ["KIT_DEADLINE"]), flush=True)
"""
PATIENT = """
import time
from pathlib import Path
print("there", flush=True)
while not Path("%s").exists():
    time.sleep(0.01)
Path("%s").touch()
"""
# Rank 0 handles USR1 only; rank 1 handles it once rank 0 has received it twice.
LATE = """
import os, signal, sys, time
from pathlib import Path
told, seen_twice = [], Path(os.environ["KIT_STOP_FILE"]).with_name("told_twice")
def handle():
    signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
if os.environ["RANK"] == "0":
    handle()
    print("there", flush=True)
    while len(told) < 2:
        time.sleep(0.01)
    seen_twice.touch()
else:
    print("there", flush=True)
    while not seen_twice.exists():
        time.sleep(0.01)
    handle()
    while not told:
        time.sleep(0.01)
print("told", flush=True)
"""


@pytest.fixture
def submit(kit, tmp_path):
    """Starts `text` as a user's own script, in a repository that contains it."""

    def start(text, stop_signal):
        kit.repository = tmp_path / "copy"
        copy_checkout(kit.repository)
        (kit.repository / "mine").mkdir()
        (kit.repository / "mine/run.py").write_text(text)
        return submit_config(kit, OWN % ("mine/run.py", STEPS, stop_signal))

    return start


def submit_config(kit, text):
    config = kit.root.with_name("own.yaml")
    config.write_text(text)
    return kit.start("submit", config, "--cluster", "local")


def log_with(kit, words, rank=0):
    """The run directory and the text of a rank's log, as soon as the log contains `words`."""
    log = kit.root / "own/latest/logs" / f"rank-{rank:05d}.log"
    wait_for(lambda: log.exists() and words in log.read_text(), f"no {words} in {log}")
    run = RunDir((kit.root / "own/latest").resolve())
    return run, log.read_text()


def weights(checkpoint):
    state = torch.load(checkpoint, weights_only=True)
    assert state["step"] == STEPS
    return state["model"]


@pytest.mark.slow
@pytest.mark.plugin("look", "hooks")
def test_the_example_stops_resumes_and_ends_with_the_bits_of_plain_torchrun(kit, tmp_path):
    hooks = """hooks: {checkpoint: 'echo "$KIT_STEP" >>hooks', end: 'echo "$KIT_STATE" >>hooks'}"""
    process = submit_config(kit, OWN % ("configs/own_script/train.py", STEPS, "TERM") + hooks)
    run, _ = log_with(kit, "saved after step 100:")
    process.send_signal(signal.SIGINT)
    status, _, stderr = kit.end(process)
    assert status == 130, stderr
    assert "asked your script to stop: SIGTERM" in stderr
    marker = read_json(run.attempt(1).outcome)
    assert marker["status"] == "stopped"
    assert 100 <= marker["global_step"] < STEPS
    assert f"stopped after step {marker['global_step']} of {STEPS}, saved; next: " in stderr
    assert run.attempt(1).stop_requested.exists()

    status, _, stderr = kit.run("resume", run.run_id, "--cluster", "local")
    assert status == 0, stderr
    first, second = read_jsonl(run.attempts)
    assert (first["cause"], second["cause"]) == ("interrupted", "completed")
    saved = [str(e["step"]) for e in read_jsonl(run.timeline("rank-00000")) if e["event"] == "save"]
    hooked = (run.path / "hooks").read_text().split()
    assert [each for each in hooked if each != "held"] == [*saved, "completed"]
    assert saved[-1:] == [str(STEPS)]
    # kit_stop.py reports steps and checkpoints as the trainer does.
    stopped = marker["global_step"]
    assert (first["first_step"], first["last_step"]) == (1, stopped)
    assert (second["first_step"], second["last_step"]) == (stopped + 1, STEPS)
    assert (first["checkpoint"], first["evidence"]["has_progress"]) == (
        checkpoint_name(stopped),
        True,
    )
    result = read_json(run.result)
    assert (result["global_step"], result["steps_redone"]) == (STEPS, 0)
    status, stdout, _ = kit.run("status", run.run_id)
    assert status == 0
    for text in ("completed\n", f"step {STEPS}/{STEPS}\n", "loss 0.0", "attempt 2 "):
        assert text in stdout

    plain = tmp_path / "plain"
    plain.mkdir()
    # Without the kit the script must not catch signals, and must not need a file of the kit.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*torchrun, "--nproc-per-node=2", EXAMPLE, str(STEPS)],
        cwd=plain,
        env=inherited | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=100,
    )
    expected = weights(plain / "checkpoint.pt")
    resumed = weights(run.checkpoints / "checkpoint.pt")
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_an_unaware_script_is_not_signalled_and_its_exit_after_a_stop_is_no_end(kit, submit):
    process = submit(UNAWARE, "none")
    run, _ = log_with(kit, "there")
    _, text = log_with(kit, "there", rank=1)
    process.send_signal(signal.SIGINT)
    wait_for(run.attempt(1).stop_requested.exists, "no stop file")
    # As Slurm does on sites where it signals the whole tree of a step.
    os.kill(int(text.rpartition("there ")[2]), signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.5)  # the agent's next two intervals
    run.attempt(1).stop_requested.with_name("may_end").touch()
    status, _, stderr = kit.end(process)
    assert status == 130, stderr
    assert "is not told to stop" in stderr
    assert "seen [] deadline ''" in run.rank_log(0).read_text()
    # Its exit code 0 may be what a handler of SIGTERM did: a resume finds out.
    (record,) = read_jsonl(run.attempts)
    assert (record["cause"], record["evidence"]["outcome"]) == ("interrupted", "stopped")


def test_a_run_directory_that_vanishes_kills_no_script_and_is_told_in_one_line(
    kit, submit, tmp_path
):
    process = submit(PATIENT % (tmp_path / "may_end", tmp_path / "ended"), "none")
    for rank in (0, 1):
        run, _ = log_with(kit, "there", rank)
    shutil.rmtree(run.path)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)  # the agent's next interval, and several of the local run's
    (tmp_path / "may_end").touch()
    status, _, stderr = kit.end(process)
    assert status == 1 and (tmp_path / "ended").exists(), stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert "the run directory is gone" in line and "Traceback" not in stderr


@pytest.mark.slow
def test_a_second_ctrl_c_kills_a_script_that_knows_no_stop(kit, submit):
    process = submit(UNAWARE, "none")
    run, _ = log_with(kit, "there")
    process.send_signal(signal.SIGINT)
    wait_for(run.attempt(1).stop_requested.exists, "no stop file")
    process.send_signal(signal.SIGINT)
    status, _, stderr = kit.end(process)
    assert status == 130, stderr


@pytest.mark.slow
def test_usr1_reaches_a_script_that_handles_it_and_spares_one_that_does_not_yet(kit, submit):
    process = submit(LATE, "USR1")
    for rank in (0, 1):
        run, _ = log_with(kit, "there", rank)
    process.send_signal(signal.SIGINT)
    status, _, stderr = kit.end(process)
    assert status == 130, stderr
    (record,) = read_jsonl(run.attempts)
    # The script wrote no marker: it may have more steps to do.
    assert (record["cause"], record["evidence"]["outcome"]) == ("interrupted", "stopped")
