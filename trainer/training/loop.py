"""The training loop: evaluate, save, stop, do the steps until anything is due again.

`Evaluation` and `Saves` know when an evaluation or a save is due, and do it.
"""

import functools
import math
import time
from collections.abc import Iterable, Iterator
from typing import Literal

import torch
import torch.distributed as dist

from .. import seeds
from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.saved_state import TrainState
from ..contract import Train, checkpoint_name
from ..data.sources import Batch
from ..errors import NotFinite
from ..model import optim
from ..model.mean_gradient import MeanGradient
from ..model.replica import Replica
from ..model.training_data import Data
from ..process.run_handle import RankContext
from ..process.step_agreement import Agreement, StepAgreement
from ..user_code import has_user_code
from .evaluation import Evaluation
from .reporter import Reporter
from .saves import Saves

Status = Literal["completed", "stopped"]


def train_step(
    replica: Replica, batches: Iterable[Batch], num_batches: int, lr: float, train: Train
) -> list[torch.Tensor]:
    """Do one optimizer step on `num_batches` micro batches; return the `Sums.row` of each.

    The gradient is the mean over all items of all micro batches of all ranks. The host does not
    wait for the device in here.
    """
    rows, scaler = [], replica.precision.scaler
    optim.set_lr(replica.optimizer, lr)
    replica.strategy.begin_step(replica.module)
    mean = MeanGradient(num_batches, replica.batch_size, replica.fixed_items)
    for index, batch in enumerate(batches):
        is_last = index == num_batches - 1
        # The ranks average the gradients in the last backward pass only.
        with replica.strategy.accumulate(replica.wrapped, is_last):
            with replica.precision.autocast():
                sums = replica.objective(replica.wrapped, batch)
            if index in replica.idle_rounds:
                sums = sums.zero_sums()
            seed = scaler.scale(mean.seed(sums, is_last))
            sums.loss.backward(seed.to(sums.loss.dtype))  # type: ignore[no-untyped-call]
        rows.append(replica.row_of(sums))
    # The first step of an optimizer allocates its state: the last batch must be free by then.
    del batch, sums
    mean.correct(replica.strategy.gradients(replica.parameters))
    # Clips the gradients to train.grad_clip_norm, does the optimizer's step, drops the gradients.
    optim.clip_and_step(replica.optimizer, scaler, replica.parameters, train, replica.strategy.clip)
    return rows


def means_since_last_line(replica: Replica, state: TrainState) -> dict[str, float]:
    """Return the means since the last call by name, `train_loss` first; the host waits for them.

    All ranks call it. The sums go from the state's window to those of the epoch.
    """
    sums = _over_ranks(state.window)
    state.epoch_sums = _with_epoch(state, sums)
    state.window.zero_()
    return _named(replica, sums)


def means_of_epoch(replica: Replica, state: TrainState) -> dict[str, float]:
    """Return the means over the epoch that ends with this step by name. All ranks call it."""
    rest = _over_ranks(state.window.clone())
    means = _named(replica, _with_epoch(state, rest))
    # `means_since_last_line` adds these sums again: they belong to no later epoch.
    state.epoch_sums = [-value for value in rest]
    return means


def _over_ranks(sums: torch.Tensor) -> list[float]:
    dist.all_reduce(sums)  # all ranks: each has the sums of its own samples
    return sums.tolist()  # waits for the device


def _with_epoch(state: TrainState, sums: list[float]) -> list[float]:
    logged = state.epoch_sums or [0.0] * len(sums)
    return [a + b for a, b in zip(logged, sums, strict=True)]


def _named(replica: Replica, sums: list[float]) -> dict[str, float]:
    return {f"train_{name}": value for name, value in replica.means(sums).items()}


