"""The training loop: one optimizer step, and the schedule of logs, evaluations, saves and stops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist

from slurm_job_kit.jobs.checkpoint.names import checkpoint_name
from slurm_job_kit.jobs.spec import Train
from slurm_job_kit.trainer import seeds
from slurm_job_kit.trainer.checkpoint.checkpoints import Checkpoints
from slurm_job_kit.trainer.checkpoint.interval import SaveInterval, failures_of
from slurm_job_kit.trainer.checkpoint.state import TrainState
from slurm_job_kit.trainer.data.sources import Batch
from slurm_job_kit.trainer.errors import NotFinite
from slurm_job_kit.trainer.health.lead_time import LeadTime
from slurm_job_kit.trainer.logging.profiling import Tracer
from slurm_job_kit.trainer.logging.reporter import Reporter
from slurm_job_kit.trainer.model import optim
from slurm_job_kit.trainer.model.evaluate import evaluate
from slurm_job_kit.trainer.model.mean_gradient import MeanGradient
from slurm_job_kit.trainer.model.replica import Replica
from slurm_job_kit.trainer.model.training_data import Data
from slurm_job_kit.trainer.process.run_handle import RankContext
from slurm_job_kit.trainer.process.step_agreement import StepAgreement
from slurm_job_kit.trainer.user_code import has_user_code

Beat = Callable[[str, int], None]  # arguments: the part of a step that begins, the step


def train_step(
    replica: Replica, batches: Iterable[Batch], num_batches: int, lr: float, train: Train
) -> list[torch.Tensor]:
    """Do one optimizer step on `num_batches` micro batches; return the `Sums.row` of each.

    The gradient is the mean over all items of all micro batches of all ranks. The host does not
    wait for the device in here.
    """
    rows = []
    optim.set_lr(replica.optimizer, lr)
    replica.strategy.begin_step(replica.module)
    mean = MeanGradient(num_batches, replica.batch_size, replica.fixed_items)
    for index, batch in enumerate(batches):
        is_last = index == num_batches - 1
        # The ranks average the gradients in the last backward pass only.
        with replica.strategy.accumulate(replica.wrapped, is_last):
            with replica.autocast():
                sums = replica.objective(replica.wrapped, batch)
            seed = replica.scaler.scale(mean.seed(sums, is_last))
            sums.loss.backward(seed.to(sums.loss.dtype))  # type: ignore[no-untyped-call]
        rows.append(replica.row_of(sums))
    # The first step of an optimizer allocates its state: the last batch must be free by then.
    del batch, sums
    mean.correct(replica.strategy.gradients(replica.parameters))
    # Clips the gradients to train.grad_clip_norm, does the optimizer's step, drops the gradients.
    optim.clip_and_step(
        replica.optimizer, replica.scaler, replica.parameters, train, replica.strategy.clip
    )
    return rows


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
        self.spec = context.run.spec
        self.train = context.train
        self.distributed = context.distributed
        self.device = context.device
        self.events = context.events
        self.data = data
        self.replica = replica
        self.state = state
        self.checkpoints = checkpoints
        self.length = data.length
        self.lr_at = optim.schedule(self.train, data.length)
        self.tracer = Tracer(context.run, context.distributed.rank, context.device)
        self.reporter: Reporter | None = None
        if self.distributed.is_first:
            step, metrics_bytes = state.global_step, state.metrics_bytes
            self.reporter = Reporter(context.run, self.length, step, metrics_bytes)
        self._beat: Beat = lambda what, step: None  # `run` replaces it
        self._data_wait_s = 0.0
        self._last_save = time.monotonic()
        self._save_interval = SaveInterval(self.spec.checkpoint, failures_of(context))
        self._is_save_postponed = False
        self._lead = LeadTime.of(context.run)

    def run(self, step_agreement: StepAgreement, beat: Beat) -> str:
        """Train; return "completed", or "stopped" where the ranks agreed to stop.

        On return the last checkpoint is committed. The saved state alone decides what is due at a
        step, so no stop skips an evaluation or a save.
        """
        self._beat = beat
        first_step = self.state.global_step
        while True:
            step = self.state.global_step
            self._note_saves()
            self._warn_of_short_lead()
            is_last = self._is_last()
            drain = step == first_step or is_last or self._is_evaluation_due()
            agreed = step_agreement.check(
                step, self._is_save_due_by_clock(), drain, self.checkpoints.written_step
            )
            self.checkpoints.commit_when_written(agreed.written_step)
            is_stopping = agreed.stop
            if not is_stopping and self._is_evaluation_due():
                with self._lead.excluded():
                    is_stopping = not self._evaluate(step_agreement.for_evaluation())
            if is_stopping:
                self.events.event("stop_seen", step=step)
            is_last = self._is_last()  # the evaluation may have ended the training early
            if is_stopping or is_last or agreed.save or self._is_save_due():
                with self._lead.excluded():
                    self._save(is_urgent=is_stopping or is_last)
            if is_stopping or is_last:
                self._finish_save()
                if self._is_early_stop():
                    self._log_early_stop()
                return "stopped" if is_stopping else "completed"
            for _ in range(self._quiet_steps(step_agreement.next_step)):
                self._step()
            if step == first_step:
                self.events.event("first_step", step=step + 1)
                self.checkpoints.allocate(self.replica, self.state)

    def _quiet_steps(self, next_check: int) -> int:
        """Return the number of steps until the next at which anything else may be due, at least 1.

        next_check: the step before which the ranks agree on a stop or a save by the clock.
        """
        step, epoch = self.state.global_step, self.length.steps_per_epoch
        train, checkpoint = self.train, self.spec.checkpoint
        epochs = (train.eval_every_epochs, checkpoint.every_epochs, checkpoint.keep_every_epochs)
        steps = (train.eval_every_steps, checkpoint.every_steps, checkpoint.keep_every_steps)
        periods = [*(each * epoch for each in epochs if each), *filter(None, steps)]
        distances = [period - step % period for period in periods]
        return max(1, min(next_check - step, self.length.total_steps - step, *distances))

    def _is_last(self) -> bool:
        # The step is greater where a resume lowered train.epochs.
        return self.state.global_step >= self.length.total_steps or self._is_early_stop()

    def _is_early_stop(self) -> bool:
        """Return whether the metric of the best checkpoint has not improved for too long."""
        patience = self.train.early_stop_patience
        return patience is not None and self.state.evals_since_best >= patience

    def _log_early_stop(self) -> None:
        best = self.state.best
        self.distributed.log(
            f"early stop: {best['metric']} was best at step {best['step']}, "
            f"{self.state.evals_since_best} evaluations ago (train.early_stop_patience)"
        )

    def _is_evaluation_due(self) -> bool:
        step, train = self.state.global_step, self.train
        if step in (0, self.state.last_eval_step) or self.data.held_out is None:
            return False
        every = self._is_multiple(train.eval_every_epochs, train.eval_every_steps)
        return every or step == self.length.total_steps

    def _is_save_due(self) -> bool:
        step, checkpoint = self.state.global_step, self.spec.checkpoint
        is_best = step > 0 and self.state.best.get("step") == step
        every = self._is_multiple(checkpoint.every_epochs, checkpoint.every_steps)
        kept = self._is_multiple(checkpoint.keep_every_epochs, checkpoint.keep_every_steps)
        return is_best or every or kept

    def _is_multiple(self, epochs: int | None, steps: int | None) -> bool:
        """Return whether a multiple of `epochs` epochs or of `steps` steps ends at this step."""
        step = self.state.global_step
        distances = [steps, epochs and epochs * self.length.steps_per_epoch]
        return step > 0 and any(distance and step % distance == 0 for distance in distances)

    def _is_save_due_by_clock(self) -> bool:
        if self._is_save_postponed:
            return not self.checkpoints.is_saving()
        return time.monotonic() - self._last_save >= self._save_interval.seconds

    def _step(self) -> None:
        """Do the next optimizer step; the host waits for the device only where it logs."""
        state, step = self.state, self.state.global_step
        self._lead.begin_step(time.monotonic())
        self.tracer.before(step + 1)
        lr = self.lr_at(step)
        num_batches = self.data.train_batches.num_micro_batches(step)
        batches = self._micro_batches(step, num_batches)
        for row in train_step(self.replica, batches, num_batches, lr, self.train):
            state.window += row
        state.global_step += 1
        self.tracer.after(state.global_step)
        if self.reporter is not None:
            self.reporter.step_done(state.global_step)
        if state.global_step % self.spec.log.every_steps == 0:
            self._log(lr)
        if state.global_step % self.length.steps_per_epoch == 0:
            self._log_epoch(lr)

    def _micro_batches(self, step: int, num_batches: int) -> Iterator[Batch]:
        """Yield this rank's micro batches of a step; seed the random generators before each one.

        So the random numbers of a pass (dropout) depend on seed, step, micro batch and rank only.
        Those of a user's code, too: a transform draws before the pass, an objective in it.
        """
        batches = self.data.train_batches.micro_batches(step)
        for index in range(num_batches):
            self._beat("batch", step)
            key = self.train.seed, step, index, self.distributed.rank
            if has_user_code(self.train):
                seeds.seed_all(seeds.mix(seeds.AUGMENT, *key), self.device)
            started = time.perf_counter()
            batch = next(batches)
            self._data_wait_s += time.perf_counter() - started
            seeds.seed_generators(seeds.mix(seeds.STEP, *key), self.device)
            yield batch

    def _log(self, lr: float) -> None:
        """Log the mean loss and metrics over all ranks since the last log line.

        Raises: NotFinite if the loss is not finite and train.stop_on_nan is set.
        """
        window, step = self.state.window, self.state.global_step
        self._add_over_ranks(window)
        sums = window.tolist()  # waits for the device
        logged = self.state.epoch_sums or [0.0] * len(sums)
        self.state.epoch_sums = [a + b for a, b in zip(logged, sums, strict=True)]
        means = self.replica.means(sums)
        loss = means["loss"]
        if self.train.stop_on_nan and not math.isfinite(loss):
            raise self._not_finite(loss)
        window.zero_()
        values = {f"train_{name}": value for name, value in means.items()}
        self.state.metrics |= values
        if self.reporter is not None:
            self.reporter.trained(step, values, lr, self._data_wait_s)
        self._data_wait_s = 0.0

    def _log_epoch(self, lr: float) -> None:
        """Log the means over the epoch that ends with this step."""
        rest = self.state.window.clone()
        self._add_over_ranks(rest)
        sums = rest.tolist()
        logged = self.state.epoch_sums or [0.0] * len(sums)
        means = self.replica.means([a + b for a, b in zip(logged, sums, strict=True)])
        # The next line of the log counts these steps again: they belong to no later epoch.
        self.state.epoch_sums = [-value for value in sums]
        if self.reporter is not None:
            values = {f"train_{name}": value for name, value in means.items()}
            self.reporter.epoch_done(self.state.global_step, values, lr)

    def _add_over_ranks(self, sums: torch.Tensor) -> None:
        if self.distributed.world_size > 1:
            dist.all_reduce(sums)

    def _not_finite(self, loss: float) -> NotFinite:
        """Return the error for a loss that is not finite, once the save in flight is committed."""
        self._finish_save()
        newest = self.checkpoints.newest_step
        saved = "there is no checkpoint yet"
        if newest is not None:
            saved = f"the last good checkpoint is {checkpoint_name(newest)}"
        return NotFinite(
            f"the loss is {loss} at step {self.state.global_step}: {saved}\n"
            "  hint: use a lower train.lr, train.grad_clip_norm or train.precision bf16; or check "
            "the inputs for a NaN"
        )

    def _evaluate(self, step_agreement: StepAgreement) -> bool:
        """Evaluate on the held-out samples; put the result into the state, log and metrics.jsonl.

        Return False if the ranks agreed to stop before its end. The partial result is dropped, and
        the next attempt begins with this evaluation.
        """
        step = self.state.global_step
        began = first = time.monotonic()

        def beat() -> None:
            nonlocal began
            self._beat("evaluation", step)
            self._lead.evaluated(time.monotonic() - began)
            began = time.monotonic()

        def is_stop_agreed(index: int, is_last: bool) -> bool:
            written_step = self.checkpoints.written_step
            agreed = step_agreement.check(index, False, is_last, written_step)
            self.checkpoints.commit_when_written(agreed.written_step)
            return agreed.stop

        assert self.data.held_out is not None
        seed = seeds.mix(seeds.HELD_OUT, self.train.seed, step, self.distributed.rank)
        seeds.seed_all(seed, self.device)
        sums = evaluate(
            self.replica.module,
            self.data.held_out,
            self.replica.row,
            self.replica.empty_row(),
            beat,
            is_stop_agreed,
            self.replica.strategy.evaluates_together,
        )
        self.replica.strategy.end_evaluation(self.replica.module)
        self._lead.evaluated(time.monotonic() - began)
        if self.distributed.is_first:
            seconds = round(time.monotonic() - first, 3)
            self.events.event("evaluation", step=step, seconds=seconds)
        if sums is None:
            return False
        self.state.last_eval_step = step
        means = self.replica.means(sums.tolist())
        values = {f"eval_{name}": value for name, value in means.items()}
        self.state.metrics |= values
        self._track_best(values)
        if self.reporter is not None:
            self.reporter.evaluated(step, values)
        return True

    def _track_best(self, metrics: dict[str, float]) -> None:
        best, chosen = self.state.best, self.replica.best
        if chosen is None:
            return
        value = metrics[chosen.name]
        is_first = best.get("metric") != chosen.name or math.isnan(best["value"])
        self.state.evals_since_best += 1
        if is_first or chosen.is_better(value, best["value"]):
            step = self.state.global_step
            self.state.best = {"metric": chosen.name, "value": value, "step": step}
            self.state.evals_since_best = 0

    def _save(self, is_urgent: bool) -> None:
        """Start to commit a checkpoint of this step, unless this step has one.

        While the save before it is in flight, a periodic save is postponed until that one is
        committed. One that is urgent, or that is kept at any age, waits instead.
        """
        if self.checkpoints.newest_step == self.state.global_step:
            # An evaluation after the commit may have made this step the best one.
            self.checkpoints.point_at_best(self.state)
            return
        is_urgent = is_urgent or self.checkpoints.is_kept(self.state)
        was_postponed = self._is_save_postponed
        self._is_save_postponed = not is_urgent and self.checkpoints.is_any_saving()
        if self._is_save_postponed:  # nothing waits for the disk, metrics.jsonl included
            if not was_postponed:
                text = f"the checkpoint of step {self.state.global_step} is postponed"
                self.distributed.log(f"{text}: the one before it is still being written")
            return
        if is_urgent:
            self._finish_save()  # one is in flight, perhaps
        self._beat("save", self.state.global_step)
        if self.reporter is not None:
            self.state.metrics_bytes = self.reporter.sync()
        self.state.streams = self.data.train_batches.positions()
        self.checkpoints.save(self.replica, self.state)
        self._last_save = time.monotonic()
        if self.reporter is not None:
            self.reporter.restart_clock(self.state.global_step)

    def _finish_save(self) -> None:
        """Wait, all ranks together, until the save in flight is committed."""
        self.checkpoints.finish(lambda: self._beat("save", self.state.global_step))
        self._note_saves()

    def _note_saves(self) -> None:
        """Raise the error of the save in flight, if it failed; log the saves that are committed."""
        self.checkpoints.check()
        for saved in self.checkpoints.completed():
            seconds, stall_s = round(saved.seconds, 3), round(saved.stall_s, 4)
            self.events.event("save", step=saved.step, seconds=seconds, stall_s=stall_s)
            self.distributed.log(f"checkpoint {saved.name} committed in {seconds:.2f} s")
            self._lead.saved(saved.seconds)
            agreement_s = self._lead.agreement_s(self._lead.last_step_s)
            if chosen := self._save_interval.saved(saved.seconds, saved.stall_s, agreement_s):
                self.distributed.log(chosen)

    def _warn_of_short_lead(self) -> None:
        """Warn where a stop needs more time than it has; only rank 0 knows how long saves take."""
        if self.distributed.is_first and (warning := self._lead.warning()):
            self.distributed.log(f"warning: {warning}")

    def close(self) -> None:
        """Close files and trackers and end the data workers; call it after the loop."""
        if self.reporter is not None:
            self.reporter.close()
        self.tracer.close()
        self.data.train_batches.close()
        if self.data.held_out is not None:
            self.data.held_out.close()
