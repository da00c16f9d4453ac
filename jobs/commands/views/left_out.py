"""The nodes that a run does without now, as the commands show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import records
from ...attempt import suspects
from ...attempt.exclude_nodes import counted_since
from ...records.ended import Sign
from ...records.queued import Submission
from ...runs.lookup import LOCAL
from ...runs.state import RunFiles
from . import words


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
    attempts = [each for each in files.attempts if not (each.job_id or "").startswith(LOCAL)]
    if not any(each.evidence.bad_nodes for each in attempts):
        return []
    submission = records.read(Submission, files.run_dir.submission) or Submission()
    bad = suspects.left_out(attempts, counted_since(files.spec, submission))
    lasts_s = files.spec.slurm.suspect_hours * 3600
    return [LeftOut(each.sign, each.time + lasts_s) for each in bad.values()]
