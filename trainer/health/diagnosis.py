"""Which rank the others wait for in a hang: the place of each rank, and the conclusion.

With asynchronous kernels the main threads of all ranks may wait at the same line. Then torch's
flight recorder has the answer: the last collectives of each process group, by rank.

The functions are pure but for those that look at this process or at the timeline of another rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from types import FrameType
from typing import Any, NamedTuple

from ..contract import (
    Collective,
    GroupCollectives,
    RankHang,
    RunDir,
    node_name,
    parent_of,
    read_events,
)
from .phases import NAMES, order_of, phase_after

MAX_NAMED = 4
STACK_DUMP_S = 0.5
# Modules in which a rank waits for its peers: a collective, DDP's backward, or the device.
WAITING_IN = (
    *("torch.distributed", "torch.autograd", "torch.cuda", "torch.nn.parallel"),
    "slurm_job_kit.trainer",
)
# Modules in which a rank reads files, or waits for its own worker processes.
WORKING_IN = ("slurm_job_kit.trainer.data", "slurm_job_kit.jobs.checkpoint.reader")
IN_MODEL = ("model", "first step", "batch")  # phases in which ranks compute the model
# Modules in which a thread waits for another one.
THREADS = ("threading", "concurrent.futures._base", "concurrent.futures.thread")
# Collectives in which all ranks must have inputs of one size. The names are those of the recorder.
OF_ONE_SIZE = ("all_reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base")
# NCCL's recorder, only in a build with CUDA; and that of gloo.
RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
MAX_COLLECTIVES = 2  # in one sentence
RAS_ADDRESS = "localhost:28028"  # NCCL's default of NCCL_RAS_ADDR
RAS_LIMIT_S = 3  # of each read
MAX_RAS_BYTES = 2**20
MAX_RAS_LINES = 20

Members = tuple[int, ...]  # the ranks of a process group; empty: all ranks
Traces = dict[int, GroupCollectives]  # of one process group, by rank


class RankPlace(NamedTuple):
    """Where a rank runs, from its timeline; pid 0 and phase "" if the timeline has neither."""

    host: str
    pid: int
    phase: str = ""


def diagnose(states: Mapping[int, RankHang], unresponsive: Mapping[int, RankPlace]) -> str:
    """Return which ranks the others wait for: those that do not answer, else those that lag."""
    stacks = f"stacks of {ranks_text(states)} are in their logs"
    if unresponsive:
        places = [_unresponsive_text(rank, place) for rank, place in sorted(unresponsive.items())]
        verb = "does" if len(unresponsive) == 1 else "do"
        return f"{_listed(places)} {verb} not answer; {stacks}"
    lagging = laggards(states.values())
    places = [
        f"rank {state.rank} on {state.host} (pid {state.pid}) is at {state.where}, {_since(state)}"
        for state in lagging
    ]
    prefix = "" if len(lagging) < len(states) or len(states) == 1 else "no rank lags: "
    in_model = all(state.what in IN_MODEL for state in lagging)
    is_mixed = prefix and in_model and len({state.where for state in lagging}) > 1
    hint = "; does the model use the same blocks on each rank?" if is_mixed else ""
    recorded = [absence(states.values()).text, stacks]
    return "; ".join([f"{prefix}{_listed(places)}{hint}", *filter(None, recorded)])


def laggards(states: Iterable[RankHang]) -> list[RankHang]:
    """Return the ranks that are furthest behind and do not wait for others; else all of these.

    Those that `absence` finds are the furthest behind; without them the phase and the step count.
    """
    ranks = sorted(states, key=lambda state: state.rank)
    first = min(_progress(state) for state in ranks)
    absent = absence(ranks).ranks
    behind = [state for state in ranks if state.rank in absent]
    behind = behind or [state for state in ranks if _progress(state) == first]
    return [state for state in behind if not state.is_waiting] or behind


class Absence(NamedTuple):
    """The ranks that are not in the collective of the others, and the sentence about them."""

    ranks: frozenset[int] = frozenset()
    text: str = ""


def absence(states: Iterable[RankHang]) -> Absence:
    """Return the ranks that did not begin a collective in which others wait; none if all did.

    Where ranks of a group wait in different collectives of one number, the smallest part of them;
    none if that is not clear. A rank whose recorder was not read is never named.
    """
    groups: dict[tuple[str, Members], Traces] = defaultdict(dict)
    known = set()
    for state in states:
        if state.collectives is not None:
            known.add(state.rank)
        for each in state.collectives or ():
            groups[each.group, each.ranks][state.rank] = each
    by_members = [(members, traces) for (_, members), traces in sorted(groups.items())]
    for members, traces in by_members:
        if (different := _in_different_collectives(members, traces)) is not None:
            return different
    return _not_in_a_collective(
        [wait for members, traces in by_members for wait in _waits(members, traces, known)]
    )


def _in_different_collectives(members: Members, traces: Traces) -> Absence | None:
    """Return the smallest part of the ranks that wait in different collectives of one number."""
    waits = {rank: each.waits_in for rank, each in sorted(traces.items()) if each.waits_in}
    first = min((each.number for each in waits.values()), default=0)
    parts: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, each in waits.items():
        if each.number == first:
            size = each.num_elements if each.kind in OF_ONE_SIZE else 0
            parts[each.kind, size].append(rank)
    if len(parts) < 2:
        return None
    smallest, second, *_ = ordered = sorted(parts.values(), key=len)
    texts = [f"{ranks_text(part)} in {_shown(waits[part[0]], members)}" for part in ordered]
    ranks = frozenset(smallest if len(smallest) < len(second) else ())
    return Absence(ranks, f"the collectives differ: {_listed(texts)}")


class _Wait(NamedTuple):
    """A collective in which some ranks wait, as text, and the ranks that did not begin it."""

    collective: str
    waiting: list[int]
    absent: frozenset[int]


def _waits(members: Members, traces: Traces, known: set[int]) -> list[_Wait]:
    """Return the waits in one process group, in the order of its collectives.

    known: the ranks whose recorder was read.
    """
    waiting: dict[Collective, list[int]] = defaultdict(list)
    for rank, trace in sorted(traces.items()):
        if trace.waits_in is not None:
            waiting[trace.waits_in].append(rank)
    peers = known.intersection(members) if members else known
    return [
        _Wait(
            _shown(each, members),
            waiting[each],
            frozenset(peer for peer in peers if not _has_begun(traces.get(peer), each)),
        )
        for each in sorted(waiting, key=lambda each: each.number)
    ]


def _has_begun(trace: GroupCollectives | None, wanted: Collective) -> bool:
    """Return whether a rank called a collective, and its GPU began it if that of another one did.

    trace: None for a rank that called no collective of the group.
    """
    if trace is None or trace.last.number < wanted.number:
        return False
    own = trace.waits_in
    is_queued = own is not None and own.number <= wanted.number and not own.has_begun
    return not (wanted.has_begun and is_queued)


def _not_in_a_collective(waits: list[_Wait]) -> Absence:
    """Return the ranks for which others wait and that wait for none; all of them in a circle."""
    waits_for: dict[int, frozenset[int]] = defaultdict(frozenset)
    for wait in waits:
        for rank in wait.waiting:
            waits_for[rank] |= wait.absent
    awaited = frozenset[int]().union(*waits_for.values())
    ranks = frozenset(rank for rank in awaited if not waits_for.get(rank)) or awaited
    texts = [
        f"{ranks_text(wait.absent & ranks)} did not begin {wait.collective}, in which "
        f"{ranks_text(wait.waiting)} wait{'s' * (len(wait.waiting) == 1)}"
        for wait in waits
        if wait.absent & ranks
    ]
    return Absence(ranks, "; ".join(texts[:MAX_COLLECTIVES]))


def _shown(collective: Collective, members: Members) -> str:
    """Return `all_reduce 12 (1,024 elements)`, with the members of a group that is a part."""
    of_group = f" of {ranks_text(members)}" if members else ""
    size = f"{collective.num_elements:,} elements"
    return f"{collective.kind} {collective.number}{of_group} ({size})"


def _progress(state: RankHang) -> tuple[int, int]:
    return order_of(state.what), -1 if state.step is None else state.step


def ranks_text(ranks: Collection[int]) -> str:
    """Return `rank 0` or `ranks 0, 1, 2, 3 and 60 more`."""
    return f"rank{'s' * (len(ranks) != 1)} {_listed([str(rank) for rank in sorted(ranks)])}"


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more


def _unresponsive_text(rank: int, place: RankPlace) -> str:
    phase = f", in {place.phase}" if place.phase in NAMES else ""
    return f"rank {rank} on {place.host} (pid {place.pid or 'unknown'}{phase})"


def _since(state: RankHang) -> str:
    return f"in {state.what}" + ("" if state.step is None else f" of step {state.step}")


def stacks_of_all_threads() -> str:
    """Return the Python stacks of this process. Uses a file in memory: a dead disk may block."""
    with open(os.memfd_create("stacks"), "w+b") as file:
        faulthandler.dump_traceback(file.fileno(), all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def place_of_main_thread() -> tuple[str, bool]:
    """Return (file:line and function of the main thread, whether it waits there for other ranks).

    Where it waits for another thread, the place is the function that does so.
    """
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "an unknown place", False
    module = f"{frame.f_globals.get('__name__')}."
    waits, works = (
        module.startswith(tuple(f"{name}." for name in names)) for names in (WAITING_IN, WORKING_IN)
    )
    is_waiting = waits and not works
    while frame.f_back and frame.f_globals.get("__name__") in THREADS:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}", is_waiting


def collectives_of_process() -> tuple[GroupCollectives, ...] | None:
    """Return the collectives of this rank by process group; None if they cannot be read.

    Imports nothing: the import of torch may be what hangs. torch keeps the GIL while it writes
    the dump (2.13: 80 ms for 2,000 entries), and NCCL's recorder asks CUDA for the state of each
    entry. If CUDA does not answer, no thread of this process can end the call.
    """
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None:
        return ()
    with contextlib.suppress(Exception):  # private names of torch: any of them may be gone
        c10d = sys.modules["torch"]._C._distributed_c10d
        dumps = [getattr(c10d, name)() for name in RECORDERS if hasattr(c10d, name)]
        entries = [entry for dump in dumps for entry in json.loads(dump).get("entries", ())]
        world = distributed._world
        members = {name: tuple(world.pg_group_ranks[each]) for each, name in world.pg_names.items()}
        return group_collectives(entries, members)
    return None


def group_collectives(
    entries: Iterable[Mapping[str, Any]], members: Mapping[str, Members]
) -> tuple[GroupCollectives, ...]:
    """Return the last and the first unfinished collective of each group of a flight recorder.

    members: the ranks of each group, by its name. Source: torch 2.13, FlightRecorderDetail.hpp.
    """
    groups: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for entry in entries:
        backend, name = entry["profiling_name"].partition(":")[0], entry["process_group"][0]
        if name in members and not entry["is_p2p"]:
            # Of operations that are one collective, the last has the state.
            groups[backend, name][entry["collective_seq_id"]] = entry
    num_ranks = max(map(len, members.values()), default=0)
    found = []
    for (backend, name), by_number in groups.items():
        ranks = tuple(sorted(members[name])) if len(members[name]) < num_ranks else ()
        # gloo's entries stay "scheduled"; `retired` alone shows their end.
        open_numbers = [
            number
            for number, entry in by_number.items()
            if not entry["retired"] and entry["state"] != "completed"
        ]
        waits_in = _collective(by_number[min(open_numbers)]) if open_numbers else None
        last = _collective(by_number[max(by_number)])
        found.append(GroupCollectives(f"{backend}:{name}", ranks, last, waits_in))
    return tuple(found)


def _collective(entry: Mapping[str, Any]) -> Collective:
    return Collective(
        entry["collective_seq_id"],
        entry["profiling_name"].partition(":")[2],
        sum(map(math.prod, entry["input_sizes"])),
        entry["state"] == "started",
    )


def ras_report(environ: Mapping[str, str]) -> list[str]:
    """Return the lines of NCCL's RAS about missing ranks; empty where no RAS answers.

    If several jobs of a user are on this node, the answer may be that of another one. Source: NCCL
    user guide, RAS: since NCCL 2.24, a text protocol, sections Errors and Warnings at its end.
    """
    host, _, port = environ.get("NCCL_RAS_ADDR", RAS_ADDRESS).rpartition(":")
    report = b""
    deadline = time.monotonic() + RAS_LIMIT_S
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), RAS_LIMIT_S) as peer,
    ):
        peer.sendall(b"timeout 2\nverbose status\n")
        while time.monotonic() < deadline and len(report) < MAX_RAS_BYTES:
            if not (part := peer.recv(2**16)):
                break
            report += part
    lines = report.decode(errors="replace").splitlines()
    heads = [number for number, line in enumerate(lines) if line in ("Errors", "Warnings")]
    about_ranks = [line for line in lines[heads[0] :] if line.strip(" =")] if heads else []
    # A healthy job has both headings with nothing below (seen with NCCL 2.28.9).
    is_healthy = {*about_ranks} <= {"Errors", "Warnings"}
    return [] if is_healthy else about_ranks[:MAX_RAS_LINES]


def place_of(run_dir: RunDir, attempt: int, rank: int) -> RankPlace:
    """Return where a rank of this attempt runs and its phase, from the rank's own timeline."""
    place, phase = RankPlace("an unknown host", 0), NAMES[0]
    with contextlib.suppress(OSError):
        for event in read_events(run_dir.timeline(f"rank-{rank:05d}")):
            if event.attempt != attempt:
                continue
            if event.event in ("spawn", "start") and event.host and event.pid:
                place = RankPlace(event.host, event.pid)
            phase = phase_after(event.event) or phase
    return place._replace(phase=phase if place.pid else "")


def end_siblings(places: Iterable[RankPlace]) -> None:
    """Kill the ranks of this host that do not answer; SIGQUIT first makes them dump their stack.

    torchrun would give them 30 s after the first rank has exited, whatever its --shutdown-timeout.
    Kills only children of this rank's own torchrun: another process may have the pid by now.
    """
    siblings = [
        place.pid
        for place in places
        if place.host == node_name() and parent_of(place.pid) == os.getppid()
    ]
    for number in (signal.SIGQUIT, signal.SIGKILL) if siblings else ():
        for pid in siblings:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        time.sleep(STACK_DUMP_S)
