"""Lightning's Trainer."""

import tiny
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from slurm_job_kit.trainer.plugins.integrations.batches import ResumableBatches
from slurm_job_kit.trainer.plugins.integrations.lightning import LightningCallback


class Module(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch):
        return self.net(**batch)

    def configure_optimizers(self):
        optimizer, scheduler = tiny.optimizer_and_scheduler(self.net)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


net = tiny.begin()
batches = ResumableBatches(tiny.NUM_SAMPLES, tiny.BATCH_SIZE)
kit = LightningCallback(batches=batches, save_every=5)
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp_find_unused_parameters_true",
    devices=tiny.LOCAL_RANKS,
    num_nodes=tiny.NODES,
    max_epochs=tiny.EPOCHS,
    use_distributed_sampler=False,
    callbacks=[kit],
    logger=False,
    enable_progress_bar=False,
)
loader = DataLoader(tiny.Points(), batch_sampler=batches)
trainer.fit(Module(net), loader, ckpt_path=kit.newest())
tiny.finish(net)
kit.keeper.completed()
