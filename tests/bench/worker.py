"""One rank of a bench: join the process group, measure, write the figures to a file."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from slurm_job_kit.jobs.rundir import write_json
from slurm_job_kit.trainer.dist.context import DistributedContext, choose_device, init_process_group
from tests.bench.place import Place

CPU = torch.device("cpu")


def main(name: str, folder: Path) -> None:
    """Measure and leave without a tear-down, as the trainer does."""
    torch.set_num_threads(1)
    context = DistributedContext.from_env(os.environ)
    # A count needs no quiet machine, and is most useful on a GPU; all times are for a CPU.
    device = choose_device(context)[0] if name == "device_syncs" else CPU
    init_process_group(device)
    bench = importlib.import_module(f"tests.bench.{name}")
    figures = bench.measure(Place(context, device, folder))
    if context.is_first:
        write_json(folder / f"{name}.json", [figure.record() for figure in figures])
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
