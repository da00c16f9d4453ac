"""What is known of a hang: where each rank is, and the verdict on which of them holds up the rest.

Pure but for the looks at this process and at the timeline, which knows every rank's pid.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from jobs.rundir import RunDir, read_jsonl

MAX_NAMED = 4
STACK_DUMP_S = 0.5
# Where a rank is that waits for its peers: in a collective, in DDP's backward, or for the device.
WAITING_IN = (
    *("torch.distributed", "torch.autograd", "torch.cuda", "torch.nn.parallel"),
    "trainer",
)


class Finding(NamedTuple):
    """What a rank that answers says of itself; `where` is the top frame of its main thread."""

    rank: int
    host: str
    pid: int
    what: str
    step: int | None
    where: str
    is_waiting: bool


class Process(NamedTuple):
    """Where a rank runs, as its timeline has it; pid 0 if it does not."""

    host: str
    pid: int


def verdict(findings: Mapping[int, Finding], silent: Mapping[int, Process]) -> str:
    """Who holds up the others: those that do not answer, else those that lag behind."""
    stacks = f"stacks of {ranks_text(findings)} are in their logs"
    if silent:
        places = [_silent_text(rank, process) for rank, process in sorted(silent.items())]
        verb = "does" if len(silent) == 1 else "do"
        return f"{_listed(places)} {verb} not answer; {stacks}"
    laggards = suspects(findings.values())
    places = [
        f"rank {found.rank} on {found.host} (pid {found.pid}) is at {found.where}, {_since(found)}"
        for found in laggards
    ]
    stands_out = "" if len(laggards) < len(findings) or len(findings) == 1 else "no rank lags: "
    return f"{stands_out}{_listed(places)}; {stacks}"


def suspects(findings: Iterable[Finding]) -> list[Finding]:
    """The ranks that are steps behind; else those that do not wait for others; else all."""
    ranks = sorted(findings)
    first = min(-1 if found.step is None else found.step for found in ranks)
    behind = [found for found in ranks if found.step is None or found.step == first]
    return [found for found in behind if not found.is_waiting] or behind


def ranks_text(ranks: Collection[int]) -> str:
    """`rank 0` or `ranks 0, 1, 2, 3 and 60 more`."""
    return f"rank{'s' * (len(ranks) != 1)} {_listed([str(rank) for rank in sorted(ranks)])}"


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more


def _silent_text(rank: int, process: Process) -> str:
    return f"rank {rank} on {process.host} (pid {process.pid or 'unknown'})"


def _since(found: Finding) -> str:
    return f"in {found.what}" + ("" if found.step is None else f" of step {found.step}")


def stacks_of_all_threads() -> str:
    """The Python stacks of this process. By way of memory: writing to a dead disk may block."""
    with open(os.memfd_create("stacks"), "w+b") as file:
        faulthandler.dump_traceback(file.fileno(), all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def place_of_main_thread() -> tuple[str, bool]:
    """(file:line and function of the main thread's top frame, whether it waits for peers there)."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "an unknown place", False
    module = str(frame.f_globals.get("__name__"))
    is_waiting = any(module == name or module.startswith(f"{name}.") for name in WAITING_IN)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}", is_waiting


def process_of(run_dir: RunDir, attempt: int, rank: int) -> Process:
    """Where a rank of this attempt runs; its own record at the start says so."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        for event in reversed(read_jsonl(run_dir.timeline(f"rank-{rank:05d}"))):
            if event["event"] in ("spawn", "start") and event["attempt"] == attempt:
                return Process(event["host"], event["pid"])
    return Process("an unknown host", 0)


def end_siblings(processes: Iterable[Process]) -> None:
    """End ranks of this host that do not answer; a SIGQUIT before has them dump their stack.

    torchrun would give them 30 s after the first rank has left, whatever its --shutdown-timeout.
    Only children of this rank's own torchrun: any other process may have got the pid since.
    """
    siblings = [
        process.pid
        for process in processes
        if process.host == socket.gethostname() and _parent_of(process.pid) == os.getppid()
    ]
    for number in (signal.SIGQUIT, signal.SIGKILL) if siblings else ():
        for pid in siblings:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        time.sleep(STACK_DUMP_S)


def _parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])
