"""Adds up the spans of a run: time by use, node hours, GPU hours, goodput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...records.ended import Action, Cause
from ...rundir import RunDir
from ...runs.state import RunPhase, RunState
from ..views.left_out import left_out_of
from . import history, spans
from .history import RunHistory
from .spans import Span, Use

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class TimeSummary:
    """Where the time of a run went. Times in milliseconds."""

    history: RunHistory
    spans: Sequence[Span]

    @property
    def run_dir(self) -> RunDir:
        return self.history.run_dir

    @property
    def wall(self) -> int:
        """From the submit to the end of the run, or to now."""
        return self.history.end - self.history.begin

    def time_of(self, *uses: Use) -> int:
        """Return the time of these uses."""
        return sum(span.length for span in self.spans if span.use in uses)

    def share_of(self, *uses: Use) -> float:
        """Return the share of these uses of the wall time, from 0 to 1."""
        return self.time_of(*uses) / self.wall if self.wall else 0.0

    @property
    def allocated(self) -> int:
        """The time in which the run had its nodes."""
        return sum(span.length for span in self.spans if span.attempt is not None)

    @property
    def node_hours(self) -> float:
        """Hours of all hosts, spare ones too; the nodes of a run without Slurm are one host."""
        return self._hours(*Use) + self.spare_hours

    @property
    def gpu_hours(self) -> float | None:
        """Hours of all GPUs that the spec asked for; None where it cannot be read."""
        spec = self.history.spec
        if spec is None:
            return None
        nodes = {e.number: len(e.nodes) + len(e.spares) for e in self.history.attempts}
        node_ms = sum(s.length * nodes[s.attempt] for s in self.spans if s.attempt is not None)
        return node_ms * spec.slurm.num_gpus / HOUR_MS

    @property
    def goodput(self) -> float | None:
        """The share of the node hours in which steps were done that count; None without nodes."""
        return self._hours(Use.TRAINING) / self.node_hours if self.node_hours else None

    def _hours(self, *uses: Use) -> float:
        """Return the node hours of these uses."""
        hosts = {each.number: len({*each.nodes}) for each in self.history.attempts}
        own = [span for span in self.spans if span.attempt is not None and span.use in uses]
        return sum(s.length * hosts[s.attempt] for s in own if s.attempt is not None) / HOUR_MS

    @property
    def spare_hours(self) -> float:
        """Hours of the nodes that waited as spare ones."""
        spares = {each.number: len(each.spares) for each in self.history.attempts}
        return (
            sum(s.length * spares[s.attempt] for s in self.spans if s.attempt in spares) / HOUR_MS
        )

    @property
    def saved_requeues(self) -> int:
        """How often the run did without a lost node in the same allocation, without a wait."""
        records = [each.record for each in self.history.attempts if each.record is not None]
        here = [each for each in records if each.evidence.has_spares]
        return sum((e.decision, e.cause) == (Action.RETRY, Cause.NODE) for e in here)

    @property
    def state(self) -> str:
        """How the run ended, or that it has not."""
        history = self.history
        if not history.is_ended:
            return "not ended" if history.attempts else "not started"
        is_open = bool(history.attempts) and history.attempts[-1].record is None
        if is_open and history.run.phase is not RunPhase.COMPLETED:
            return "lost"
        return "stopped" if history.result is None else history.result.status

    @property
    def steps_redone(self) -> int:
        """How many steps later attempts did again."""
        pairs = [
            (each.last_step, spans.redone_after(self.history, each))
            for each in self.history.attempts
        ]
        return sum(last - after for last, after in pairs if last is not None and after is not None)


def summarize(run: RunState, now: float | None = None) -> TimeSummary:
    """Return where the time of a run went. `now`: seconds since the epoch, the present by default.

    Raises: RecordError, OSError.
    """
    run_history = history.read(run, now)
    return TimeSummary(run_history, spans.spans_of(run_history))


def as_json(summary: TimeSummary) -> dict[str, Any]:
    """Return the summary of a run as `report --json` prints it; times in seconds."""
    run_dir, run_history = summary.run_dir, summary.history
    return {
        "name": run_dir.path.parent.name,
        "run_id": run_dir.run_id,
        "run_dir": str(run_dir.path),
        "state": summary.state,
        "begin": run_history.begin / 1000,
        "end": run_history.end / 1000,
        "wall_s": summary.wall / 1000,
        "seconds": {use.value: summary.time_of(use) / 1000 for use in Use},
        "allocated_s": summary.allocated / 1000,
        "node_hours": round(summary.node_hours, 4),
        "gpu_hours": None if summary.gpu_hours is None else round(summary.gpu_hours, 4),
        "spare_node_hours": round(summary.spare_hours, 4),
        "saved_requeues": summary.saved_requeues,
        "goodput": None if summary.goodput is None else round(summary.goodput, 4),
        "not_explained": round(summary.share_of(Use.NOT_EXPLAINED), 4),
        "steps_redone": summary.steps_redone,
        "left_out": [each.as_json() for each in left_out_of(run_history.run.files)],
        "attempts": [attempt_as_json(summary, each) for each in run_history.attempts],
    }


def attempt_as_json(summary: TimeSummary, attempt: history.AttemptHistory) -> dict[str, Any]:
    """Return one attempt in `report --json`."""
    own = [span for span in summary.spans if span.attempt == attempt.number]
    return {
        "attempt": attempt.number,
        "job_id": attempt.job_id,
        "nodes": list(attempt.nodes),
        "start": attempt.start / 1000,
        "seconds": sum(span.length for span in own) / 1000,
        "first_step": None if attempt.begin_step is None else attempt.begin_step + 1,
        "last_step": attempt.last_step,
        "cause": None if attempt.record is None else attempt.record.cause,
        "decision": attempt.decision,
    }
