"""The time between two periodic checkpoints: as configured, or from what saves and failures cost.

A longer interval loses more work at a failure, a shorter one stops the training more often. With a
cost C of each save and a failure rate r the sum of both losses is least at the interval
sqrt(2 C / r). Sources: Young, "A first order approximation to the optimum checkpoint interval"
(1974); Daly, "A higher order estimate of the optimum checkpoint interval" (2006).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..contract import AttemptRecord, Cause, Checkpoint, RecordError, format_duration, read_attempts
from ..process.run_handle import RankContext

FIRST_S = 10.0  # before a save was measured; also the shortest interval
LOSS_S = 60.0  # a failure loses at most this, or LOSS_SAVES times what a save takes
LOSS_SAVES = 20
# What is assumed before a run has a history of its own: one failure in its first day, and 6.5 on
# 1,000 nodes each day. Source of the latter: Kokolis et al., "Revisiting Reliability in Large-Scale
# Machine Learning Research Clusters" (2024), RSC-1.
SECONDS_PER_DAY = 86400.0
NODE_FAILURES_PER_DAY = 6.5e-3
MIN_STALL_S = 1e-3
TOLD_FACTOR = 1.5  # an interval that changes by less is not logged again


@dataclass(frozen=True)
class Failures:
    """The attempts of this run that ended without the save of a stop, and their time.

    trained_s: seconds from the opening to the record of all attempts together.
    """

    number: int = 0
    trained_s: float = 0.0
    num_nodes: int = 1

    @classmethod
    def of(cls, attempts: Iterable[AttemptRecord], num_nodes: int) -> Failures:
        """Return the failures among closed attempts."""
        known = [each for each in attempts if each.last_step is not None]
        lost = [each for each in known if each.evidence.outcome is None]
        # A lost attempt ended at an unknown time. Clocks of two hosts may differ.
        timed = [each for each in known if each.start is not None and each.cause != Cause.LOST]
        trained_s = sum(max(0.0, each.stop - (each.start or 0.0)) for each in timed)
        return cls(len(lost), trained_s, num_nodes)

    @property
    def per_s(self) -> float:
        """The failure rate: the assumed one, corrected by what this run has seen."""
        seen = (1 + self.number) / (SECONDS_PER_DAY + self.trained_s)
        return seen + self.num_nodes * NODE_FAILURES_PER_DAY / SECONDS_PER_DAY


def failures_of(context: RankContext) -> Failures:
    """Return the failures of the attempts before this one; only rank 0 reads the records."""
    if not context.distributed.is_first:
        return Failures()
    try:
        attempts = read_attempts(context.run.dir)
    except (OSError, RecordError):  # jobs.attempt reports it; here it is only an estimate
        attempts = []
    return Failures.of(attempts, context.run.spec.slurm.most_nodes)


class SaveInterval:
    """The seconds between two periodic checkpoints; infinite where none is due by the clock."""

    def __init__(self, checkpoint: Checkpoint, failures: Failures = Failures()) -> None:
        minutes = checkpoint.every_minutes
        every = (minutes, checkpoint.every_epochs, checkpoint.every_steps)
        self._failures = failures
        self._is_auto = checkpoint.interval == "auto" and not any(every)
        self._logged_s: float | None = None
        self._before: tuple[float, float] | None = None  # save_s and stall_s of the save before
        self.seconds = math.inf
        if minutes is not None:
            self.seconds = 60 * minutes
        elif self._is_auto:
            self.seconds = FIRST_S

    def record_save(self, save_s: float, stall_s: float, agreement_s: float) -> str:
        """Choose the interval after a save; return a text to log, "" if it hardly changed.

        save_s: from the start of the save to its commit. stall_s: of it, how long the training
        stopped. agreement_s: until the ranks have agreed on a save that is due.

        The cheaper of the last two saves counts; before there are two, the interval is at most
        LOSS_S.
        """
        if not self._is_auto:
            return ""
        # One save may have waited for a file server, or for the end of a suspension.
        usual_s = save_s, stall_s
        if self._before is not None:
            usual_s = min(save_s, self._before[0]), min(stall_s, self._before[1])
        self.seconds = best_interval_s(*usual_s, agreement_s, self._failures.per_s)
        if self._before is None:
            self.seconds = min(self.seconds, LOSS_S)
        self._before = save_s, stall_s
        if self._logged_s is not None and (
            1 / TOLD_FACTOR < self.seconds / self._logged_s < TOLD_FACTOR
        ):
            return ""
        self._logged_s = self.seconds
        mean, lost = format_duration(1 / self._failures.per_s, 2), self._failures.number
        return (
            f"checkpoint.interval auto: a checkpoint every {self.seconds:.0f} s (a save stops the "
            f"training for {usual_s[1]:.3f} s and takes {usual_s[0]:.1f} s; {lost} attempts of "
            f"this run ended without a save, one in {mean} is expected)"
        )


def best_interval_s(
    save_s: float, stall_s: float, agreement_s: float, failures_per_s: float
) -> float:
    """Return the interval of least loss, within the bounds of what a failure may lose.

    A failure loses the interval, the time until the ranks agree on a save, and the save that was
    in flight. With steps of many seconds it loses more: the interval has a least value.
    """
    best_s = math.sqrt(2 * max(stall_s, MIN_STALL_S) / failures_per_s)
    most_s = max(LOSS_S, LOSS_SAVES * save_s) - save_s - agreement_s
    return max(FIRST_S, save_s, min(best_s, most_s))
