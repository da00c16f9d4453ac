"""Checks whether a stop fits into the time before a job's end, from measured steps and saves."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from ..contract import AttemptPlan, SlurmSite, Spec, advised_lead_s, records
from ..process.run_handle import RunHandle
from ..process.step_agreement import CHECK_INTERVAL_S

# From the last rank's exit to the closed attempt: torchrun, agent, srun, calls of Slurm's clients.
# 2 to 8 s were measured on two busy cores, with steps and saves of milliseconds.
MARGIN_S = 10.0
AGAIN_FACTOR = 1.5
# Slurm sends the time limit's warning up to so much earlier. Source: sbatch(1), --signal.
EARLY_S = 60.0


def has_time_for_save(save_s: float, left_s: float) -> bool:
    """Return whether one more save, of `save_s`, fits into the last `left_s` seconds of a job.

    What comes after it, up to the closed attempt, gets MARGIN_S, or half of a shorter time.
    """
    return save_s <= max(left_s - MARGIN_S, left_s / 2)


class LeadTime:
    """Compares the time that a stop needs with the time that it has.

    The need is computed from the longest step, evaluation and save so far. signal_lead_s: from
    the warning to the time limit. preemption_s: from the warning to the end of a preempted job.
    kill_wait_s: from SIGTERM to the end of any other job. deadline: the end of the time limit,
    seconds since the epoch. None: there is no such limit, or it is unknown.
    """

    def __init__(
        self,
        signal_lead_s: float | None,
        preemption_s: float | None = None,
        check_steps: int | None = None,
        kill_wait_s: float = math.inf,
        deadline: float | None = None,
    ) -> None:
        self._signal_lead_s, self._preemption_s = signal_lead_s, preemption_s
        self._check_steps, self._kill_wait_s, self._deadline = check_steps, kill_wait_s, deadline
        self.last_step_s = self.last_save_s = 0.0
        self._steps = [0.0, 0.0]  # the two longest, the longer one last
        self._evaluation_s = self._save_s = self._warned_s = self._excluded_s = 0.0
        self._last_batch_s = 0.0
        self._boundary: float | None = None
        self._num_steps = 0

    @classmethod
    def of(cls, run: RunHandle) -> LeadTime:
        """Return the lead time of this attempt; without limits if it has no deadline."""
        spec: Spec = run.spec
        steps = spec.launch.stop_check_steps
        check_steps = None if steps == "auto" else int(steps)
        plan = records.read(AttemptPlan, run.dir.attempt(run.attempt).plan)
        if plan is None or plan.deadline is None:
            return cls(None, None, check_steps)
        site = records.read(SlurmSite, run.dir.site) or SlurmSite()
        lead_s, grace_s = spec.slurm.signal_lead_s, site.preemption_s
        return cls(lead_s, grace_s, check_steps, site.kill_wait_s, plan.deadline)

    @property
    def step_s(self) -> float:
        """The second longest step: the longest may include the suspension of a job."""
        return self._steps[0]

    @property
    def need_s(self) -> float:
        """Seconds from a warning at the worst moment to the end of the attempt.

        A save in flight is not added: without the time for both, a stop commits only that one.
        """
        return self.agreement_s(self.step_s) + self._evaluation_s + self._save_s + MARGIN_S

    def left_s(self, received_at: float | None, is_cancelled: bool) -> float:
        """Return the seconds until Slurm kills this job; infinite where nothing ends it.

        Ranks get the same signal in every case. Near the time limit it was the warning of that.
        Else it counts as a preemption where jobs are preempted, except in a cancelled run.
        received_at: the time of the signal, on the monotonic clock; None: now.
        """
        until_limit_s = math.inf if self._deadline is None else self._deadline - time.time()
        if self._signal_lead_s and 0 < until_limit_s <= self._signal_lead_s + EARLY_S:
            return until_limit_s
        grace_s = None if is_cancelled else self._preemption_s
        waited_s = 0.0 if received_at is None else time.monotonic() - received_at
        return (self._kill_wait_s if grace_s is None else grace_s) - waited_s

    def agreement_s(self, step_s: float) -> float:
        """Return the seconds until all ranks stop or save: two checks and a step of `step_s`."""
        check_s = max(step_s, CHECK_INTERVAL_S)
        if self._check_steps is not None:
            check_s = self._check_steps * step_s
        return 2 * check_s + step_s

    def begin_step(self, now: float) -> None:
        """A step begins at `now` (monotonic). The first is not measured, because it compiles."""
        if self._boundary is not None:
            self._num_steps += 1
            if self._num_steps > 1:
                self.record_step(now - self._boundary - self._excluded_s)
        self._boundary, self._excluded_s, self._last_batch_s = now, 0.0, 0.0

    def record_step(self, seconds: float) -> None:
        """Record the seconds of a step."""
        self.last_step_s = seconds
        if seconds > self._steps[0]:
            self._steps = sorted((self._steps[1], seconds))

    def record_batch(self, batch_s: float) -> None:
        """Record the seconds of the next batch of an evaluation.

        A stop waits for two batches in a row at most. Two times the longest would be too much: the
        first one also starts the worker processes, once.
        """
        self._evaluation_s = max(self._evaluation_s, self._last_batch_s + batch_s)
        self._last_batch_s = batch_s

    @contextlib.contextmanager
    def exclude(self) -> Iterator[None]:
        """Exclude the time of a block from the time of the step."""
        started = time.monotonic()
        yield
        self._excluded_s += time.monotonic() - started

    def record_save(self, seconds: float) -> None:
        """Record the seconds of a save, from its start until it was committed."""
        self.last_save_s = seconds
        self._save_s = max(self._save_s, seconds)

    def warning(self) -> str:
        """Return a warning if the time is too short, else "".

        It is repeated only when the need has grown by half. Before the first checkpoint an
        attempt does not know how long a save takes.
        """
        need_s = self.need_s
        parts = {"step": self.step_s, "evaluation": self._evaluation_s, "save": self._save_s}
        if not any(parts.values()) or need_s < AGAIN_FACTOR * self._warned_s:
            return ""
        lines = []
        if self._signal_lead_s is not None and need_s > self._signal_lead_s:
            lines.append(
                f"the warning comes {self._signal_lead_s:.0f} s before the time limit: set "
                f"slurm.signal_lead_s: {advised_lead_s(need_s)}"
            )
        if self._preemption_s is not None and need_s > self._preemption_s:
            lines.append(
                f"a preempted job ends after {self._preemption_s:.0f} s: the steps since the last "
                "checkpoint are then done again; save more often (checkpoint.every_minutes)"
            )
        if not lines:
            return ""
        self._warned_s = need_s
        measured = ", ".join(
            f"{name} {seconds:.1f} s" for name, seconds in parts.items() if seconds
        )
        return f"a stop needs about {need_s:.0f} s ({measured}), {'; '.join(lines)}"
