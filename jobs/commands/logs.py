"""The command logs: show the log of one rank, or follow it."""

from __future__ import annotations

import os
import sys

from slurm_job_kit.jobs.commands.submit import shown
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.rundir import RunDir


def logs(run_dir: RunDir, rank: int, is_following: bool) -> int:
    """Print a rank's log and return 0, or become `tail -F`, which follows it over all attempts."""
    log = run_dir.rank_log(rank)
    if is_following:
        os.execvp("tail", ["tail", "-n", "+1", "-F", str(log)])
    try:
        sys.stdout.write(log.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        ranks = sorted(path.name for path in log.parent.glob("rank-*.log"))
        raise UserError(
            f"{shown(log)} does not exist\n  hint: there is {', '.join(ranks)}"
        ) from None
    return 0
