"""Lightning without a known end; its steps return more than a loss. The warning is in step 4."""

import signal

import tiny
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from slurm_job_kit.trainer.rooms.integrations.batches import ResumableBatches
from slurm_job_kit.trainer.rooms.integrations.lightning import LightningCallback


class Module(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch):
        if self.global_step == 3:
            signal.raise_signal(signal.SIGTERM)
        return {"loss": self.net(**batch), "phase": "warm-up"}

    def configure_optimizers(self):
        return tiny.optimizer_and_scheduler(self.net)[0]


net = tiny.begin()
batches = ResumableBatches(tiny.NUM_SAMPLES, tiny.BATCH_SIZE)
kit = LightningCallback(batches=batches)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=-1,
    use_distributed_sampler=False,
    callbacks=[kit],
    logger=False,
    enable_progress_bar=False,
)
loader = DataLoader(tiny.Points(), batch_sampler=batches)
trainer.fit(Module(net), loader, ckpt_path=kit.newest())
