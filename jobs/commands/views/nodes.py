"""What the attempts of runs say about nodes: which ones a run does without, and their history.

Attempts without Slurm do not count: no other node takes the place of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import records
from ...attempt import suspects
from ...attempt.exclude_nodes import counted_since
from ...console import display_path
from ...errors import UserError
from ...kinds import Kind
from ...log_text import first_line
from ...records.ended import AttemptRecord, Sign, read_attempts
from ...records.queued import Submission
from ...rundir import RunDir
from ...runs import interpret
from ...runs.lookup import LOCAL
from ...runs.state import RunFiles
from ...spec import Spec
from . import table, words

COLUMNS = ("NODE", "ATTEMPTS", "NODE HOURS", "FAILURES", "LAST FAILURE", "LEFT OUT UNTIL")


@dataclass(frozen=True)
class LeftOut:
    """A node that a run does without. until: seconds since the epoch."""

    sign: Sign
    until: float

    def __str__(self) -> str:
        return f"{self.sign.node} until {words.date(self.until)}: {self.sign.text}"

    def as_json(self) -> dict[str, Any]:
        """Return the node as the commands print it with --json."""
        sign = self.sign
        return {"node": sign.node, "until": self.until, "kind": sign.kind, "text": sign.text}


def left_out_of(files: RunFiles) -> list[LeftOut]:
    """Return the nodes that a run does without now, newest sign first. Raises: RecordError."""
    return _left_out(files.run_dir, files.spec, _of_slurm(files.attempts))


def _left_out(run_dir: RunDir, spec: Spec, attempts: Sequence[AttemptRecord]) -> list[LeftOut]:
    if not any(each.evidence.bad_nodes for each in attempts):
        return []
    submission = records.read(Submission, run_dir.submission) or Submission()
    bad = suspects.left_out(attempts, counted_since(spec, submission))
    lasts_s = spec.slurm.suspect_hours * 3600
    return [LeftOut(each.sign, each.time + lasts_s) for each in bad.values()]


def _of_slurm(attempts: Iterable[AttemptRecord]) -> list[AttemptRecord]:
    return [each for each in attempts if not (each.job_id or "").startswith(LOCAL)]


@dataclass
class NodeHistory:
    """What the attempts of runs did on one node.

    seconds: of the attempts whose end is known. failures: signs against the node that stand.
    last: the newest of them, with its run. left_out_until: the latest end in any run.
    Times in seconds since the epoch.
    """

    name: str
    attempts: int = 0
    seconds: float = 0.0
    failures: Counter[Kind] = field(default_factory=Counter)
    last: tuple[float, Sign, RunDir] | None = None
    left_out_until: float | None = None

    def add(self, seen: suspects.DatedSign, run_dir: RunDir) -> None:
        """Count a sign against this node."""
        self.failures[seen.sign.kind] += 1
        if self.last is None or seen.time > self.last[0]:
            self.last = (*seen, run_dir)

    @property
    def order(self) -> tuple[float, float, str]:
        """Left-out nodes come first, then those that failed last."""
        last = 0.0 if self.last is None else self.last[0]
        return -(self.left_out_until or 0.0), -last, self.name

    def row(self) -> table.Row:
        """Return the texts of the columns."""
        cells = {
            "NODE": self.name,
            "ATTEMPTS": str(self.attempts),
            "NODE HOURS": f"{self.seconds / 3600:.1f}",
            "FAILURES": ", ".join(f"{n} {kind}" for kind, n in self.failures.most_common()),
        }
        if self.last is not None:
            when, sign, run_dir = self.last
            cells["LAST FAILURE"] = f"{words.date(when)} in {run_dir.run_id}: {sign.text}"
        if self.left_out_until is not None:
            cells["LEFT OUT UNTIL"] = words.date(self.left_out_until)
        return cells

    def as_json(self) -> dict[str, Any]:
        """Return the row of `status --nodes --json`; what is not known is null."""
        when, sign, run_dir = self.last or (None, None, None)
        return {
            "node": self.name,
            "attempts": self.attempts,
            "node_hours": round(self.seconds / 3600, 4),
            "failures": dict(self.failures),
            "last_failure": when,
            "last_failure_text": sign and sign.text,
            "last_failure_run_dir": run_dir and str(run_dir.path),
            "left_out_until": self.left_out_until,
        }


class _Histories(dict[str, NodeHistory]):
    """Histories by node; that of a new node is empty."""

    def __missing__(self, name: str) -> NodeHistory:
        return self.setdefault(name, NodeHistory(name))


def read_all(run_dirs: Iterable[RunDir]) -> tuple[list[NodeHistory], list[str]]:
    """Return the nodes of runs, suspected ones first, and why runs are missing that are damaged."""
    histories, problems = _Histories(), []
    for run_dir in run_dirs:
        try:
            attempts = _of_slurm(read_attempts(run_dir))
            left_out = _left_out(run_dir, Spec.read(run_dir.spec), attempts)
        except (OSError, UserError, ValueError, TypeError, KeyError) as error:
            name = display_path(run_dir.path)
            problems.append(f"{name} is not counted: {first_line(str(error))}")
            continue
        for record in attempts:
            is_end_known = record.evidence.job_state != interpret.LOST
            for name in set(record.nodes or ()):
                histories[name].attempts += 1
                if record.start is not None and is_end_known:
                    histories[name].seconds += max(0.0, record.stop - record.start)
        for seen in suspects.standing(attempts):
            histories[seen.sign.node].add(seen, run_dir)
        for each in left_out:
            history = histories[each.sign.node]
            history.left_out_until = max(each.until, history.left_out_until or 0.0)
    return sorted(histories.values(), key=lambda each: each.order), problems
