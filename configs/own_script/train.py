"""A training loop of one's own: DDP on made-up data, which stops, saves and resumes.

make submit CONFIG=configs/own_script.yaml
torchrun --standalone --nproc-per-node=2 configs/own_script/train.py 500
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from kit_stop import Stop
from torch.nn.parallel import DistributedDataParallel

stop = Stop()
num_steps = int(sys.argv[1])
is_cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
if is_cuda:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if is_cuda else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = (torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
checkpoint, step = Path(os.environ.get("KIT_CHECKPOINT_DIR", "."), "checkpoint.pt"), 0
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]


def save() -> None:
    """Replace the checkpoint as a whole: whoever is killed here leaves the older one intact."""
    if rank == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"{checkpoint}.tmp")
        os.replace(f"{checkpoint}.tmp", checkpoint)
        stop.saved(step)
        print(f"saved after step {step}: loss {loss.item():.4f}", flush=True)


while step < num_steps:
    step += 1  # the data follows from step and rank alone: a resume goes on with the next sample
    generator = torch.Generator().manual_seed(step * world_size + rank)
    inputs = torch.randn(32, 20, generator=generator).to(device)
    loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stop.progress(step, num_steps, loss=loss.detach())
    if step % 100 == 0 or step == num_steps:
        save()
    if stop.should_stop(step):
        save()
        stop.stopped()
stop.completed()
