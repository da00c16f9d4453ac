"""The nodes that a run does without now, as the commands show them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ... import records
from ...records.ended import LeftOut
from ...records.queued import Submission
from ...runs.state import RunFiles
from . import words


@dataclass(frozen=True)
class _Shown:
    """What the commands show of what a room keeps in the record of an attempt."""

    left_out: tuple[LeftOut, ...] = ()


def left_out_of(files: RunFiles) -> list[dict[str, Any]]:
    """Return the nodes that a run does without now, as --json prints them; newest sign first.

    `until`: seconds since the epoch. Raises: RecordError.
    """
    rooms = () if files.last is None else files.last.evidence.rooms
    shown = [records.decode(_Shown, records.encode(each.value), each.room) for each in rooms]
    found = [each for of_room in shown for each in of_room.left_out]
    if not found:
        return []
    submission = records.read(Submission, files.run_dir.submission) or Submission()
    lasts_s = files.spec.slurm.suspect_hours * 3600
    since = max(time.time() - lasts_s, submission.nodes_taken_back or 0.0)
    return [
        {"node": each.node, "until": each.time + lasts_s, "kind": each.kind, "text": each.text}
        for each in found
        if each.time >= since
    ]


def in_words(left_out: dict[str, Any]) -> str:
    """Return `n2 until 13:10: preflight: wrong sums`."""
    return f"{left_out['node']} until {words.date(left_out['until'])}: {left_out['text']}"
