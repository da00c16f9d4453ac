"""A user's own torchrun script under the kit: its life cycle and its stop."""

import os
import signal
import subprocess

import pytest

from slurm_job_kit.jobs.base.files import read_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from tests.core.waiting import wait_for

pytestmark = pytest.mark.plugin("scripts")
# Rank 0 records each signal that reaches it, and starts a process that outlives it; rank 1 handles
# none. Both run until they may end.
UNAWARE = """
import os, signal, subprocess, sys, time
from pathlib import Path
import kit_stop  # which does not lie beside this script
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
    """Starts `text` as a user's own script, which lies in a folder of its own."""

    def start(text, stop_signal):
        (script := tmp_path / "mine/own.py").parent.mkdir()
        script.write_text(text)
        words = ("launch.nproc_per_node=2", f"launch.stop_signal={stop_signal}")
        return kit.start("submit", *words, "--cluster", "local", "--", "python", script)

    return start


def log_with(kit, words, rank=0):
    """The run directory and the text of a rank's log, as soon as the log contains `words`."""
    log = kit.root / "own/latest/logs" / f"rank-{rank:05d}.log"
    wait_for(lambda: log.exists() and words in log.read_text(), f"no {words} in {log}")
    run = RunDir((kit.root / "own/latest").resolve())
    return run, log.read_text()


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
    assert "launch.stop_signal: none" in stderr
    assert "seen [] deadline ''" in run.rank_log(0).read_text()
    # Its exit code 0 may be what a handler of SIGTERM did: a resume finds out.
    (record,) = read_jsonl(run.attempts)
    assert (record["cause"], record["evidence"]["outcome"]) == ("interrupted", "stopped")


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
