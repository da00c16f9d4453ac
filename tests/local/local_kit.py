"""A kit that runs locally: real processes in a separate runs root, and how to find them."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.attempt import record_writer
from slurm_job_kit.jobs.attempt.decision import COMPLETED
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.runs import fact_reader

REPOSITORY = Path(__file__).resolve().parents[2]
FOREIGN = ("KIT_", "SLURM_", "SBATCH_", "PYTHONPATH")


def write_result(run: RunDir, attempt: int) -> None:
    """Write result.json after an attempt that completed the run, as `attempt.close` does."""
    record_writer.write_result(run, fact_reader.read(run, attempt), COMPLETED)


class Kit:
    """`python -m jobs` with the runs root `root`."""

    def __init__(self, root, repository=REPOSITORY):
        self.root = root
        self.repository = repository
        self.command = [sys.executable, "-m", "jobs"]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        self.env = inherited | {"KIT_RUNS": str(root), "KIT_SITE": ""}

    def start(self, *words, **options):
        """A command that runs, with its output in pipes. options: of Popen."""
        return subprocess.Popen(
            [*self.command, *map(str, words)],
            cwd=self.repository,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def end(self, process, limit_s=120):
        """(exit status, stdout, stderr) of a command; fails if it takes longer than `limit_s`."""
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"took more than {limit_s} s:\n{''.join(process.communicate())}")
        return process.returncode, stdout, stderr

    def run(self, *words):
        return self.end(self.start(*words))

    def processes(self):
        """The pids of all processes that were started for this runs root, orphans included."""
        mark = f"KIT_RUNS={self.root}".encode()
        pids = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry))
        return pids

    def kill(self):
        """End every process; returns those that existed."""
        pids = self.processes()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids
