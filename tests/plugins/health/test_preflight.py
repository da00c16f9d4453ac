"""The preflight's parts: sums and products known to the bit, rank reports, a GPU's readings."""

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from slurm_job_kit.trainer.errors import is_caused_by_peer, kind_of
from slurm_job_kit.trainer.plugins.health.failures import BadNode, Hang, PeerBadNode, PeerHang
from slurm_job_kit.trainer.plugins.health.gpu_health import words
from slurm_job_kit.trainer.plugins.health.preflight import (
    device_problem,
    product_problem,
    sum_problem,
)
from slurm_job_kit.trainer.plugins.health.rank_report import NO_ANSWER, RankReport, are_few
from slurm_job_kit.trainer.process.context import DistributedContext

CPU = torch.device("cpu")


def context(rank, world_size=3, local_world_size=1):
    node_rank = rank // local_world_size
    local_rank = rank % local_world_size
    return DistributedContext(
        rank, local_rank, node_rank, world_size, local_world_size, f"n{node_rank}"
    )


@pytest.fixture
def store():
    master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: TCPStore("127.0.0.1", master.port, timeout=timedelta(seconds=20))


def collect_all(connect, problems, world_size=3, name="call", **limits):
    """{rank: (summary, is_reporter)} of a call in which the ranks of `problems` take part.

    limits: of RankReport.
    """
    collected = {}

    def take_part(rank, problem):
        call = RankReport(PrefixStore(name, connect()), context(rank, world_size), **limits)
        collected[rank] = (call.collect(problem, lambda: None), call.is_reporter)

    threads = [threading.Thread(target=take_part, args=item) for item in problems.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return collected


def test_sound_products_and_sums_have_no_problem():
    assert product_problem(CPU, torch.float32) == ""
    ranks = [torch.arange(100) % 7 + rank for rank in range(4)]
    assert sum_problem(torch.stack(ranks).sum(0), world_size=4) == ""


def test_a_flipped_bit_of_a_sum_is_reported():
    numbers = torch.arange(100) % 7
    numbers[31] ^= 1 << 40
    assert sum_problem(numbers, 1) == (
        "an all-reduce is wrong in 1 of 100 numbers, such as 1099511627779 for 3"
    )


def test_a_nan_in_a_product_is_reported(monkeypatch):
    mm = torch.mm

    def broken(left, right):
        product = mm(left, right)
        product[2, 7] = torch.nan
        return product

    monkeypatch.setattr(torch, "mm", broken)
    assert product_problem(CPU, torch.float32) == (
        "a matrix product (torch.float32) is wrong in 1 of 65536 numbers, such as nan for 59.0"
    )


def test_no_random_number_is_drawn():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert device_problem(None, CPU) == ""  # type: ignore[arg-type]  # only a GPU needs a rank
    assert torch.equal(torch.get_rng_state(), before)


def test_all_ranks_get_the_same_summary(store):
    assert [*collect_all(store, {0: "", 1: "", 2: ""}).values()] == [({}, False)] * 3
    collected = collect_all(store, {0: "", 1: "broken", 2: ""}, name="again")
    assert [summary for summary, _ in collected.values()] == [{1: ("n1", "broken")}] * 3


def test_an_unresponsive_rank_is_reported_by_exactly_one(store):
    collected = collect_all(store, {0: "", 2: "broken"}, no_answer_after_s=0.3)
    expected = {1: ("", NO_ANSWER), 2: ("n2", "broken")}
    assert [summary for summary, _ in collected.values()] == [expected] * 2
    assert sorted(is_reporter for _, is_reporter in collected.values()) == [False, True]
    # A rank that reports late gets the same summary as the others.
    assert collect_all(store, {1: ""})[1] == (expected, False)


def test_the_rank_that_reports_another_needs_no_store_afterwards(store):
    call = RankReport(store(), context(0), no_answer_after_s=0.0)

    class Ending:
        """A store that is gone once there is a summary: all other ranks have ended."""

        is_gone = False

        def __getattr__(self, name):
            if self.is_gone:
                raise RuntimeError("Failed to recv, got 0 bytes. Connection was likely closed.")
            self.is_gone = name == "compare_set"
            return getattr(connection, name)

    ending: Any = Ending()
    connection, call.store = call.store, ending
    connection.set("2", '["n2", ""]')
    assert call.collect("", lambda: None) == {1: ("", NO_ANSWER)}
    assert call.is_reporter


def test_where_most_are_unresponsive_they_are_waited_for(store):
    looks = iter(range(3))

    def may_report():
        if next(looks, None) == 2:  # they answer together, between two looks
            collect_all(store, {1: "", 2: ""}, may_report=lambda: False)
        return True

    collected = collect_all(store, {0: ""}, may_report=may_report, no_answer_after_s=0.2)
    assert collected[0][0] == {}
    assert next(looks, None) is None


def test_a_rank_that_is_asked_to_stop_reports_no_other_rank(store):
    call = {"may_report": lambda: False, "no_answer_after_s": 0.2}
    late = threading.Timer(1.0, collect_all, (store, {1: ""}), call)
    late.start()
    collected = collect_all(store, {0: "", 2: ""}, **call)
    late.join()
    assert [*collected.values()] == [({}, False)] * 2


@pytest.mark.parametrize(
    "ranks, world_size, local_world_size, expected",
    [([0], 1, 1, True), ([1], 2, 1, True), ([8, 9, 15], 32, 8, True), ([0, 8, 16], 32, 8, False)],
)
def test_trouble_of_more_than_half_of_the_nodes_is_no_bad_node(
    ranks, world_size, local_world_size, expected
):
    assert are_few(ranks, context(0, world_size, local_world_size)) is expected


def test_a_rank_at_fault_and_its_peers_leave_different_records():
    found = [
        (kind_of(e("")), is_caused_by_peer(e(""))) for e in (BadNode, PeerBadNode, Hang, PeerHang)
    ]
    assert found == [("bad_node", False), ("unknown", True), ("hang", False), ("hang", True)]


SLOW = "its clocks are slowed down, "
RESET = "rows of its memory are remapped only after a reset"


@pytest.mark.parametrize(
    "readings, expected",
    [
        ((0, [3, 0, 0, 0], 0x1), ""),  # idle
        ((None, None, None), ""),  # a GPU that supports no reading
        ((None, None, 0x20), ""),  # warm
        ((None, [0, 1, 0, 1], None), "a row of its memory could not be remapped"),
        ((None, None, 0x88), f"{SLOW}its power brake is on"),
        ((1, [0, 1, 1, 0], 0x40), f"1 uncorrected ECC errors; {RESET}; {SLOW}it is too hot"),
    ],
)
def test_problem_of_a_gpu(readings, expected):
    assert words(*readings) == expected
