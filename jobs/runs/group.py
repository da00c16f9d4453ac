"""What the core knows of runs that a plugin made together."""

from pathlib import Path
from typing import Any, Protocol

from ..contract.rundir import RunDir


class Group(Protocol):
    """Runs that a plugin made together, in a folder of their own."""

    @property
    def path(self) -> Path:
        """The real folder."""

    def runs(self) -> list[RunDir]:
        """Return the run directories, in their order."""

    def resume(self, request: Any, as_json: bool) -> int:
        """Continue the runs; returns the exit code. request: of the command resume."""
