"""Lightning's Trainer: a small network on made-up points.

    make submit CMD="python configs/examples/lightning_trainer.py --epochs 5" SET="slurm.nodes=2"

The lines with `kit` save the training in time when Slurm takes its nodes, and resume it. Needs
lightning beside torch and the kit.
"""

import argparse
import os

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from slurm_job_kit.trainer.plugins.integrations.batches import ResumableBatches
from slurm_job_kit.trainer.plugins.integrations.lightning import LightningCallback

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
epochs = parser.parse_args().epochs


class Net(LightningModule):
    """Learns the sum of 20 numbers."""

    def __init__(self):
        super().__init__()
        layers = (torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1))
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))

    def training_step(self, batch):
        inputs, targets = batch
        return (self.layers(inputs) - targets).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


seed_everything(0)  # every rank and every start makes the same data and the same first weights
points = torch.randn(4096, 20)
data = TensorDataset(points, points.sum(dim=1, keepdim=True))
batches = ResumableBatches(len(data), batch_size=32)  # shuffles; a resume goes on in its order
kit = LightningCallback(batches=batches, save_every=100)
trainer = Trainer(
    # torchrun has started the ranks: Lightning must count them in the same way.
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp_find_unused_parameters_true",  # the same bits after a resume, too
    use_distributed_sampler=False,  # `batches` divides the samples among the ranks
    max_epochs=epochs,
    callbacks=[kit],
    enable_progress_bar=False,  # `make status` shows the progress
    logger=False,
)
trainer.fit(Net(), DataLoader(data, batch_sampler=batches), ckpt_path=kit.newest())
trainer.save_checkpoint(os.path.join(os.environ.get("KIT_CHECKPOINT_DIR", "."), "final.ckpt"))
kit.keeper.completed()  # exits; the run is complete
