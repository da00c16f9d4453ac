"""What happened when in a run: the lines of timeline/<writer>.jsonl."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base import files
from ..rundir import RunDir
from . import RecordError, decode


@dataclass(frozen=True)
class Event:
    """A line of timeline/<writer>.jsonl; each event name has fields of its own."""

    t: float  # since the epoch
    event: str
    attempt: int | None
    host: str | None = None
    pid: int | None = None
    step: int | None = None
    seconds: float | None = None  # how long the evaluation or save took
    stall_s: float | None = None  # of a save: how long the training waited for it


def read_events(path: Path) -> list[Event]:
    """Return the events of a timeline, without the lines that are none. Raises: RecordError.

    An attempt that was cut off may write into the middle of its successor's lines.
    """
    events = []
    with contextlib.suppress(FileNotFoundError):
        for line in files.lines_of(path):
            with contextlib.suppress(RecordError):
                events.append(decode(Event, files.parse_json(line, path), "", is_lenient=True))
    return events


class Timeline:
    """Wall-clock events of one writer, `timeline/<writer>.jsonl`."""

    def __init__(self, run_dir: RunDir, writer: str, attempt: int | None = None) -> None:
        self._path = run_dir.timeline(writer)
        self._attempt = attempt

    def event(self, name: str, **fields: Any) -> None:
        """Append `{"t": seconds since the epoch, "event": name, ...}`. Raises: OSError."""
        record = {"t": round(time.time(), 3), "event": name, "attempt": self._attempt, **fields}
        files.append_jsonl(self._path, record)
