"""This process as a rank: its place in the world, and the files that it may write."""

import os

from ..contract import AttemptDir, RunDir
from .context import DistributedContext
from .events import Events
from .stop import StopSignal
from .watcher import Pulse


class RankProcess:
    """This rank. When it fails, `run` reads from it where to write the error record."""

    def __init__(self, stop: StopSignal, started: float, pulse: Pulse) -> None:
        self.stop, self.pulse = stop, pulse
        self.attempt = int(os.environ["KIT_ATTEMPT"]) if "KIT_ATTEMPT" in os.environ else None
        self.run_dir: RunDir | None = None
        self.attempt_dir: AttemptDir | None = None
        self.distributed = DistributedContext.from_env(os.environ)
        self.events = Events(self.distributed.rank)
        self.events.event("start", t=round(started, 3), host=self.distributed.host, pid=os.getpid())
        self.events.event("import")

    def open(self, run_dir: RunDir, attempt: int) -> None:
        """Write to a run directory from now on."""
        self.events.open(run_dir, attempt)
        self.run_dir = run_dir
        self.attempt_dir = run_dir.attempt(attempt)
