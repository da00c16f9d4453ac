"""The training loop: steps, evaluations and checkpoints, until the end or an agreed stop."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from trainer import commit, optim, seeds
from trainer.agreement import StopAgreement
from trainer.build import Data, Replica
from trainer.checkpoint import Checkpoints, TrainState
from trainer.evaluate import evaluate
from trainer.launch import Job
from trainer.metrics import Plan, Reporter


class Loop:
    """One attempt's training, from the state it starts with."""

    def __init__(
        self, job: Job, data: Data, replica: Replica, state: TrainState, checkpoints: Checkpoints
    ) -> None:
        self.spec = job.run.spec
        self.train = job.train
        self.context = job.context
        self.device = job.device
        self.events = job.events
        self.data = data
        self.replica = replica
        self.state = state
        self.checkpoints = checkpoints
        self.plan = Plan(
            total_steps=self.train.epochs * data.batches.steps_per_epoch,
            steps_per_epoch=data.batches.steps_per_epoch,
            epochs=self.train.epochs,
            global_batch_size=data.batches.global_batch_size,
        )
        self.reporter: Reporter | None = None
        if self.context.is_first:
            step, metrics_bytes = state.global_step, state.metrics_bytes
            self.reporter = Reporter(job.run.dir, self.plan, step, metrics_bytes)
        self._order_of: tuple[int, torch.Tensor] | None = None

    def run(self, agreement: StopAgreement) -> str:
        """Train: "completed", or "stopped" where the ranks agreed to. Then all is committed.

        What is due at a step is decided by the saved state, so a stop forgets no evaluation.
        """
        first_step = self.state.global_step
        while True:
            step = self.state.global_step
            is_edge = step % self.plan.steps_per_epoch == 0
            if agreement.check(step, wait=is_edge or step == first_step):
                self.events.event("stop_seen", step=step)
                self._save()
                return "stopped"
            if is_edge and self._is_due(self.train.eval_every_epochs):
                self._evaluate()
            if is_edge and self._is_due(self.spec.checkpoint.every_epochs):
                self._save()
            # Beyond the total where a resume asked for fewer epochs than were done already.
            if step >= self.plan.total_steps:
                self._save()
                return "completed"
            self._step()
            if step == first_step:
                self.events.event("first_step", step=step + 1)

    def _is_due(self, every_epochs: int) -> bool:
        step = self.state.global_step
        epoch = step // self.plan.steps_per_epoch
        return step > 0 and (epoch % every_epochs == 0 or step == self.plan.total_steps)

    def _step(self) -> None:
        """One optimizer step; the host never waits for the device here but to log."""
        state, replica = self.state, self.replica
        seed = seeds.mix(seeds.STEP, self.train.seed, state.global_step, self.context.rank)
        seeds.seed_generators(seed, self.device)
        lr = optim.lr_at(state.global_step, self.plan.total_steps, self.train)
        optim.set_lr(replica.optimizer, lr)
        inputs, labels = self.data.train.batch(self._indices())
        loss = cross_entropy(replica.ddp(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        replica.optimizer.step()
        replica.optimizer.zero_grad(set_to_none=True)
        state.loss_window += loss.detach()
        state.global_step += 1
        if self.reporter is not None:
            self.reporter.step_done(state.global_step)
        if state.global_step % self.spec.log.every_steps == 0:
            self._log(lr)

    def _indices(self) -> torch.Tensor:
        epoch = self.state.global_step // self.plan.steps_per_epoch
        if self._order_of is None or self._order_of[0] != epoch:
            self._order_of = (epoch, self.data.batches.order(epoch).to(self.device))
        return self.data.batches.micro_batch(
            self._order_of[1], self.state.global_step, self.context.rank
        )

    def _log(self, lr: float) -> None:
        window = self.state.loss_window
        dist.all_reduce(window)
        loss = window.item() / (self.context.world_size * self.spec.log.every_steps)
        window.zero_()
        self.state.metrics["train_loss"] = loss
        if self.reporter is not None:
            self.reporter.trained(self.state.global_step, loss, lr)

    def _evaluate(self) -> None:
        step = self.state.global_step
        if self.state.last_eval_step == step:
            return
        loss, accuracy = evaluate(
            self.replica.module, self.data.test, self.context.rank, self.context.world_size
        )
        self.state.last_eval_step = step
        self.state.metrics |= {"eval_loss": loss, "eval_accuracy": accuracy}
        if self.reporter is not None:
            self.reporter.evaluated(step, loss, accuracy)

    def _save(self) -> None:
        """Commit a checkpoint of this step, unless there is one."""
        step = self.state.global_step
        if self.checkpoints.newest_step == step:
            return
        started = time.monotonic()
        if self.reporter is not None:
            self.state.metrics_bytes = self.reporter.sync()
        self.checkpoints.save(self.replica, self.state)
        seconds = round(time.monotonic() - started, 3)
        self.events.event("save", step=step, seconds=seconds)
        self.context.say(f"checkpoint {commit.name_of(step)} committed in {seconds:.2f} s")
        if self.reporter is not None:
            self.reporter.restart_clock(step)