class Loop:
    """The training of one attempt, from the state that it loaded."""

    def __init__(
        self,
        context: RankContext,
        data: Data,
        replica: Replica,
        state: TrainState,
        checkpoints: Checkpoints,
    ) -> None:
        self.context, self.train, self.length = context, context.train, data.length
        self.distributed, self.device = context.distributed, context.device
        self.events = context.events
        self.data, self.replica, self.state = data, replica, state
        self.checkpoints = checkpoints
        self.lr_at = optim.schedule(self.train, data.length)
        self.reporter: Reporter | None = None
        if self.distributed.is_first:
            step, metrics_bytes = state.global_step, state.metrics_bytes
            self.reporter = Reporter(context, self.length, step, metrics_bytes)
        self._log_every_steps = context.run.spec.log.every_steps
        self._evaluation = Evaluation(context, data, self.reporter)
        self._saves = Saves(context, data, checkpoints, self.reporter)
        self._data_wait_s = 0.0
        # How the result relates to that of a run without a stop, and why, if a plugin knows it.
        self.exactness: tuple[str | None, str | None] = (None, None)

    def run(self, step_agreement: StepAgreement) -> Status:
        """Train; return "completed", or "stopped" where the ranks agreed to stop.

        On return the last checkpoint is committed; after a stop it may be some steps old. The saved
        state alone decides what is due at a step, so no stop skips an evaluation or a save.
        """
        state, first_step = self.state, self.state.global_step
        while True:
            step = state.global_step
            self._saves.note_committed()
            is_evaluation = self._evaluation.is_due(state)
            drain = step == first_step or self._is_last() or is_evaluation
            agreed = self._agree(step_agreement, step, drain, self._saves.is_due_by_clock())
            is_stopping = agreed.stop
            if is_evaluation and not is_stopping:
                agree = functools.partial(self._agree, step_agreement.for_evaluation())
                is_stopping = not self._evaluation.run(self.replica, state, agree)
            if is_stopping:
                self.events.event("stop_seen", step=step)
            is_end = is_stopping or self._is_last()  # the evaluation may end the training early
            is_due = is_end or agreed.save or self._saves.is_due(state)
            if is_stopping:
                is_due = self._saves.finish_at_stop(state)
            if is_due:
                self._saves.save(self.replica, state, is_urgent=is_end)
            if is_end:
                self._saves.finish(state)
                self._evaluation.log_early_stop(state)
                return "stopped" if is_stopping else "completed"
            for _ in range(self._quiet_steps(step_agreement.next_step)):
                self._step()
            if step == first_step:
                self.events.event("first_step", step=step + 1)
                self.checkpoints.allocate(self.replica, state)

    def _agree(
        self, step_agreement: StepAgreement, step: int, drain: bool, wants_save: bool = False
    ) -> Agreement:
        """Return what the ranks agree on; begin the commit of a save that all have written."""
        written_step = self.checkpoints.written_step
        agreed = step_agreement.check(step, wants_save, drain, written_step)
        self.checkpoints.commit_when_written(agreed.written_step)
        return agreed

    def _is_last(self) -> bool:
        is_done = self.state.global_step == self.length.total_steps
        return is_done or self._evaluation.is_early_stop(self.state)

    def _quiet_steps(self, next_check: int) -> int:
        """Return the number of steps until the next at which anything else may be due, at least 1.

        next_check: the step before which the ranks agree on a stop or a save by the clock.
        """
        step = self.state.global_step
        periods = (*self._evaluation.periods, *self._saves.periods)
        distances = [period - step % period for period in periods]
        return max(1, min(next_check - step, self.length.total_steps - step, *distances))

    def _step(self) -> None:
        """Do the next optimizer step; the host waits for the device only where it logs."""
        state, step = self.state, self.state.global_step
        for each in self.context.watchers:
            each.before_step(step + 1)
        lr = self.lr_at(step)
        num_batches = self.data.train_batches.num_micro_batches(step)
        batches = self._micro_batches(step, num_batches)
        for row in train_step(self.replica, batches, num_batches, lr, self.train):
            state.window += row
        state.global_step += 1
        for each in self.context.watchers:
            each.after_step(state.global_step)
        if self.reporter is not None:
            self.reporter.progress.update(step=state.global_step)
        if state.global_step % self._log_every_steps == 0:
            self._log(lr)
        if state.global_step % self.length.steps_per_epoch == 0:
            means = means_of_epoch(self.replica, state)
            if self.reporter is not None:
                self.reporter.epoch_done(state.global_step, means, lr)

    def _micro_batches(self, step: int, num_batches: int) -> Iterator[Batch]:
        """Yield this rank's micro batches of a step; seed the random generators before each one.

        So the random numbers of a pass (dropout) depend on seed, step, micro batch and rank only.
        Those of a user's code, too: a transform draws before the pass, an objective in it.
        """
        batches = self.data.train_batches.micro_batches(step)
        for index in range(num_batches):
            self.context.pulse.beat("batch", step)
            key = self.train.seed, step, index, self.distributed.rank
            if has_user_code(self.train):
                seeds.seed_all(seeds.mix(seeds.AUGMENT, *key), self.device)
            started = time.perf_counter()
            batch = next(batches)
            self._data_wait_s += time.perf_counter() - started
            seeds.seed_generators(seeds.mix(seeds.STEP, *key), self.device)
            yield batch

    def _log(self, lr: float) -> None:
        """Log the means over all ranks since the last log line.

        Raises: NotFinite if the loss is not finite and train.stop_on_nan is set.
        """
        means = means_since_last_line(self.replica, self.state)
        if self.train.stop_on_nan and not math.isfinite(means["train_loss"]):
            self._saves.finish(self.state)  # so the newest save is committed
            newest, saved = self.checkpoints.newest_step, "there is no checkpoint yet"
            if newest is not None:
                saved = f"the last good checkpoint is {checkpoint_name(newest)}"
            what = f"the loss is {means['train_loss']} at step {self.state.global_step}: {saved}"
            hint = "use a lower train.lr, train.grad_clip_norm or train.precision bf16; or "
            raise NotFinite(what, f"{hint}check the inputs for a NaN")
        self.state.metrics |= means
        if self.reporter is not None:
            self.reporter.report_training(self.state.global_step, means, lr, self._data_wait_s)
        self._data_wait_s = 0.0

    def close(self) -> None:
        """Close files and end the data workers; call it after the loop."""
        if self.reporter is not None:
            self.reporter.close()
        for each in self.context.watchers:
            each.end()
        self.data.train_batches.close()
        if self.data.held_out is not None:
            self.data.held_out.close()
