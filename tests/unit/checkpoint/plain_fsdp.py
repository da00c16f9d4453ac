"""A script without the kit: load an exported directory with DCP into FSDP2, as one of some ranks.

    python plain_fsdp.py RANK RANKS EXPORT FOLDER

Rank 0 writes what was loaded to FOLDER/found.pt: weights, state and options of the optimizer by
name, once for each of the two ways in which torch names the options.
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def loaded(export, flatten):
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    fully_shard(module[0])
    fully_shard(module)
    parameters = list(module.parameters())
    groups = [
        {"params": [each for each in parameters if (each.ndim > 1) is is_matrix]}
        for is_matrix in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, weight_decay=0.5)
    options = state_dict.StateDictOptions(flatten_optimizer_state_dict=flatten)
    model, optim = state_dict.get_state_dict(module, optimizer, options=options)
    values: dict[str, Any] = {"model": model, "optim": optim}
    load(values, checkpoint_id=export)
    state_dict.set_state_dict(
        module,
        optimizer,
        model_state_dict=values["model"],
        optim_state_dict=values["optim"],
        options=options,
    )
    names = {id(each): name for name, each in module.named_parameters()}
    return {
        "model": {name: whole(value) for name, value in module.state_dict().items()},
        "state": {
            names[id(each)]: {key: whole(value) for key, value in values.items()}
            for each, values in optimizer.state.items()
        },
        "weight_decay": [group["weight_decay"] for group in optimizer.param_groups],
    }


def main(rank, ranks, export, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    found = [loaded(export, flatten) for flatten in (False, True)]
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # Python's end may abort after a group over gloo (torch 2.13)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
