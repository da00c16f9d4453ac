"""Which rank is not in the collective of the others, from the flight recorder of each rank."""

import contextlib
import dataclasses
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.records.nodes import Collective, GroupCollectives, RankHang
from slurm_job_kit.jobs.rundir import RunDir, read_json
from slurm_job_kit.trainer.health.diagnosis import (
    Absence,
    absence,
    collectives_of_process,
    diagnose,
    group_collectives,
    laggards,
    ras_report,
)
from slurm_job_kit.trainer.process.context import init_process_group
from tests.unit import forked_ranks
from tests.unit.health.test_watchdog import start as start

NUM_RANKS = 3
LIMIT_S = 30


def collective(number, kind="all_reduce", size=1024, has_begun=False):
    return Collective(number, kind, size, has_begun)


def ended(number, ranks=(), group="nccl:0"):
    """A rank that waits in no collective of the group; `number` is its last one."""
    return GroupCollectives(group, ranks, collective(number))


def waiting(number, *, last=0, ranks=(), group="nccl:0", **what):
    """A rank whose first unfinished collective has the number; it has called more up to `last`."""
    own = collective(number, **what)
    return GroupCollectives(group, ranks, collective(last) if last else own, own)


def states_of(*traces):
    """The states of ranks with these groups; None: its recorder was not read."""
    return [
        RankHang(1.0, rank, f"n{rank}", 100, "batch", 5, "loop.py:1 run", True, each)
        for rank, each in enumerate(traces)
    ]


DP, SHARD = "nccl:dp", "nccl:shard"
CASES = {
    "a rank is behind by one": (
        [(waiting(12),), (waiting(12),), (ended(11),)],
        {2},
        "rank 2 did not begin all_reduce 12 (1,024 elements), in which ranks 0, 1 wait",
    ),
    "two ranks are behind": (
        [(waiting(12),), (ended(11),), (ended(11),)],
        {1, 2},
        "ranks 1, 2 did not begin all_reduce 12 (1,024 elements), in which rank 0 waits",
    ),
    "the others are ahead, and each has called more": (
        [(waiting(12, last=40),), (waiting(12, last=35),), (ended(11),)],
        {2},
        "rank 2 did not begin all_reduce 12 (1,024 elements), in which ranks 0, 1 wait",
    ),
    "the root of a broadcast is in the next collective": (
        [(waiting(13),), (waiting(12, kind="broadcast"),), (ended(11),)],
        {2},
        "rank 2 did not begin broadcast 12 (1,024 elements), in which rank 1 waits; "
        "rank 2 did not begin all_reduce 13 (1,024 elements), in which rank 0 waits",
    ),
    "a rank called no collective of the group": (
        [(waiting(1),), (), (waiting(1),)],
        {1},
        "rank 1 did not begin all_reduce 1 (1,024 elements), in which ranks 0, 2 wait",
    ),
    "a rank that is not in the group is not missed there": (
        [(waiting(3, ranks=(0, 2)),), (ended(9),), (ended(2, ranks=(0, 2)),)],
        {2},
        "rank 2 did not begin all_reduce 3 of ranks 0, 2 (1,024 elements), in which rank 0 waits",
    ),
    # 0 waits for 2 in one group, 2 waits for 3 in another one.
    "a rank that waits for another one is not the last in the chain": (
        [
            (waiting(10, ranks=(0, 2), group=DP), ended(20, ranks=(0, 1), group=SHARD)),
            (waiting(10, ranks=(1, 3), group=DP), ended(20, ranks=(0, 1), group=SHARD)),
            (ended(9, ranks=(0, 2), group=DP), waiting(20, ranks=(2, 3), group=SHARD)),
            (ended(9, ranks=(1, 3), group=DP), ended(19, ranks=(2, 3), group=SHARD)),
        ],
        {3},
        "rank 3 did not begin all_reduce 10 of ranks 1, 3 (1,024 elements), in which rank 1 waits; "
        "rank 3 did not begin all_reduce 20 of ranks 2, 3 (1,024 elements), in which rank 2 waits",
    ),
    "two ranks call two groups in another order": (
        [
            (waiting(5, group="nccl:1"), ended(4, group="nccl:2")),
            (ended(4, group="nccl:1"), waiting(5, kind="all_gather", group="nccl:2")),
        ],
        {0, 1},
        "rank 1 did not begin all_reduce 5 (1,024 elements), in which rank 0 waits; "
        "rank 0 did not begin all_gather 5 (1,024 elements), in which rank 1 waits",
    ),
    "a rank is in another kind": (
        [(waiting(12),), (waiting(12),), (waiting(12, kind="all_gather", size=3),)],
        {2},
        "the collectives differ: rank 2 in all_gather 12 (3 elements), "
        "ranks 0, 1 in all_reduce 12 (1,024 elements)",
    ),
    "a rank has another size": (
        [(waiting(12),), (waiting(12, size=7),), (waiting(12),)],
        {1},
        "the collectives differ: rank 1 in all_reduce 12 (7 elements), "
        "ranks 0, 2 in all_reduce 12 (1,024 elements)",
    ),
    "of two ranks in different kinds neither is the one": (
        [(waiting(12),), (waiting(12, kind="broadcast", size=3),)],
        set(),
        "the collectives differ: rank 0 in all_reduce 12 (1,024 elements), "
        "rank 1 in broadcast 12 (3 elements)",
    ),
    "in a scatter the inputs differ": (
        [(waiting(4, kind="scatter", size=9),), (waiting(4, kind="scatter", size=0),)],
        set(),
        "",
    ),
    "a GPU that did not reach a collective that others began": (
        [(waiting(12, has_begun=True),), (waiting(12, last=20),), (waiting(12, has_begun=True),)],
        {1},
        "rank 1 did not begin all_reduce 12 (1,024 elements), in which ranks 0, 2 wait",
    ),
    "a GPU that is through, as the next collective is queued": (
        [(waiting(12, last=13, has_begun=True),), (waiting(13),)],
        set(),
        "",
    ),
    "nobody is behind": ([(waiting(12),), (waiting(12, last=13),)], set(), ""),
    "nobody waits in a collective": ([(ended(12),), (ended(11),)], set(), ""),
    "a rank whose recorder was not read": ([(waiting(12),), None, (waiting(12),)], set(), ""),
    "no recorder": ([None, None], set(), ""),
}


