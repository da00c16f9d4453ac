"""What may watch a rank: its pulse, and calls at each step, report and save."""

from collections.abc import Mapping
from pathlib import Path


class Pulse:
    """What this rank does now, which a thread of a plugin may read at any time.

    now: a phase of the start-up, or a part of the training loop with its step. Each beat is a tuple
    of its own.
    """

    def __init__(self) -> None:
        self.now: tuple[str, int | None] = ("import", None)

    def beat(self, what: str, step: int | None = None) -> None:
        """Record that `what` begins. Costs an attribute write."""
        self.now = (what, step)


class Watcher:
    """What is called while a rank trains; here each call does nothing.

    The main thread of every rank calls each method at the same point, but `reported` and `saved`,
    which rank 0 alone calls. The training waits meanwhile. An error that a method raises ends the
    rank. A rank that fails calls nothing more.
    """

    def before_step(self, step: int) -> None:
        """Optimizer step `step`, from 1, comes next."""

    def after_step(self, step: int) -> None:
        """Optimizer step `step` is done; the device may still compute it."""

    def reported(self, step: int, values: Mapping[str, float]) -> None:
        """Rank 0 logged these values of a step: of a training or of an evaluation."""

    def saved(self, step: int, path: Path) -> None:
        """Rank 0 sees that the checkpoint of a step is committed, also that of a best evaluation.

        path: absolute; a later commit may delete it (checkpoint.keep_last).
        """

    def end(self) -> None:
        """The training is completed or stopped, everything is committed, and the marker is written.

        All ranks wait for the slowest; at a preemption Slurm's grace is still running.
        """
