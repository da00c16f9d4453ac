"""A loop of one's own with accelerate."""

import tiny
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch.utils.data import DataLoader

from slurm_job_kit.trainer.plugins.integrations.accelerate import AccelerateLoop
from slurm_job_kit.trainer.plugins.integrations.batches import ResumableBatches

net = tiny.begin()
exact = DistributedDataParallelKwargs(find_unused_parameters=True)
accelerator = Accelerator(cpu=True, kwargs_handlers=[exact])
optimizer, scheduler = tiny.optimizer_and_scheduler(net)
batches = ResumableBatches(tiny.NUM_SAMPLES, tiny.BATCH_SIZE, is_split=False)
loader = DataLoader(tiny.Points(), batch_sampler=batches)
model, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
kit = AccelerateLoop(accelerator, tiny.TOTAL, batches=batches, save_every=5)
kit.resume()
for _ in range(kit.epoch, tiny.EPOCHS):
    for batch in loader:
        loss = model(**batch)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        kit.after_batch(loss=loss.detach())
tiny.finish(net)
kit.completed()
