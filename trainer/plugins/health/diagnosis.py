"""Which rank the others wait for in a hang: the place of each rank, and the conclusion."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ....jobs.base.procfs import parent_of
from ....jobs.contract.records.timeline import read_events
from ...contract import AttemptDir, RunDir, node_name
from .phases import NAMES

MAX_NAMED = 4
# Modules in which a rank waits for its peers: a collective, DDP's backward, or the device.
WAITING_IN = (
    *("torch.distributed.", "torch.autograd.", "torch.cuda.", "torch.nn.parallel."),
    "slurm_job_kit.trainer.",
)
# Modules in which a rank reads files, or waits for its own worker processes.
WORKING_IN = ("slurm_job_kit.trainer.data.", "slurm_job_kit.jobs.contract.checkpoint.reader.")


@dataclass(frozen=True)
class RankHang:
    """rank-RRRRR.hang.json: what a rank does when it or another rank has found a hang."""

    rank: int
    host: str
    pid: int
    what: str  # the phase of its start-up, or the part of a step
    step: int | None  # None before the first
    where: str  # file, line and function of the main thread's top frame
    is_waiting: bool  # that frame belongs to code that waits for other ranks

    @staticmethod
    def path(attempt_dir: AttemptDir, rank: int) -> Path:
        return attempt_dir.path / f"rank-{rank:05d}.hang.json"


class RankPlace(NamedTuple):
    """Where a rank runs, from its timeline; pid 0 if the timeline does not say so."""

    host: str
    pid: int


def diagnose(states: Mapping[int, RankHang], unresponsive: Mapping[int, RankPlace]) -> str:
    """Return which ranks the others wait for: those that do not answer, else those that lag."""
    if unresponsive:
        texts = [
            f"rank {rank} on {place.host} (pid {place.pid or 'unknown'}) does not answer"
            for rank, place in sorted(unresponsive.items())
        ]
    else:
        texts = [
            f"rank {state.rank} on {state.host} (pid {state.pid}) is at {state.where}, in "
            f"{state.what}{'' if state.step is None else f' of step {state.step}'}"
            for state in laggards(states.values())
        ]
    prefix = "no rank lags: " if 1 < len(states) == len(texts) and not unresponsive else ""
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return f"{prefix}{', '.join(texts[:MAX_NAMED])}{more}; the stacks are in the logs of the ranks"


def laggards(states: Iterable[RankHang]) -> list[RankHang]:
    """Return the ranks in the earliest phase or step: those that do not wait, else all of these."""

    def progress(state: RankHang) -> tuple[int, int]:
        phase = NAMES.index(state.what) if state.what in NAMES else len(NAMES)  # of a step
        return phase, -1 if state.step is None else state.step

    ranks = sorted(states, key=lambda state: state.rank)
    first = min(map(progress, ranks))
    behind = [state for state in ranks if progress(state) == first]
    return [state for state in behind if not state.is_waiting] or behind


def stacks_of_all_threads() -> str:
    """Return the Python stacks of this process. Uses a file in memory: a dead disk may block."""
    with open(os.memfd_create("stacks"), "w+b") as file:
        faulthandler.dump_traceback(file.fileno(), all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def place_of_main_thread() -> tuple[str, bool]:
    """Return file:line and function of the main thread, and whether it waits for other ranks."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "an unknown place", False
    module = f"{frame.f_globals.get('__name__')}."
    is_waiting = module.startswith(WAITING_IN) and not module.startswith(WORKING_IN)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}", is_waiting


def place_of(attempt_dir: AttemptDir | None, rank: int) -> RankPlace:
    """Return where a rank of this attempt runs, from the rank's own timeline."""
    place = RankPlace("an unknown host", 0)
    if attempt_dir is None:
        return place
    run_dir = RunDir(attempt_dir.path.parent)
    with contextlib.suppress(OSError):
        for event in read_events(run_dir.timeline(f"rank-{rank:05d}")):
            is_own = event.attempt and run_dir.attempt(event.attempt) == attempt_dir
            if is_own and event.event in ("spawn", "start") and event.host and event.pid:
                place = RankPlace(event.host, event.pid)
    return place


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
        time.sleep(0.5)  # for the stacks
