"""The command compare: compares how two runs ended, bit for bit."""

from __future__ import annotations

from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import compare as comparison


def compare(run_dir: RunDir, reference: RunDir) -> int:
    """Print the differences of a run from the reference; returns 1 if there are any."""
    found = comparison.compare(run_dir, reference)
    print("\n".join(found) or comparison.summary(run_dir))
    return 1 if found else 0
