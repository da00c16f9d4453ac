"""What job.log shows of an ended attempt: damaged checkpoints, why it failed, a slow stop."""

import contextlib
import math

from ..base import files, log_text
from ..base.console import print_line, quantity
from ..base.errors import RecordError
from ..contract.rundir import RunDir
from ..runs.evidence import format_error
from ..runs.facts import AttemptFacts
from .ending import Ending


def report_quarantine(run_dir: RunDir, attempt: int, ending: Ending) -> None:
    """Name each checkpoint that this attempt found damaged, and why, in job.log."""
    for name in ending.quarantined:
        aside = run_dir.checkpoints / name
        reason = "the reason is in rank 0's log"
        with contextlib.suppress(OSError, RecordError):  # written on a full disk?
            text = files.read_text(aside / "REASON", errors="replace")
            reason = next(iter(text.splitlines()), reason)
        what = f"attempt {attempt}: a damaged checkpoint was put aside"
        print_line(f"{what}, {aside}: {reason}")


def report_short_lead(facts: AttemptFacts) -> None:
    """Warn in job.log where a stop like this one, and a fifth more, ends after a time limit."""
    stop_s = None if facts.last is None else facts.last.times.stop_s
    lead_s = facts.spec.slurm.signal_lead_s
    if stop_s is not None and 1.2 * stop_s > lead_s:
        print_line(
            f"warning: this stop took {stop_s:.0f} s, and a time limit comes {lead_s} s after its "
            f"signal: set slurm.signal_lead_s: {30 * math.ceil(1.2 * stop_s / 30)}"
        )


def error_lines(run_dir: RunDir, attempt: int, ending: Ending) -> list[str]:
    """Return why the attempt failed, and the end of that rank's log; [] if it did not fail."""
    failed, evidence = ending.first, ending.evidence
    error = evidence.error or (None if failed is None else format_error(failed))
    is_stopped = failed is None and bool(evidence.signals)
    if evidence.outcome is not None or is_stopped or error is None:
        return []
    lines = [f"first failure: {error}"]
    if failed is None:
        return lines
    log = run_dir.attempt(attempt).rank_log(failed.rank)
    lines += [f"the end of {log}:", *log_text.last_lines(log)]
    if ending.further:
        lines.append(f"{quantity(len(ending.further), 'more rank')} failed after it")
    return lines
