"""Writes to job.log which checkpoints an attempt found damaged, and why it failed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from .. import log_text, shared_files
from ..console import print_line
from ..errors import HINT
from ..log_text import first_line
from ..records.nodes import RankError
from ..rundir import RunDir
from ..runs.interpret import (
    AttemptFacts,
    first_error,
    format_error,
    further_errors,
    newly_quarantined,
    unfinished_reason,
)
from .decision import Evidence

LOG_LINES = 15
TRACE_LINES = 60
MAX_FURTHER = 3


def report_quarantine(run_dir: RunDir, facts: AttemptFacts) -> None:
    """Name each checkpoint that this attempt found damaged, and why, in job.log."""
    for name in newly_quarantined(facts):
        aside = run_dir.checkpoints / name
        reason = "the reason is in rank 0's log"
        with contextlib.suppress(OSError):  # it may be no directory, or written on a full disk
            text = shared_files.read_text(aside / "REASON", errors="replace")
            reason = next(iter(text.splitlines()), reason)
        print_line(
            f"attempt {facts.attempt}: a damaged checkpoint was put aside, {aside}: {reason}"
        )


def report_error(run_dir: RunDir, facts: AttemptFacts, evidence: Evidence) -> None:
    """Write why the attempt failed to job.log, and where torchrun's own output is."""
    for line in error_lines(run_dir, facts, evidence):
        print_line(line)


def error_lines(run_dir: RunDir, facts: AttemptFacts, evidence: Evidence) -> list[str]:
    """Return why the attempt failed, and where torchrun's own output is; [] if it did not fail."""
    if evidence.outcome is not None:
        return []
    failed, attempt_dir = first_error(facts.errors), run_dir.attempt(facts.attempt)
    torchrun_logs = [
        attempt_dir.torchrun_log(rank)
        for rank, agent in enumerate(facts.agents)
        if agent is not None and agent.torchrun_exit
    ]
    if failed is not None and not evidence.is_stopped_in_startup:
        lines = [first_failure(failed, evidence, attempt_dir.rank_log(failed.rank))]
        further = further_errors(facts.errors)
        lines += [
            f"failed after it: {first_line(format_error(each))}" for each in further[:MAX_FURTHER]
        ]
        if len(further) > MAX_FURTHER:
            more = len(further) - MAX_FURTHER
            lines.append(f"failed after it: {more} more ranks, see {attempt_dir.path}")
    elif evidence.would_repeat or facts.agent_errors or unfinished_reason(facts):
        lines = [f"first failure: {evidence.error}"]
    elif evidence.signals or evidence.is_stopped_in_startup:
        lines = [without_outcome(facts)]
    else:
        rank_logs = shared_files.files_in(attempt_dir.path, "rank-*.log")
        lines = [without_record(rank_logs, torchrun_logs)]
    if torchrun_logs:
        lines.append(f"torchrun's own output: {torchrun_logs[0]}")
    return lines


def without_outcome(facts: AttemptFacts) -> str:
    """Return what a stop found that no rank answered by a saved state."""
    if facts.spec.launch.is_trainer:
        return "the stop came before the ranks had anything to save"
    return "the script reported no save after the stop (kit_stop.py): it goes on from its last save"


def without_record(rank_logs: Sequence[Path], torchrun_logs: Sequence[Path]) -> str:
    """Return the end of the first log that shows an error, where no rank wrote an error record."""
    for log in (*rank_logs, *torchrun_logs):
        text = log_text.read_end(log).text
        if "Traceback" in text or "error: " in text:  # such as a disk without room for a record
            return end_of(log)
    return "no rank wrote an error record, and no log of a rank or of torchrun shows an error"


def end_of(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join([f"the end of {log}:", *log_text.read_end(log, LOG_LINES).lines])


def first_failure(failed: RankError, evidence: Evidence, log: Path) -> str:
    """Return the text about the first failure. `failed`: the error record nearest to its cause.

    A rank that only lost its peer is not the cause: the text begins with the attempt's own error
    then, and has no traceback of that rank.
    """
    where = f"rank {failed.rank} on {failed.host}"
    if failed.caused_by_peer and evidence.error != format_error(failed):
        return f"first failure: {evidence.error}\n{where} lost its peer because of it, log {log}"
    text = f"first failure: {where}, log {log}\n"
    if failed.exit_code is not None and not failed.traceback:  # what did the script print?
        return f"first failure: {format_error(failed)}\n{end_of(log)}"
    if not failed.traceback:
        return text + failed.error
    words, _, hint = failed.error.partition(HINT)  # the traceback does not have these
    _, named, cause = words.partition("\n  cause: ")
    more = [f"  cause: {cause}" if named else "", f"  hint: {hint}" if hint else ""]
    trace = log_text.on_a_screen(failed.traceback, TRACE_LINES)
    return "\n".join(filter(None, [text + trace, *more]))
