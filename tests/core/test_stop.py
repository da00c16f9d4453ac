"""The stop signals of a rank, in separate processes: many signals, start-up, forked children."""

import signal
import subprocess
import sys
import time

from slurm_job_kit.jobs.base.stop_signals import STOP_SIGNALS
from slurm_job_kit.trainer.process.stop import EXIT_STOPPED_IN_STARTUP
from tests.core.run_files import REPOSITORY

PREAMBLE = """
import os, signal, sys, time
from slurm_job_kit.trainer.process import stop
stop.STARTUP_GRACE_S = 0.5
request = stop.StopSignal()
request.install()
def signal_self(number):
    os.kill(os.getpid(), number)
"""


def run_rank(text):
    """The finished process of a rank that took the stop signals first."""
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + text],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_more_signals_than_the_pipe_holds_block_no_process():
    done = run_rank("""
request.enter_loop()
for _ in range(70_000):
    signal_self(signal.SIGTERM)
print(request.requested)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_signals_in_startup_are_kept_for_the_loop():
    done = run_rank("""
stop.STARTUP_GRACE_S = 2  # busy cores may hold up what comes before the loop
for number in 12 * list(stop.STOP_SIGNALS):
    signal_self(number)
request.enter_loop()
time.sleep(1 + stop.STARTUP_GRACE_S)
print(request.requested)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_startup_that_does_not_get_to_its_loop_is_left():
    done = run_rank("""
import ctypes
signal_self(signal.SIGUSR1)
ctypes.CDLL(None).pause()  # as a rendezvous in C++, which no handler of Python's interrupts
time.sleep(60)
""")
    assert done.returncode == EXIT_STOPPED_IN_STARTUP
    *stacks, said = done.stderr.splitlines()
    assert "asked to stop during start-up" in said
    assert any('File "<string>"' in line for line in stacks)  # where it stood


def test_inherited_masks_and_dispositions_do_not_hide_a_stop():
    blocked = ", ".join(str(int(number)) for number in STOP_SIGNALS)
    done = run_rank(f"""
for number in [{blocked}]:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [{blocked}])
request.install()
request.enter_loop()
signal_self(signal.SIGUSR2)
print(request.requested)
""")
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_a_signal_to_a_forked_child_is_no_stop_of_the_rank():
    done = run_rank("""
import warnings
warnings.simplefilter("ignore")  # of Python 3.12: a fork beside threads
child = os.fork()
if child == 0:
    signal_self(signal.SIGTERM)
    os._exit(0)
os.waitpid(child, 0)
time.sleep(3 * stop.STARTUP_GRACE_S)
print(request.requested)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_a_process_that_was_suspended_got_no_signal():
    """SIGSTOP, and SIGCONT after the time of the wait is over: as scontrol suspend and resume."""
    text = """
import signal
from slurm_job_kit.jobs.base.stop_signals import AWAITED, arrived
signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
print("waits", flush=True)
while not (came := arrived(AWAITED, 0.1)):
    pass
print(came, flush=True)
"""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)  # longer than the wait, whose time runs on
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        process.send_signal(signal.SIGUSR1)
        assert process.communicate(timeout=100)[0] == f"{[signal.SIGUSR1]}\n"
