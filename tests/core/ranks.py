"""The ranks of a test: their contexts, and processes that one import of torch serves."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.process.events import Events
from slurm_job_kit.trainer.process.run_handle import RankContext, RunHandle
from slurm_job_kit.trainer.process.watcher import Pulse, Watcher

CPU = torch.device("cpu")
LIMIT_S = 300
# torch's workers and the sharded strategies, which each rank would import otherwise.
PRELOADED = (
    "slurm_job_kit.trainer.plugins.samples.worker_init",
    "slurm_job_kit.trainer.plugins.samples.processes",
    "slurm_job_kit.trainer.plugins.sharded.fsdp",
)


def place_of(rank: int = 0, world_size: int = 1, local: int | None = None) -> DistributedContext:
    """A rank's place; `local`: the number of ranks on its node, by default all of them."""
    return DistributedContext(rank, rank, 0, world_size, local or world_size, "here")


def context_of(
    folder: Path,
    spec: Spec,
    place: DistributedContext | None = None,
    attempt: int = 1,
    pulse: Pulse | None = None,
    *watchers: Watcher,
) -> RankContext:
    """The context of a rank, by default the only one, whose run directory is `folder`."""
    place, run = place or place_of(), RunHandle(RunDir(folder), spec, attempt)
    return RankContext(run, place, CPU, Events(place.rank), pulse or Pulse(), watchers)


def join(folder: Path, rank: int, world_size: int) -> DistributedContext:
    """Join the process group of this size whose ranks have this folder; return the place."""
    store = dist.FileStore(f"{folder}/store-{world_size}", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return place_of(rank, world_size)


def results(work: Callable[..., Any], folder: Path, num_ranks: int, *arguments: Any) -> list[Any]:
    """Call `work(folder, rank, *arguments)` in a process of each rank; return what each returned.

    Fails with the traceback of a rank that failed. A process that takes longer than LIMIT_S is
    killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, work.__module__])
    processes = [
        context.Process(target=_rank_main, args=(work, folder, rank, *arguments))
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
    found = [torch.load(_file(folder, rank), weights_only=False) for rank in range(num_ranks)]
    failed = [trace for is_done, trace in found if not is_done]
    assert not failed, "\n".join(failed)
    return [result for _, result in found]


def _rank_main(work: Callable[..., Any], folder: Path, rank: int, *arguments: Any) -> None:
    torch.set_num_threads(1)
    try:
        found = True, work(folder, rank, *arguments)
    except BaseException:
        found = False, traceback.format_exc()
    torch.save(found, _file(folder, rank))
    os._exit(0)  # a tear-down of gloo may hang, and other ranks may wait for this one


def _file(folder: Path, rank: int) -> Path:
    return folder / f"result-{rank}"
