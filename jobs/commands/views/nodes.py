"""Which nodes a run does without, and until when.

Attempts without Slurm do not count: no other node takes the place of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.attempt import suspects
from slurm_job_kit.jobs.attempt.exclude_nodes import counted_since
from slurm_job_kit.jobs.commands.views import words
from slurm_job_kit.jobs.records.ended import AttemptRecord, Sign
from slurm_job_kit.jobs.records.queued import Submission
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs.lookup import LOCAL
from slurm_job_kit.jobs.runs.state import RunFiles
from slurm_job_kit.jobs.spec import Spec


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
