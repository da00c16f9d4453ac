"""One start of a rehearsed training: its processes, a harm at a moment, its end."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...base.stop_signals import send
from . import traces
from .probe import kit_disk
from .subjects import Subject
from .traces import Process

POLL_S = 0.02
ALL_HELD_S = 2.0  # for the other ranks to come to the moment, after the first one
LATER_S = 0.3  # from a step of the rank that is not warned yet to its next one
LEFT_S = 2.0  # for what a training started to end by itself
KILL_S = 40.0  # for torchrun to end after a rank was killed; it waits 30 s for the others
DISKS = "disk"  # the folder of the records of the disk, in that of a start
MARK = "KIT_REHEARSAL"  # a variable of all processes of a rehearsal


@dataclass(frozen=True)
class Harm:
    """What happens to the training, and when.

    moment: `start 1`, `step 3`, `end 3` of a step, `evaluation 1`, or before `save 2`, `open 1` or
    `rename 1`, counted in the start. `rank 1 save 2`: of this rank, while the others go on for
    ALL_HELD_S; `rank 1 half 2`: with half of its file. `stop apart`: one rank is warned LATER_S
    after the others.
    """

    moment: str
    kind: Literal["stop", "stop twice", "stop apart", "kill"] = "stop"


@dataclass
class Start:
    """A start, and how it ended; times in seconds since 1970.

    recorded: the disk is recorded while so many steps are taken. marker: what the training wrote at
    its end: stopped, completed, or nothing.
    """

    number: int
    harm: Harm | None
    ranks: int
    recorded: range = range(0)
    begun: float = field(default_factory=time.time)
    harmed_at: float | None = None
    was_killed: bool = False
    is_over_limit: bool = False
    ended: float = 0.0
    code: int = 0
    marker: str = ""
    processes: Sequence[Process] = ()
    output: str = ""

    @property
    def is_missed(self) -> bool:
        return self.harm is not None and self.harmed_at is None

    @property
    def has_steps(self) -> bool:
        return any(process.steps for process in self.processes)

    @property
    def later_steps(self) -> int:
        since = self.harmed_at or math.inf
        steps = (sum(step.t > since for step in each.steps) for each in self.processes)
        return max(steps, default=0)


def run(subject: Subject, start: Start, folder: Path, limits: tuple[float, float]) -> None:
    """Start a training, harm it, and wait for its end. `limits`: grace and the whole, in s."""
    (own := folder / f"start-{start.number}").mkdir(parents=True)
    env = {
        **os.environ,
        MARK: str(subject.folder),
        "KIT_REHEARSE": str(own),
        "KIT_REHEARSE_MOMENT": start.harm.moment if start.harm else "",
        "KIT_REHEARSE_DISK": f"{start.recorded.start}:{start.recorded.stop}",
    }
    log = own / "output.log"
    subject.start(start.number, env, log, start.ranks)
    try:
        _wait(start, subject, own, limits)
    except BaseException:  # Ctrl-C
        _end(subject, signal.SIGKILL)
        raise
    start.ended, start.code = time.time(), subject.poll() or 0
    send(signal.SIGKILL, _end(subject))  # what it left running
    start.output = log.read_text(encoding="utf-8", errors="replace")
    start.marker, start.processes = subject.marker(), traces.read(own)
    if start.harm is not None and start.recorded:
        with contextlib.suppress(OSError):  # no plugin for more copies
            kit_disk.record(subject.place, own / DISKS)


def _wait(start: Start, subject: Subject, folder: Path, limits: tuple[float, float]) -> None:
    """Harm a start at its moment; kill all at the end of the grace, or at the limit."""
    (grace_s, limit_s), kill_at, first_held = limits, math.inf, math.inf
    while subject.poll() is None:
        now, held = time.time(), [*folder.glob("held-*")]
        first_held = min(first_held, now) if held else math.inf
        if start.harm and start.harmed_at is None and held:
            # Each rank comes to the moment, but not each rank saves.
            is_for_all = not start.harm.moment.startswith(("save", "open", "rename"))
            if not is_for_all or len(held) >= start.ranks or now > first_held + ALL_HELD_S:
                start.harmed_at = _harm(start.harm, subject, folder, held)
                grace_s = max(grace_s, KILL_S) if start.harm.kind == "kill" else grace_s
                kill_at = start.harmed_at + (limit_s if start.recorded else grace_s)
        if time.time() > kill_at:
            start.was_killed, kill_at = True, math.inf
            _end(subject, signal.SIGKILL)
        elif now > start.begun + limit_s and not start.is_over_limit:
            start.is_over_limit = True
            _end(subject, signal.SIGKILL)
        time.sleep(POLL_S)


def _harm(harm: Harm, subject: Subject, folder: Path, held: Sequence[Path]) -> float:
    """Harm a training whose ranks are held, and let them go; returns the time of the harm."""
    processes, harmed_at = traces.read(folder), time.time()
    if harm.kind == "kill":  # the last rank
        places = [path.name.removeprefix("held-").split(".") for path in held]
        _, pid = max((int(rank), int(pid)) for rank, pid in places)
        send(signal.SIGKILL, [pid])
    else:
        subject.stop(processes[:-1] if harm.kind == "stop apart" else processes)
        if harm.kind == "stop twice":
            time.sleep(POLL_S)
            subject.stop(processes)
    (folder / "go").touch()
    if harm.kind == "stop apart":
        time.sleep(LATER_S)
        subject.stop(processes[-1:])
    return harmed_at


def _marked(subject: Subject) -> list[int]:
    found, mark = [], f"{MARK}={subject.folder}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _end(subject: Subject, number: signal.Signals | None = None) -> list[int]:
    """Wait until all processes have ended, by a signal if any; returns those that have not."""
    deadline = time.time() + LEFT_S
    while (left := _marked(subject)) and time.time() < deadline:
        if number is not None:
            send(number, left)
        time.sleep(POLL_S)
    return left
