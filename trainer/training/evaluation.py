"""The evaluations of an attempt: when one is due, its result, and the best one so far."""

import functools
import itertools
import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from .. import seeds
from ..checkpoint.saved_state import TrainState
from ..data.feed import HeldOut
from ..model.replica import Replica
from ..model.training_data import Data
from ..process.run_handle import RankContext
from ..process.step_agreement import Agreement
from .reporter import Reporter


class Evaluation:
    """Evaluates on the held-out samples. All ranks call every method.

    periods: an evaluation is due after the multiples of these steps, and after the last step.
    """

    def __init__(self, context: RankContext, data: Data, reporter: Reporter | None) -> None:
        train = context.train
        self._context, self._reporter = context, reporter
        self._held_out = data.held_out
        self._total_steps = data.length.total_steps
        self.periods = data.length.periods(train.eval_every_epochs, train.eval_every_steps)

    def is_due(self, state: TrainState) -> bool:
        """Return whether this step is evaluated, and was not yet."""
        step = state.global_step
        if step in (0, state.last_eval_step) or self._held_out is None:
            return False
        return step == self._total_steps or any(step % each == 0 for each in self.periods)

    def run(
        self, replica: Replica, state: TrainState, agree: Callable[[int, bool], Agreement]
    ) -> bool:
        """Evaluate; put the result into the state, log and metrics.jsonl.

        Return False if the ranks agreed to stop before its end. The partial result is dropped, and
        the next attempt begins with this evaluation. agree: as in `evaluate`.
        """
        step = state.global_step
        began = time.monotonic()
        assert self._held_out is not None
        rank = self._context.distributed.rank
        seed = seeds.mix(seeds.HELD_OUT, self._context.train.seed, step, rank)
        seeds.seed_all(seed, self._context.device)
        beat = functools.partial(self._context.pulse.beat, "evaluation", step)
        sums = evaluate(replica, self._held_out, beat, agree)
        if self._context.distributed.is_first:
            seconds = round(time.monotonic() - began, 3)
            self._context.events.event("evaluation", step=step, seconds=seconds)
        if sums is None:
            return False
        state.last_eval_step = step
        values = {f"eval_{name}": value for name, value in replica.means(sums.tolist()).items()}
        state.metrics |= values
        if (chosen := replica.best) is not None:
            value = values.get(chosen.name, math.nan)  # the objective may have derived no number
            old = state.best["value"] if state.best.get("metric") == chosen.name else None
            state.evals_since_best += 1
            if old is None or chosen.is_better(value, old) or math.isnan(old) > math.isnan(value):
                state.best = {"metric": chosen.name, "value": value, "step": step}
                state.evals_since_best = 0
            if math.isnan(value):
                text = f"{chosen.name} is nan at step {step}; ignored for the best checkpoint"
                self._context.distributed.log(f"warning: {text}")
        if self._reporter is not None:
            self._reporter.report_evaluation(step, values)
        return True

    def is_early_stop(self, state: TrainState) -> bool:
        """Return whether the metric of the best checkpoint has not improved for too long."""
        patience = self._context.train.early_stop_patience
        return patience is not None and state.evals_since_best >= patience

    def log_early_stop(self, state: TrainState) -> None:
        """Log why the training ends before its last step, if it does."""
        if self.is_early_stop(state):
            best = "{metric} was best at step {step} ({value:.4g})".format(**state.best)
            ago = f"{state.evals_since_best} evaluations ago (train.early_stop_patience)"
            self._context.distributed.log(f"early stop: {best}, {ago}")


@torch.no_grad()
def evaluate(
    replica: Replica,
    held_out: HeldOut,
    beat: Callable[[], None],
    agree: Callable[[int, bool], Agreement],
) -> torch.Tensor | None:
    """Return the sum of `Replica.row` over all held-out samples, the same on every rank.

    None if the ranks agreed to stop before the last batch. The model's buffers are those of rank 0.

    beat: called before each batch of this rank.
    agree: called with (index, whether it is the last) before each batch, on every rank equally
    often, also where a rank has one batch less; a stop ends the evaluation.
    """
    module, sums = replica.module, replica.empty_row()
    # All ranks: BatchNorm's statistics differ between them, and a checkpoint has those of rank 0.
    for buffer in module.buffers() if dist.get_world_size() > 1 else ():
        dist.broadcast(buffer, src=0)
    num_rounds, is_stopped = held_out.num_rounds, False
    module.eval()
    for index, batch in itertools.zip_longest(range(num_rounds), held_out.batches()):
        if is_stopped := agree(index, index == num_rounds - 1).stop:
            break
        if batch is not None:
            beat()
            sums += replica.row(batch)
        elif replica.strategy.evaluates_together:  # a sample that does not count
            replica.row(held_out.example())
    module.train()
    replica.strategy.end_evaluation(module)
    if is_stopped:
        return None
    dist.all_reduce(sums)  # all ranks: each has evaluated its part of the samples
    return sums
