"""A callback of Lightning's Trainer: the training stops, saves and resumes whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from .keeper import Keeper

FILE = "lightning.ckpt"


class LightningCallback(Checkpoint):
    """`Trainer(callbacks=[kit], use_distributed_sampler=False)`, `fit(ckpt_path=kit.newest())`.

    options: those of Keeper. Lightning calls a Checkpoint after all other callbacks.
    """

    def __init__(self, **options: Any) -> None:
        self.keeper = Keeper(**options)
        self.last_step = 0

    def newest(self) -> str | None:
        """Return the file of the newest whole checkpoint for `fit`; the sampler goes on there."""
        if (checkpoint := self.keeper.newest()) is None:
            return None
        self.keeper.restore(checkpoint, is_end_skipped=True)
        return str(checkpoint / FILE)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take SIGTERM back: Lightning's handler begins a broadcast wherever the rank just is."""
        self.keeper.watch()
        self.last_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report, save, stop; after the last batch of an optimizer step."""
        self.keeper.count_batch()
        if trainer.global_step == self.last_step:  # it accumulates gradients
            return
        self.keeper.step = self.last_step = trainer.global_step
        loss = {"loss": outputs["loss"]} if isinstance(outputs, dict) and "loss" in outputs else {}
        total = trainer.estimated_stepping_batches
        self.keeper.after_step(total, lambda folder: self._write(trainer, folder), loss)

    def _write(self, trainer: Trainer, folder: Path) -> None:
        trainer.save_checkpoint(folder / FILE)
        for logger in trainer.loggers:
            logger.save()
