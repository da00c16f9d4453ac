"""Which rank the others wait for in a hang: the place of each rank, and the conclusion.

The functions are pure but for those that look at this process or at the timeline of another rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from types import FrameType
from typing import NamedTuple

from slurm_job_kit.jobs.procfs import parent_of
from slurm_job_kit.jobs.records.nodes import RankHang, node_name
from slurm_job_kit.jobs.records.training import read_events
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.trainer.health.phases import NAMES, order_of, phase_after

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
    return f"{prefix}{_listed(places)}{hint}; {stacks}"


def laggards(states: Iterable[RankHang]) -> list[RankHang]:
    """Return the ranks that are furthest behind and do not wait for others; else all of these."""
    ranks = sorted(states, key=lambda state: state.rank)
    first = min(_progress(state) for state in ranks)
    behind = [state for state in ranks if _progress(state) == first]
    return [state for state in behind if not state.is_waiting] or behind


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
