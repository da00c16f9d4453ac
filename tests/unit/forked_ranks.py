"""Ranks of a test: one process imports torch and the test's module, and forks them."""

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

LIMIT_S = 300
# torch's workers and the sharded strategies, which each rank would import otherwise.
PRELOADED = (
    "slurm_job_kit.trainer.data.worker_init",
    "slurm_job_kit.trainer.data.loader",
    "slurm_job_kit.trainer.strategy.fsdp",
)


def run(target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[int | None]:
    """Call `target` with each of the arguments in a process of its own; return the exit codes.

    Waits until all have ended. A process that takes longer than LIMIT_S is killed; it has then not
    written what it found.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, target.__module__])
    processes = [context.Process(target=target, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]
