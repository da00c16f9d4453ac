"""A small training under torchrun, which stops when asked and continues with the same bits.

    torchrun --standalone --nproc-per-node=2 good.py [STEPS OF AN EPOCH]

test_rehearse.py makes scripts with one fault each from it, by replacing single lines.
"""

import os
import random
import signal
import sys

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, STEPS, BATCH, PATH = 2, 6, 8, "checkpoint.pt"
is_asked = False


def note(*_):
    global is_asked
    is_asked = True


def should_stop():
    flag = torch.tensor(int(is_asked))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
signal.signal(signal.SIGTERM, note)
torch.manual_seed(0)
data = torch.randn(STEPS * BATCH * world, 20)
dataset = TensorDataset(data, data.sum(dim=1, keepdim=True))
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
network = torch.nn.Sequential(
    torch.nn.Linear(20, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
)
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=2)
epoch, taken = 0, 0
own = torch.Generator()  # a loader draws a seed at each start: not from the global generator
torch.manual_seed(rank), numpy.random.seed(rank), random.seed(rank)
if os.path.exists(PATH):
    state = torch.load(PATH, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["random"][rank % len(state["random"])])
    epoch, taken = state["epoch"], state["taken"]


def save(path=PATH):
    states = [None] * world
    dist.all_gather_object(states, torch.get_rng_state())
    if rank == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "scaler": scaler.state_dict(),
            "random": states,
            "epoch": epoch,
            "taken": taken,
        }
        target = f"{path}.tmp"
        torch.save(state, target)
        os.replace(target, path)


def stop_if_asked():
    if should_stop():
        save()
        os._exit(1)


def evaluate():
    model.eval()
    with torch.no_grad():
        for inputs, targets in DataLoader(dataset, BATCH, generator=own):
            loss = (network(inputs) - targets).square().mean()
            stop_if_asked()
    model.train()
    return loss.item()


while epoch < EPOCHS:
    sampler.set_epoch(epoch)
    loader = DataLoader(dataset, BATCH, sampler=sampler, generator=own)
    for number, (inputs, targets) in enumerate(loader):
        if number < taken:
            continue
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        taken = number + 1
        if rank == 0:
            print(f"epoch {epoch} step {taken} loss {loss.item():.6f}", flush=True)
        if taken % 2 == 0:
            save()
        stop_if_asked()
    if rank == 0:
        print(f"epoch {epoch} evaluation {evaluate():.6f}", flush=True)
    else:
        evaluate()
    epoch, taken = epoch + 1, 0
save()
sys.stdout.flush()
os._exit(0)  # the end of gloo's threads now and then crashes (torch 2.13)
