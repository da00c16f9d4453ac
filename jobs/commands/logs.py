"""The command logs: show the log of one rank, or follow it."""

from __future__ import annotations

import os
import sys

from jobs.commands.submit import shown
from jobs.errors import UserError
from jobs.rundir import RunDir


def logs(run_dir: RunDir, rank: int, is_following: bool) -> int:
    """Show a rank's log, or follow it over all attempts to come."""
    log = run_dir.rank_log(rank)
    if is_following:
        os.execvp("tail", ["tail", "-n", "+1", "-F", str(log)])
    try:
        sys.stdout.write(log.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        ranks = sorted(path.name for path in log.parent.glob("rank-*.log"))
        raise UserError(f"{shown(log)} is not there\n  hint: there is {', '.join(ranks)}") from None
    return 0