@pytest.mark.parametrize(("traces", "ranks", "text"), CASES.values(), ids=CASES)
def test_the_rank_that_is_not_in_the_collective_of_the_others(traces, ranks, text):
    states = states_of(*traces)
    assert absence(states) == Absence(frozenset(ranks), text)
    # Where the recorder names no rank, they are all alike: at one line of one step.
    assert {state.rank for state in laggards(states)} == (ranks or set(range(len(states))))
    assert text in diagnose({state.rank: state for state in states}, {})


def test_of_the_ranks_that_are_not_in_the_collective_the_one_that_works_is_the_suspect():
    waits, idle, busy = states_of((waiting(2),), (), ())
    busy = dataclasses.replace(busy, is_waiting=False)
    assert laggards([waits, idle, busy]) == [busy]


def test_a_record_keeps_its_collectives_and_an_older_one_has_none(tmp_path):
    (state,) = states_of((waiting(3, last=4, ranks=(0, 2)), ended(1)))
    records.write(tmp_path / "new", state)
    assert records.read(RankHang, tmp_path / "new") == state
    older = json.loads((tmp_path / "new").read_text())
    del older["collectives"]
    (tmp_path / "old").write_text(json.dumps(older))
    assert records.read(RankHang, tmp_path / "old") == dataclasses.replace(state, collectives=None)


def entry(number, *, group="0", kind="nccl:all_reduce", state="completed", sizes=((8, 2),), **more):
    """An entry of NCCL's recorder, with the keys that the kit reads."""
    keys = {"process_group": [group, "undefined"], "collective_seq_id": number, "retired": False}
    keys |= {"is_p2p": False, "profiling_name": kind, "state": state, "input_sizes": sizes}
    return keys | more


def test_the_last_and_the_first_unfinished_collective_of_each_group_are_read():
    entries = [
        entry(3, state="scheduled", retired=True),
        entry(4, kind="nccl:_all_gather_base", state="started", sizes=((5,), (2, 3))),
        entry(5, state="scheduled"),
        # Parts of one operation: those in it have no state of their own.
        entry(7, group="1", state="scheduled"),
        entry(7, group="1", kind="nccl:coalesced", sizes=()),
        entry(1, group="1", kind="nccl:send 0->1", state="scheduled", is_p2p=True),
        entry(9, group="a group that was destroyed", state="scheduled"),
    ]
    both, part = group_collectives(entries, {"0": (1, 0), "1": (1,)})
    begun = collective(4, "_all_gather_base", 11, has_begun=True)
    assert both == GroupCollectives("nccl:0", (), collective(5, size=16), begun)
    assert part == GroupCollectives("nccl:1", (1,), collective(7, "coalesced", 0))


