"""Lets the commands that take a run take the points of a sweep. Standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...contract.rundir import RunDir
from . import record


@dataclass(frozen=True)
class Sweep:
    """A sweep, by its real folder (jobs.hooks.Group)."""

    path: Path

    def runs(self) -> list[RunDir]:
        return record.points_of(self.path)

    def resume(self, request: Any) -> int:
        from .sweep import resume_all  # most commands only look

        return resume_all(self.path, request)


def group(text: str) -> Sweep | None:
    """Return the sweep that a user means by its folder, its id or its job array's id."""
    folder = record.find(text)
    return None if folder is None else Sweep(folder)
