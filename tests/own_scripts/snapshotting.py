"""A script in the shape of PyTorch's multi-GPU tutorial: snapshot.pt in the working directory.

    torchrun snapshotting.py EPOCHS HOLD_AFTER

It knows nothing of the kit. After the epoch HOLD_AFTER rank 0 waits for a file `go` in the working
directory, so that a test can interrupt it there. The model has one parameter, and the optimizer no
state: DDP reduces it in the same order in every attempt, so a resume is bitwise.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SNAPSHOT = "snapshot.pt"
num_epochs, hold_after = map(int, sys.argv[1:])
Path("configs/own_script.yaml").read_text()  # an input of the repository, by its relative path
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(20, 1, bias=False)
epochs_run = 0
if os.path.exists(SNAPSHOT):
    snapshot = torch.load(SNAPSHOT, weights_only=True)
    model.load_state_dict(snapshot["MODEL_STATE"])
    epochs_run = snapshot["EPOCHS_RUN"]
replica = DistributedDataParallel(model)
optimizer = torch.optim.SGD(replica.parameters(), lr=1e-2)
print(f"rank {rank} begins at epoch {epochs_run}", flush=True)
for epoch in range(epochs_run, num_epochs):
    for batch in range(8):
        seed = (epoch * 8 + batch) * world_size + rank
        inputs = torch.randn(32, 20, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        loss = (replica(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    if rank == 0:
        state = {"MODEL_STATE": model.state_dict(), "EPOCHS_RUN": epoch + 1}
        torch.save(state, f"{SNAPSHOT}.new")
        os.replace(f"{SNAPSHOT}.new", SNAPSHOT)
        print(f"epoch {epoch} saved", flush=True)
        while epoch == hold_after and not os.path.exists("go"):
            time.sleep(0.01)
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
# Python's end aborts now and then after a group over gloo: "terminate called" (torch 2.13).
os._exit(0)
