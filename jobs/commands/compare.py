"""The command compare: whether a run ended bitwise like another one."""

from __future__ import annotations

from jobs.rundir import RunDir
from jobs.runs.compare import compare as differences
from jobs.runs.compare import summary


def compare(run_dir: RunDir, reference: RunDir) -> int:
    """Say whether a run ended bit for bit like the reference; 1 where it is not."""
    found = differences(run_dir, reference)
    print("\n".join(found) or summary(run_dir))
    return 1 if found else 0