# As in NCCL's user guide, RAS, "Sample Output".
RAS_STATUS = """\
OK
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE
"""
RAS_PROBLEMS = """\

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""


@contextlib.contextmanager
def ras(answer):
    """The environment with the address of a server that answers once and closes, as RAS does."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as executor:
        server.settimeout(LIMIT_S)

        def serve():
            peer, _ = server.accept()
            with peer, peer.makefile("rb") as commands:
                assert [commands.readline(), commands.readline()][1] == b"verbose status\n"
                peer.sendall(answer.encode())

        served = executor.submit(serve)
        yield {"NCCL_RAS_ADDR": f"127.0.0.1:{server.getsockname()[1]}"}
        served.result(LIMIT_S)


def test_the_missing_ranks_that_nccls_ras_reports_are_read():
    with ras(RAS_STATUS + RAS_PROBLEMS) as environ:
        lines = ras_report(environ)
    assert (lines[0], len(lines)) == ("Errors", 10) and "  The missing rank: 21" in lines
    with ras(RAS_STATUS) as environ:
        assert ras_report(environ) == []
    with ras(RAS_STATUS + "Warnings\n" + 5000 * "  Rank 1 -- GPU 0\n") as environ:
        assert len(ras_report(environ)) < 50


def test_the_rank_that_found_the_hang_asks_nccls_ras_once(start, monkeypatch):
    with ras(RAS_STATUS + RAS_PROBLEMS) as environ:
        monkeypatch.setenv(*environ.popitem())
        ranks = start("nccl", "wait")
        ranks.hang()
        outputs = ranks.end(0, 1)[1]
    conclusion = read_json(ranks.attempt.hang)
    assert conclusion["waited_for"] == [1] and "all_reduce 3 (8 elements)" in conclusion["error"]
    line = "trainer: NCCL's RAS:   The missing rank: 21"
    assert [line in output for output in outputs] == [conclusion["rank"] == each for each in (0, 1)]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no port", ""])
def test_without_an_answer_of_nccls_ras_there_is_no_line(address):
    assert ras_report({"NCCL_RAS_ADDR": address}) == []


def call_collectives(rank, port, folder):
    """Rank 1 does not call the last all_reduce; all stay until each has written its record."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.pop("TORCH_FR_BUFFER_SIZE", None)
    attempt = RunDir(folder).attempt(1)
    assert collectives_of_process() == ()
    init_process_group(torch.device("cpu"))
    assert "TORCH_FR_BUFFER_SIZE" in os.environ  # torch 2.13 records by default, too
    part = dist.new_group([0, 2])
    dist.barrier()
    if rank != 1:
        dist.all_reduce(torch.ones(4, 2), group=part)
        dist.all_reduce(torch.ones(6, 5), async_op=True)
    deadline = time.monotonic() + LIMIT_S
    while True:  # a thread of gloo records the end of a collective after the call has returned
        (state,) = states_of(collectives_of_process())
        waits = [each.waits_in.number for each in state.collectives or () if each.waits_in]
        if waits == ([] if rank == 1 else [2]):
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    records.write(attempt.rank_hang(rank), dataclasses.replace(state, rank=rank))
    while not all(attempt.rank_hang(each).exists() for each in range(NUM_RANKS)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os._exit(0)  # gloo's destructor would wait for the collective


def test_the_recorder_of_gloo_shows_which_rank_did_not_call_a_collective(tmp_path):
    attempt = RunDir(tmp_path).attempt(1)
    attempt.path.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    forked_ranks.run(call_collectives, [(rank, port, tmp_path) for rank in range(NUM_RANKS)])
    read = [records.read(RankHang, attempt.rank_hang(rank)) for rank in range(NUM_RANKS)]
    states = [state for state in read if state is not None]
    first, behind, _ = (state.collectives or () for state in states)
    assert behind == (GroupCollectives("gloo:0", (), collective(1, "barrier", 0)),)
    of_all, of_part = sorted(first, key=lambda each: each.group)
    assert of_all == GroupCollectives("gloo:0", (), *[collective(2, size=30)] * 2)
    assert (of_part.ranks, of_part.last, of_part.waits_in) == ((0, 2), collective(1, size=8), None)
    words = "rank 1 did not begin all_reduce 2 (30 elements), in which ranks 0, 2 wait"
    assert absence(states) == Absence(frozenset({1}), words)
