"""The whole batch script with a stand-in for srun: attempts, signals, killed processes."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base.stop_signals import STOP_SIGNALS
from slurm_job_kit.jobs.contract.records.ended import read_attempts
from slurm_job_kit.jobs.contract.spec import Slurm, Spec
from tests.core import run_files
from tests.core.run_files import REPOSITORY, write_json
from tests.core.waiting import wait_for

# An srun step: its process's number for a test, then the end that the test orders.
# The arguments after agent.sh begin with RUN_DIR and ATTEMPT.
SRUN = r"""
case "$*" in --help) echo --overlap; exit ;; esac
line=$*
options=${line%%/agent.sh *}
set -- ${line#*/agent.sh }
run=$1 attempt=$2
{ echo "$options"; env; cat /proc/self/status; } >"$FAKE_SLURM/srun-$attempt.seen"
echo $$ >"$FAKE_SLURM/srun-$attempt.new"
mv "$FAKE_SLURM/srun-$attempt.new" "$FAKE_SLURM/srun-$attempt"
until [ -e "$FAKE_SLURM/end-$attempt" ]; do sleep 0.05; done
code=$(cat "$FAKE_SLURM/end-$attempt")
agent='{"host": "n1", "signals": [], "torchrun_exit": '$code', "end": 1.0}'
echo "$agent" >"$run/attempt-$attempt/agent-00000.json"
completed='{"status": "completed", "global_step": 5}'
[ "$code" != 0 ] || echo "$completed" >"$run/attempt-$attempt/outcome.json"
exit "$code"
"""


class Job:
    """A batch script that runs, its run directory, and the sruns that it has started."""

    def __init__(self, run_dir, slurm):
        self.run, self._slurm = run_dir, slurm
        command = ["bash", str(REPOSITORY / "slurm/ddp.sbatch"), str(run_dir.path)]
        with open(run_dir.job_log, "ab") as log:
            self.shell = subprocess.Popen(command, stdout=log, stderr=log)

    def srun(self, attempt):
        """The pid of the srun of an attempt, once it runs."""
        path = self._slurm.folder / f"srun-{attempt}"
        return int(wait_for(lambda: path.exists() and path.read_text(), path))

    def seen(self, attempt):
        """What that srun printed: its options, its environment and its status."""
        return (self._slurm.folder / f"srun-{attempt}.seen").read_text()

    def end(self, attempt, code):
        """Let the srun of an attempt end."""
        path = self._slurm.folder / f"end-{attempt}"
        path.with_suffix(".new").write_text(str(code))
        path.with_suffix(".new").rename(path)

    def wait(self):
        """The exit code and the log of the job."""
        code = self.shell.wait(100)
        return code, self.run.job_log.read_text()


@pytest.fixture
def begin(tmp_path, fake_slurm, monkeypatch):
    """Starts the batch script of a run with such a spec, as job 7 on one node."""
    jobs, slurmd = [], socket.create_server(("127.0.0.1", 0))
    fake_slurm.answer("scontrol", "localhost\n", when="show hostnames *")
    (fake_slurm.bin / "srun").write_text(f"#!/bin/sh\nFAKE_SLURM={fake_slurm.folder}\n{SRUN}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost")
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")

    def start(srun_args=()):
        slurm = Slurm(restart="requeue", nodes=1, srun_args=[*srun_args])
        run = run_files.frozen(tmp_path / "runs/first/1", Spec(slurm=slurm))
        package = run.path / "code/slurm_job_kit"
        package.mkdir(parents=True)
        for part in ("jobs", "trainer", "slurm", "slurm_job_kit/__init__.py"):
            (package / Path(part).name).symlink_to(REPOSITORY / part)
        run.kit.symlink_to("code")
        write_json(run.site, {"slurmd_port": slurmd.getsockname()[1]})
        run.setup.write_text(f"export KIT_PYTHON={shlex.quote(sys.executable)}\n")
        jobs.append(Job(run, fake_slurm))
        return jobs[-1]

    yield start
    for job in jobs:
        job.shell.kill()
        job.shell.wait()
    slurmd.close()


def test_srun_gets_the_options_of_the_script_and_a_clean_environment(begin, monkeypatch):
    monkeypatch.setenv("SRUN_DEBUG", "1")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    monkeypatch.setenv("MINE", "1")
    job = begin()
    job.srun(1)
    options, *lines = job.seen(1).splitlines()
    for option in ("--export=ALL", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"):
        assert option in options.split()
    assert f"--chdir={job.run.path}/code --cpus-per-task=3 bash" in options
    names = {line.partition("=")[0] for line in lines}
    assert {"MINE", "KIT_PYTHON"} <= names and "SRUN_DEBUG" not in names
    assert "SLURM_OOM_KILL_STEP=0" in lines
    # srun would ignore a stop signal that its parent ignores or blocks.
    stops = sum(1 << number - 1 for number in STOP_SIGNALS)
    masks = dict(re.findall(r"^(Sig(?:Ign|Blk)):\s+(\w+)$", "\n".join(lines), re.MULTILINE))
    assert [int(mask, 16) & stops for mask in masks.values()] == [0, 0]
    job.end(1, 0)
    assert job.wait()[0] == 0


def test_an_attempt_whose_srun_cannot_be_started_is_closed(begin):
    too_long = "--comment=" + 200_000 * "x"  # for an argument. Source: execve(2), MAX_ARG_STRLEN
    job = begin(srun_args=[too_long])
    code, log = job.wait()
    assert code == 1 and "attempt 1: error: srun was not started: " in log
    first, *_ = read_attempts(job.run)
    # With the name of the node, as the words of an agent: it may count against that node.
    assert re.match(r"\w+: srun was not started: ", first.reason), first.reason
    assert not job.run.owner.exists()


@pytest.mark.parametrize("name", ["USR1", "TERM", "QUIT"])
def test_a_stop_signal_of_the_batch_process_is_the_attempts(begin, fake_slurm, name):
    job = begin()
    # While Python starts, which a signal would end, or which would lose it.
    words = Path(f"/proc/{job.shell.pid}/cmdline")
    wait_for(lambda: "slurm_job_kit.jobs.attempt\0run" in words.read_text(), "no Python")
    os.kill(job.shell.pid, signal.Signals[f"SIG{name}"])
    job.srun(1)
    job.end(1, 1)
    code, log = job.wait()
    assert code == 1, log
    (record,) = read_attempts(job.run)
    assert record.evidence.signals == (f"SIG{name}",)
    assert any(" requeue " in call for call in fake_slurm.calls)


def test_stop_signals_as_the_attempts_end_keep_the_exit_code(begin):
    """Slurm signals the batch shell while it requeues a job, and at the end of a cancelled one."""
    job = begin()
    job.srun(1)
    job.end(1, 0)
    deadline = time.monotonic() + 100
    while job.shell.poll() is None and time.monotonic() < deadline:
        os.kill(job.shell.pid, signal.SIGTERM)
        time.sleep(0.001)
    code, log = job.wait()
    assert code == 0, log
    (record,) = read_attempts(job.run)
    assert (record.cause, record.decision) == ("completed", "done")
