"""One rank of each host builds a data set before the other ranks of the host do."""

import socket
import time
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.spec import Spec, Train
from slurm_job_kit.trainer.events import Events
from slurm_job_kit.trainer.model.training_data import build_data
from slurm_job_kit.trainer.process.context import DistributedContext
from slurm_job_kit.trainer.process.run_handle import RankContext, RunHandle
from tests.unit import forked_ranks

pytestmark = pytest.mark.long  # several ranks

HOSTS = ["a", "a", "a", "b"]
LIMIT_S = 60
# Set in each rank: the functions of a data set get plain arguments only.
place = {"host": "", "folder": ""}


def downloaded():
    """A data set that is no file yet for the first rank of a host; two that write it are an error.

    The first one is done only when another rank of its host waits, or is in here, too.
    """
    folder, host = Path(place["folder"]), place["host"]
    if not (folder / f"complete-{host}").exists():
        (folder / f"file-{host}").touch(exist_ok=False)
        deadline = time.monotonic() + LIMIT_S
        while not [*folder.glob(f"waits-{host}*")] and HOSTS.count(host) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (folder / f"complete-{host}").touch()
    return [(torch.zeros(2), 0)] * 16, None


def context_of(folder, rank, dataset="downloaded"):
    host = HOSTS[rank]
    distributed = DistributedContext(rank, rank, 0, len(HOSTS), len(HOSTS), host)
    train = Train(dataset=f"{__name__}:{dataset}", micro_batch_size=1)
    run = RunHandle(RunDir(Path(folder)), Spec(train=train), 1)
    return RankContext(run, distributed, torch.device("cpu"), Events(rank))


def rank_main(rank, folder, dataset, port):
    text = "built"
    try:  # torchrun's store, too, is one of TCP, and has one connection for each rank
        store = dist.TCPStore("127.0.0.1", port, len(HOSTS), is_master=rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=len(HOSTS))
        place.update(host=HOSTS[rank], folder=folder)
        build_data(
            context_of(folder, rank, dataset), Path(folder, f"waits-{HOSTS[rank]}-{rank}").touch
        )
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        text = traceback.format_exc()
    Path(folder, f"rank-{rank}").write_text(text)


def found_by_ranks(folder, dataset="downloaded"):
    """Return what each rank wrote; no machine has the run directory, as in a launch by hand."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = [(rank, str(folder), dataset, port) for rank in range(len(HOSTS))]
    forked_ranks.run(rank_main, arguments)
    return [(folder / f"rank-{rank}").read_text() for rank in range(len(HOSTS))]


def test_one_rank_of_each_host_prepares_a_data_set_and_the_others_find_it(tmp_path):
    assert found_by_ranks(tmp_path) == ["built"] * len(HOSTS)


def with_barrier():
    """A data set in the usual order by hand: rank 0 prepares it, the others wait in a barrier."""
    if dist.get_rank() == 0:
        Path(place["folder"], "prepared").touch()
    dist.barrier()
    assert Path(place["folder"], "prepared").exists()
    return [(torch.zeros(2), 0)] * 16, None


def with_group():
    """A data set that makes a group of its own: there a rank waits in the store of all ranks."""
    dist.barrier(group=dist.new_group(backend="gloo"))
    return with_barrier()


def with_flag():
    """A data set that rank 0 prepares, and for which the others look."""
    flag = Path(place["folder"], "flag")
    if dist.get_rank() == 0:
        flag.touch()
    deadline = time.monotonic() + LIMIT_S
    while not flag.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [(torch.zeros(2), 0)] * 16, None


@pytest.mark.parametrize("dataset", ["with_barrier", "with_group", "with_flag"])
def test_a_data_set_whose_ranks_have_an_order_of_their_own_is_built(dataset, tmp_path):
    assert found_by_ranks(tmp_path, dataset) == ["built"] * len(HOSTS)


def fails_on_rank_0():
    return fail_on(0)


def fails_on_rank_2():
    return fail_on(2)


def fail_on(rank):
    if dist.get_rank() == rank:
        raise ConnectionError("the download broke off")
    return [(torch.zeros(2), 0)] * 16, None


@pytest.mark.parametrize("rank", [0, 2])
def test_the_others_do_not_wait_for_a_rank_whose_data_set_failed(tmp_path, rank):
    """Rank 0 is the first one of its host."""
    found = found_by_ranks(tmp_path, f"fails_on_rank_{rank}")
    assert "the download broke off" in found[rank]
    assert "built" not in found  # their next collective ends with the rank
