"""Writes to job.log what an attempt ended with: damaged checkpoints, the first failure."""

from __future__ import annotations

import contextlib

from jobs.attempt.decision import Evidence
from jobs.attempt.interpret import AttemptFacts, first_error, newly_quarantined
from jobs.console import say
from jobs.records import RankError
from jobs.rundir import RunDir

LOG_LINES = 15


def report_quarantine(run_dir: RunDir, found: AttemptFacts) -> None:
    """Name each checkpoint that this attempt found damaged, and why, in job.log."""
    for name in newly_quarantined(found):
        aside = run_dir.checkpoints / name
        reason = "the reason is in rank 0's log"
        with contextlib.suppress(OSError):  # it may be no directory, or written on a full disk
            text = (aside / "REASON").read_text(encoding="utf-8", errors="replace")
            reason = next(iter(text.splitlines()), reason)
        say(f"attempt {found.attempt}: a damaged checkpoint was put aside, {aside}: {reason}")


def report_error(run_dir: RunDir, found: AttemptFacts, evidence: Evidence) -> None:
    """Show the first failure and its traceback in job.log."""
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
        say(first_failure(failed, evidence, str(log)))


def first_failure(failed: RankError, evidence: Evidence, log: str) -> str:
    """The text about the first failure; `failed`: the record nearest to its cause.

    A rank that only lost its peer is no cause: the attempt's own reason stands first, without that
    rank's traceback.
    """
    where = f"rank {failed.rank} on {failed.host}"
    if failed.caused_by_peer:
        return f"first failure: {evidence.error}\n{where} lost its peer by it, log {log}"
    text = f"first failure: {where}, log {log}\n"
    return text + (failed.traceback or failed.error).rstrip()
