"""Tests every node once per attempt, after the rendezvous and before any data is read.

Each rank computes a matrix product and takes part in an all-reduce; both results are known to the
bit. On a GPU it also reads the driver's health counters. The rank of a node that fails writes an
error record (kind `bad_node`); for a rank that does not answer for 5 s another rank writes it. The
next attempt leaves the node out. Draws no random numbers, and costs milliseconds on a CPU. If most
ranks are slow the others wait, up to the watchdog's limit (`phases`).
"""

import math
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from ...contract import Kind, RankError, files, records
from ...errors import in_one_line, log, run_with_timeout
from ...process.context import DistributedContext
from ...process.run_handle import RankProcess
from . import gpu_health
from .diagnosis import end_siblings, place_of
from .failures import BadNode, PeerBadNode
from .phases import DEVICE_TEST
from .rank_report import NO_ANSWER, RankReport, Summary, are_few

# Rows and columns of the factors repeat with these periods, so the product has few different
# elements, which are computed separately. Sums of at most 1024 numbers, each -1, 0 or 1, are exact
# in float16, too, in any order.
LEFT = (-1, 0, 1, 1, -1, 0, 1)
RIGHT = (1, -1, 1, 0, 1)
OUTER_ON_CPU, OUTER_ON_GPU = 256, 4096


def preflight(rank: RankProcess, device: torch.device) -> None:
    """Test all nodes, together with all other ranks.

    Raises: BadNode on a rank whose node failed, PeerBadNode on the others; a RuntimeError where a
    rank dies meanwhile, or where more than half of the nodes have a problem, so that the nodes are
    not at fault.
    """
    # Started first: gloo reports a peer that dies, the store never does. Before DEVICE_TEST: NCCL
    # connects in here, so a broken network must not look like a broken device.
    numbers = torch.arange(2**17, device=device) % 7 + rank.distributed.rank  # 1 MiB
    exchange = dist.all_reduce(numbers, async_op=True)
    assert exchange is not None
    rank.pulse.beat(DEVICE_TEST)

    def raise_if_peer_died() -> None:
        if exchange.is_completed():
            exchange.wait()

    problem = device_problem(rank.distributed, device)
    rank.pulse.beat("all-reduce test")
    # torch looks up the host name of each address that it connects to. If the name server does not
    # answer, a new connection takes longer than NO_ANSWER_AFTER_S. This store is connected, and
    # outlives the ranks (source: torchrun, "Environment Variables").
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"kit/{os.environ.get('KIT_ATTEMPT')}/{restart}/preflight"
    store = PrefixStore(prefix, _get_default_store())
    _report(store, "device", problem, raise_if_peer_died, rank)
    while not exchange.is_completed():
        time.sleep(0.001)
    exchange.wait()
    problem = sum_problem(numbers, rank.distributed.world_size)
    _report(store, "sum", problem, raise_if_peer_died, rank)


def sum_problem(numbers: torch.Tensor, world_size: int) -> str:
    """Return what is wrong with the sum over all ranks of `arange % 7 + rank`; "" if correct."""
    own = torch.arange(len(numbers), device=numbers.device) % 7
    expected = world_size * own + math.comb(world_size, 2)
    return _difference("an all-reduce", numbers, expected)


def device_problem(distributed: DistributedContext, device: torch.device) -> str:
    if device.type != "cuda":
        return product_problem(device, torch.float32)
    try:
        problem = product_problem(device, torch.float32) or product_problem(device, torch.float16)
    except RuntimeError as error:  # no code of the user has run yet
        return in_one_line(error)
    unfit, unknown = gpu_health.problem(device)
    if unknown:
        distributed.log(f"preflight: ECC errors and throttling are not checked: {unknown}")
    return problem or unfit


def product_problem(device: torch.device, dtype: torch.dtype) -> str:
    """Return what is wrong with a matrix product of known elements; "" if correct."""
    outer = OUTER_ON_GPU if device.type == "cuda" else OUTER_ON_CPU
    places = torch.arange(outer, device=device)
    rows, columns = places % len(LEFT), places % len(RIGHT)
    left, right, product = (each.to(device, dtype) for each in factors())
    result = torch.mm(left[rows], right[:, columns])
    return _difference(f"a matrix product ({dtype})", result, product[rows][:, columns])


def factors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the different rows of one factor, columns of the other, and their product."""
    inner = torch.arange(1024)
    left = torch.tensor(LEFT)[(torch.arange(len(LEFT))[:, None] + 3 * inner) % len(LEFT)]
    right = torch.tensor(RIGHT)[(2 * inner[:, None] + torch.arange(len(RIGHT))) % len(RIGHT)]
    return left, right, left @ right  # of integers, on the CPU


def _difference(what: str, result: torch.Tensor, expected: torch.Tensor) -> str:
    wrong = result != expected
    count = int(wrong.sum().item())
    if not count:
        return ""
    first = tuple(wrong.nonzero()[0].tolist())
    example = f"{result[first].item()} for {expected[first].item()}"
    return f"{what} is wrong in {count} of {result.numel()} numbers, such as {example}"


def _report(
    store: PrefixStore, name: str, problem: str, poll: Callable[[], None], rank: RankProcess
) -> None:
    # After a stop the others may have exited: then no rank reports that they do not answer.
    own_store, may_report = PrefixStore(name, store), lambda: not rank.stop.requested
    report = RankReport(own_store, rank.distributed, may_report)
    summary = report.collect(problem, poll)
    if not summary:
        return
    if not are_few(summary, rank.distributed):
        raise RuntimeError(f"preflight: {len(summary)} ranks failed: {_first_of(summary, rank)}")
    if unresponsive := [number for number, (host, _) in summary.items() if not host]:
        run_with_timeout(5.0, lambda: _end_unresponsive(unresponsive, rank, report.is_reporter))
    if (me := rank.distributed.rank) in summary:
        raise BadNode(f"preflight: {summary[me][1]}")
    raise PeerBadNode(f"preflight: {_first_of(summary, rank)}")


def _first_of(summary: Summary, rank: RankProcess) -> str:
    """Return the first bad rank, its host and its problem, and how many more there are."""
    first, (host, problem) = next(iter(summary.items()))
    host = host or place_of(rank.attempt_dir, first).host
    more = f" (and {len(summary) - 1} more)" if len(summary) > 1 else ""
    return f"rank {first} on {host}: {problem}{more}"


def _end_unresponsive(ranks: list[int], rank: RankProcess, is_reporter: bool) -> None:
    """Write the error record of each rank that does not answer; kill those of this node."""
    attempt_dir, me = rank.attempt_dir, rank.distributed.rank
    places = {number: place_of(attempt_dir, number) for number in ranks}
    for number, place in places.items() if is_reporter else ():
        log(f"preflight: rank {number} on {place.host}: {NO_ANSWER}", sys.stderr)
        if attempt_dir is not None and files.is_dir(attempt_dir.path):
            text, now = f"preflight: {NO_ANSWER}", round(time.time(), 3)
            record = RankError(now, number, place.host, text, kind=Kind.BAD_NODE, reporter=me)
            records.write(attempt_dir.rank_error(number), record)
    end_siblings(places.values())
