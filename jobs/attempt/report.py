"""What the job's log says of an attempt that ended: damaged checkpoints, the first failure."""

from __future__ import annotations

import contextlib

from jobs.attempt.decision import Evidence
from jobs.attempt.interpret import AttemptFacts, first_error, newly_quarantined
from jobs.console import say
from jobs.rundir import RunDir

LOG_LINES = 15


def report_quarantine(run_dir: RunDir, found: AttemptFacts) -> None:
    """Name each checkpoint that this attempt found damaged, and why, in the job's log."""
    for name in newly_quarantined(found):
        aside = run_dir.checkpoints / name
        reason = "rank 0's log says why"
        with contextlib.suppress(OSError):  # it may be no directory, or written on a full disk
            text = (aside / "REASON").read_text(encoding="utf-8", errors="replace")
            reason = next(iter(text.splitlines()), reason)
        say(f"attempt {found.attempt}: a damaged checkpoint was put aside, {aside}: {reason}")


def report_error(run_dir: RunDir, found: AttemptFacts, evidence: Evidence) -> None:
    """Show the first failing rank's traceback in the job's log."""
    failed = first_error(found.errors)
    if evidence.outcome is None and failed is None:
        for log in sorted(run_dir.attempt(found.attempt).path.glob("rank-*.log")):
            text = log.read_text(encoding="utf-8", errors="replace")
            if "Traceback" in text or "error: " in text:  # the disk had no room for a record
                last = "\n".join(text.splitlines()[-LOG_LINES:])
                say(f"the end of {log}:\n{last}")
                break
        else:
            say("no rank wrote an error record; see the output above")
    if evidence.outcome is None and failed is not None:
        log = run_dir.attempt(found.attempt).rank_log(failed.rank)
        text = f"first failure: rank {failed.rank} on {failed.host}, log {log}\n"
        say(text + (failed.traceback or failed.error).rstrip())
