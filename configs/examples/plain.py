"""A training in plain torch. Its lines with `stop` save it in time when Slurm takes its nodes.

    make submit CMD="python configs/examples/plain.py --epochs 10" SET="slurm.nodes=2"

For your own script copy kit_stop.py beside it. Without the kit this one runs as before:

    torchrun --standalone --nproc-per-node=2 configs/examples/plain.py
"""

import argparse
import itertools
import os
from pathlib import Path

import torch
import torch.distributed as dist
from kit_stop import Stop
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
epochs = parser.parse_args().epochs

stop = Stop()  # 1 of 3: from here on the signal to stop does not end this process
is_cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
dist.init_process_group("nccl" if is_cuda else "gloo")

torch.manual_seed(0)  # every rank and every start makes the same data and the same first weights
points = torch.randn(4096, 20)
data = TensorDataset(points, points.sum(dim=1, keepdim=True))
sampler = DistributedSampler(data, drop_last=True)
loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
layers = (torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

# The kit gives each run a folder for its checkpoints, which a restart of the run finds again.
checkpoint, step = Path(os.environ.get("KIT_CHECKPOINT_DIR", "."), "checkpoint.pt"), 0
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]


def save() -> None:
    """Replace the checkpoint by a rename: a kill in the save leaves the older one intact."""
    if dist.get_rank() == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"{checkpoint}.tmp")
        os.replace(f"{checkpoint}.tmp", checkpoint)
        stop.saved(step)  # optional: counts as progress, so that the run may restart often
        print(f"saved after step {step}: loss {loss.item():.4f}", flush=True)


for epoch in range(step // len(loader), epochs):
    sampler.set_epoch(epoch)  # the order of an epoch depends on its number alone
    # In the epoch of a resume without the batches that were trained on before it.
    for inputs, targets in itertools.islice(loader, step % len(loader), None):
        loss = (model(inputs.to(device)) - targets.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        stop.progress(step, epochs * len(loader), loss=loss.detach())  # optional: for `make status`
        if stop.should_stop(step):  # 2 of 3: the same answer on all ranks
            save()
            stop.stopped()  # exits; the kit starts the script again, which resumes above
    save()
stop.completed()  # 3 of 3: exits; the run is complete and does not start again
