"""A loop of one's own with Lightning's Fabric."""

import tiny
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch.utils.data import DataLoader

from slurm_job_kit.trainer.plugins.integrations.batches import ResumableBatches
from slurm_job_kit.trainer.plugins.integrations.fabric import FabricLoop

net = tiny.begin()
exact = DDPStrategy(find_unused_parameters=True)
devices = {"devices": tiny.LOCAL_RANKS, "num_nodes": tiny.NODES}
fabric = Fabric(accelerator="cpu", strategy=exact, **devices)
fabric.launch()
optimizer, scheduler = tiny.optimizer_and_scheduler(net)
model, optimizer = fabric.setup(net, optimizer)
batches = ResumableBatches(tiny.NUM_SAMPLES, tiny.BATCH_SIZE)
loader = DataLoader(tiny.Points(), batch_sampler=batches)
loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
kit = FabricLoop(fabric, state, tiny.TOTAL, batches=batches, save_every=5)
kit.resume()
for _ in range(kit.epoch, tiny.EPOCHS):
    for batch in loader:
        loss = model(**batch)
        fabric.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        kit.after_batch(loss=loss.detach())
tiny.finish(net)
kit.completed()
