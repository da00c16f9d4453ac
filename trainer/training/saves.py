"""The save policy: which steps are saved, which saves wait for the disk, and what they took."""

import math
import time

from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.saved_state import TrainState
from ..contract import Checkpoint, checkpoint_name, quantity
from ..model.replica import Replica
from ..model.training_data import Data
from ..process.context import of_first
from ..process.run_handle import RankContext
from .reporter import Reporter

# A stop that met a save of more than this share of slurm.signal_lead_s does no second one.
SHARE_OF_LEAD = 0.25
LEAST_INTERVAL_S = 60.0
STALLS = 20  # so saves stop the training for at most a twentieth of the time


def interval_s(checkpoint: Checkpoint, stall_s: float) -> float:
    """Return the seconds between two periodic saves; infinite where none is due by the clock.

    stall_s: how long the training stopped for the last save.
    """
    if checkpoint.every_minutes is not None:
        return 60 * checkpoint.every_minutes
    is_by_step = checkpoint.every_epochs or checkpoint.every_steps
    if checkpoint.interval != "auto" or is_by_step:
        return math.inf
    return max(LEAST_INTERVAL_S, STALLS * stall_s)


class Saves:
    """The saves of an attempt. All ranks call every method.

    periods: a save is due after the multiples of these steps.
    """

    def __init__(
        self, context: RankContext, data: Data, checkpoints: Checkpoints, reporter: Reporter | None
    ) -> None:
        spec, length = context.run.spec.checkpoint, data.length
        self._context, self._batches, self._checkpoints = context, data.train_batches, checkpoints
        self._reporter = reporter
        self.periods = (
            *length.periods(spec.every_epochs, spec.every_steps),
            *length.periods(spec.keep_every_epochs, spec.keep_every_steps),
        )
        self._interval_s = interval_s(spec, 0.0)
        self._last_save = time.monotonic()
        self._last_save_s = 0.0
        self._is_postponed = False

    def is_due(self, state: TrainState) -> bool:
        """Return whether this step is saved: by its number, or because it is the best one."""
        step = state.global_step
        is_best = state.best.get("step") == step
        return step > 0 and (is_best or any(step % each == 0 for each in self.periods))

    def is_due_by_clock(self) -> bool:
        """Return whether it is time for a save; the ranks follow rank 0."""
        if self._is_postponed:
            return not self._checkpoints.is_saving()
        return time.monotonic() - self._last_save >= self._interval_s

    def save(self, replica: Replica, state: TrainState, is_urgent: bool) -> None:
        """Start to commit a checkpoint of this step, unless this step has one.

        While the save before it is in flight, a periodic save is postponed until that one is
        committed. One that is urgent, or that is kept at any age, waits instead.
        """
        if self._checkpoints.newest_step == state.global_step:
            # An evaluation after the commit may have made this step the best one.
            self._checkpoints.point_at_best(state)
            return
        is_urgent = is_urgent or self._checkpoints.is_kept(state)
        was_postponed = self._is_postponed
        self._is_postponed = not is_urgent and self._checkpoints.is_any_saving()
        if self._is_postponed:  # nothing waits for the disk, metrics.jsonl included
            if not was_postponed:
                text = f"the checkpoint of step {state.global_step} is postponed"
                self._context.distributed.log(f"{text}: the one before it is still being written")
            return
        if is_urgent:
            self.finish(state)  # one is in flight, perhaps
        self._context.pulse.beat("save", state.global_step)
        if self._reporter is not None:
            state.metrics_bytes = self._reporter.sync()
        state.streams = self._batches.positions()
        self._checkpoints.save(replica, state)
        self._last_save = time.monotonic()
        if self._reporter is not None:
            self._reporter.restart_clock(state.global_step)

    def finish_at_stop(self, state: TrainState) -> bool:
        """Commit the save in flight; return, on every rank, whether to save this step, too.

        It is saved unless rank 0's save in flight was a slow one: a stop may have no time for two.
        """
        if not self._checkpoints.is_any_saving():
            return True
        step, saved_step = state.global_step, self._checkpoints.newest_step
        assert saved_step is not None
        self.finish(state)
        limit_s = SHARE_OF_LEAD * self._context.run.spec.slurm.signal_lead_s
        # All ranks: how long a save took is known on rank 0 alone.
        is_saved = of_first(self._last_save_s <= limit_s, self._context.device)
        if not is_saved:
            redone = quantity(step - saved_step, "step")
            took = f"the save of step {saved_step} took {self._last_save_s:.1f} s"
            what = f"no time to save step {step}: {took}; {redone} will be repeated"
            self._context.distributed.log(what)
        return is_saved

    def finish(self, state: TrainState) -> None:
        """Wait, all ranks together, until the save in flight is committed."""
        self._checkpoints.finish(lambda: self._context.pulse.beat("save", state.global_step))
        self.note_committed()

    def note_committed(self) -> None:
        """Raise the error of the save in flight, if it failed; log the saves that are committed."""
        for saved in self._checkpoints.completed():
            seconds, stall_s = round(saved.seconds, 3), round(saved.stall_s, 4)
            self._context.events.event("save", step=saved.step, seconds=seconds, stall_s=stall_s)
            name = checkpoint_name(saved.step)
            self._context.distributed.log(f"checkpoint {name} committed in {seconds:.2f} s")
            self._last_save_s = saved.seconds
            self._interval_s = interval_s(self._context.run.spec.checkpoint, saved.stall_s)
            for each in self._context.watchers:
                each.saved(saved.step, self._context.run.dir.checkpoints / name)
