"""The preflight by one process of each node: before a user's script or module, .

A fork of the process that becomes torchrun calls `main` (jobs.node.preload): torch is imported
there already, and what the test takes of a GPU is free again before the ranks start. It tests the
disks and all GPUs of its node, and then, as the rank with the number of its node, does what the
ranks of the trainer do: see `preflight`. A failure ends it and has the same record.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from ..contract import RunDir, quantity
from ..errors import fail, run_with_timeout
from ..process.context import (
    DistributedContext,
    check_device,
    choose_device,
    init_process_group,
    rendezvous_store,
)
from ..process.rank_process import RankProcess
from ..stop import StopSignal
from .phases import DEVICE_TEST
from .preflight import device_problem, preflight
from .watchdog import Watchdog

DISK_LIMIT_S = 60.0  # a busy file server takes seconds
LEAVE_LIMIT_S = 5.0


def main(place: str) -> None:
    """Test this node together with the others of the attempt; a failure ends the process.

    place: "NODE_RANK NUM_NODES NUM_GPUS ADDRESS PORT", the GPUs that the job asked for on this
    node, and where the first node listens for this test.
    """
    started = time.time()
    node_rank, num_nodes, num_gpus, address, port = place.split()
    os.environ |= {"RANK": node_rank, "GROUP_RANK": node_rank, "WORLD_SIZE": num_nodes}
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    run_dir, attempt = RunDir(Path(os.environ["KIT_RUN_DIR"])), int(os.environ["KIT_ATTEMPT"])
    with Watchdog.of_process(os.environ) as watchdog:
        watchdog.open(run_dir, attempt, "auto")
        rank = RankProcess(StopSignal(), started)
        try:
            _test(rank, run_dir, attempt, int(num_gpus), watchdog)
        except BaseException as error:
            with contextlib.suppress(OSError):  # where a reader of the record looks for more
                if rank.attempt_dir is not None:
                    sys.stderr = open(rank.attempt_dir.rank_log(rank.distributed.rank), "a")  # noqa: SIM115
            fail(error, rank.distributed.rank, run_dir.attempt(attempt))


def _test(
    rank: RankProcess, run_dir: RunDir, attempt: int, num_gpus: int, watchdog: Watchdog
) -> None:
    # Before the nodes meet: from then on each waits seconds only for the others.
    problem = disks_problem(run_dir.attempt(attempt).path)
    if not problem:
        rank.open(run_dir, attempt)
    watchdog.beat(DEVICE_TEST)
    problem = problem or gpus_problem(rank.distributed)
    watchdog.beat("rendezvous")
    device, reason = choose_device(rank.distributed) if num_gpus else (torch.device("cpu"), "")
    check_device(num_gpus, f"the job has {quantity(num_gpus, 'GPU')} on each node", device, reason)
    init_process_group(device)
    rank.events.event("rendezvous")
    try:
        preflight(rank, device, watchdog.beat, problem)
    finally:
        with contextlib.suppress(RuntimeError):  # the first node has ended
            _leave(rank)


def gpus_problem(distributed: DistributedContext) -> str:
    """Return what is wrong with the first bad GPU of this node; "" if all are well."""
    for number in range(torch.cuda.device_count()):
        if problem := device_problem(distributed, torch.device("cuda", number)):
            return f"GPU {number}: {problem}"
    return ""


def disks_problem(folder: Path) -> str:
    """Return why this node cannot write into a folder, or into its temporary one; "" if it can."""
    temporary = os.environ.get("TMPDIR") or tempfile.gettempdir()
    return next(filter(None, map(disk_problem, (folder, Path(temporary)))), "")


def disk_problem(folder: Path) -> str:
    """Return why this node cannot write a file into a folder; "" if it can."""
    problems = [f"{folder}: no file was written within {DISK_LIMIT_S:.0f} s"]

    def write() -> None:
        try:
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-") as file:
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
            problems.clear()
        except OSError as error:
            problems[0] = f"{folder}: {error.strerror}"

    run_with_timeout(DISK_LIMIT_S, write)
    return "".join(problems)


def _leave(rank: RankProcess) -> None:
    """Let the first node, which has the store, wait until the others have read their reports."""
    store, distributed = rendezvous_store(), rank.distributed
    num_left, deadline = store.add("left", 1), time.monotonic() + LEAVE_LIMIT_S
    while distributed.is_first and num_left < distributed.world_size:
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
        num_left = store.add("left", 0)
