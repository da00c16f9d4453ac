"""One start of a rehearsed training: its processes, a harm at a moment, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ... import procfs
from . import traces
from .subjects import MARK, Running, Subject
from .traces import Process

POLL_S = 0.02
ALL_HELD_S = 2.0  # for the other ranks to come to the moment, after the first one
LATER_S = 0.3  # from a step of the rank that is not warned yet to its next one
LAUNCHER, FORK = "probe/launcher.py", "a fork of a rank, such as a data worker"
LEFT_S = 2.0  # for what a training started to end by itself
KILL_S = 40.0  # for torchrun to end after a rank was killed; it waits 30 s for the others


@dataclass(frozen=True)
class Harm:
    """What happens to the training, and when.

    moment: `start 1`, `step 3`, `end 3` of a step, `evaluation 1`, `save 2`, `rename 1`, counted in
    the start. `stop apart`: one rank is warned LATER_S after the others.
    """

    moment: str
    kind: Literal["stop", "stop twice", "stop apart", "kill"] = "stop"


@dataclass(frozen=True)
class Ended:
    """How a start ended.

    stop_s: from the harm to the end of the last rank; None without a harm. marker: what the
    training recorded: stopped, completed, or nothing. left: commands of what it left running.
    """

    number: int
    harm: Harm | None
    ranks: int
    code: int
    seconds: float
    harmed_at: float | None
    stop_s: float | None
    was_killed: bool
    is_over_limit: bool
    marker: str
    processes: Sequence[Process]
    output: str
    left: Sequence[str]


def run(
    subject: Subject,
    number: int,
    harm: Harm | None,
    folder: Path,
    ranks: int,
    limits: tuple[float, float],
    spoil: str = "",
) -> Ended:
    """Start a training, harm it, and wait for its end. `limits`: grace and the whole, in s."""
    own = folder / f"start-{number}"
    own.mkdir(parents=True)
    env = {
        MARK: str(subject.place.parent),
        "KIT_REHEARSE": str(own),
        "KIT_REHEARSE_MOMENT": harm.moment if harm else "",
        "KIT_REHEARSE_SPOIL": spoil,
        "KIT_REHEARSE_INSIDE": os.pathsep.join(map(os.path.realpath, _inside(subject, own))),
        "TMPDIR": str(_temporary(subject)),
    }
    begun = time.time()
    log = own / "output.log"
    running = subject.start(number, env, log, ranks)
    watch = _Watch(subject, running, harm, own, ranks, limits)
    try:
        watch.wait()
    except BaseException:  # Ctrl-C
        kill_all(subject, running)
        raise
    ended = time.time()
    left = end_left(subject, running)
    output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Ended(
        number=number,
        harm=harm,
        ranks=ranks,
        code=running.poll() or 0,
        seconds=ended - begun,
        harmed_at=watch.harmed_at,
        stop_s=None if watch.harmed_at is None else ended - watch.harmed_at,
        was_killed=watch.was_killed,
        is_over_limit=watch.is_over_limit,
        marker=subject.marker(number),
        processes=traces.read(own),
        output=output,
        left=left,
    )


def _temporary(subject: Subject) -> Path:
    folder = subject.place.parent / "tmp"
    folder.mkdir(exist_ok=True)
    return folder


def _inside(subject: Subject, own: Path) -> list[str]:
    return [str(subject.place), str(own), str(_temporary(subject)), "/dev", "/proc"]


class _Watch:
    """Waits for the end of a start, and harms it meanwhile."""

    def __init__(
        self,
        subject: Subject,
        running: Running,
        harm: Harm | None,
        folder: Path,
        ranks: int,
        limits: tuple[float, float],
    ) -> None:
        self.subject, self.running, self.harm = subject, running, harm
        self.folder, self.ranks = folder, ranks
        self.grace_s, limit_s = limits
        self.deadline = time.time() + limit_s
        self.first_held: float | None = None
        self.harmed_at: float | None = None
        self.kill_at: float | None = None
        self.was_killed = self.is_over_limit = False

    def wait(self) -> None:
        """Wait for the end; kill all at the end of the grace, or at the limit."""
        while self.running.poll() is None:
            if self.harm is not None and self.harmed_at is None and self._is_held():
                self._do_harm(self.harm)
            now = time.time()
            if self.kill_at is not None and now > self.kill_at:
                self.was_killed, self.kill_at = True, None
                kill_all(self.subject, self.running)
            elif now > self.deadline and not self.is_over_limit:
                self.is_over_limit = True
                kill_all(self.subject, self.running)
            time.sleep(POLL_S)

    def _is_held(self) -> bool:
        """Return whether the moment has come, on all ranks that reach it."""
        assert self.harm is not None
        held = len([*self.folder.glob("held-*")])
        if not held:
            return False
        self.first_held = self.first_held or time.time()
        is_for_all = not self.harm.moment.startswith(("save", "open", "rename"))
        is_late = time.time() > self.first_held + ALL_HELD_S
        return not is_for_all or held >= self.ranks or is_late

    def _do_harm(self, harm: Harm) -> None:
        processes = traces.read(self.folder)
        self.harmed_at = time.time()
        if harm.kind == "kill":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._victim(), signal.SIGKILL)
            self.kill_at = self.harmed_at + max(self.grace_s, KILL_S)
        elif harm.kind == "stop apart":
            self.subject.stop(self.running, processes[:-1])
            self.kill_at = self.harmed_at + self.grace_s
            (self.folder / "go").touch()
            time.sleep(LATER_S)
            self.subject.stop(self.running, processes[-1:])
        else:
            self.subject.stop(self.running, processes)
            self.kill_at = self.harmed_at + self.grace_s
            if harm.kind == "stop twice":
                time.sleep(POLL_S)
                self.subject.stop(self.running, processes)
        (self.folder / "go").touch()

    def _victim(self) -> int:
        """Return the process id of the last of the ranks that are held."""
        held = [path.name.removeprefix("held-") for path in self.folder.glob("held-*")]
        return max(tuple(map(int, each.split("."))) for each in held)[1]


def marked(subject: Subject, running: Running) -> list[int]:
    """Return the processes of the rehearsal, but not those that wait for the end of a start."""
    mark = f"{MARK}={subject.place.parent}".encode()
    launcher = getattr(getattr(subject, "launcher", None), "pid", None)
    waiting = (launcher, os.getpid(), procfs.parent_of(running.pid))
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [
        pid
        for pid in pids
        if pid not in waiting and mark in procfs.environment(pid) and not procfs.has_ended(pid)
    ]


def kill(pids: Sequence[int]) -> None:
    """Kill processes; each belongs to the rehearsal."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_all(subject: Subject, running: Running) -> None:
    """Kill the processes of a start, also those that one of them starts meanwhile."""
    deadline = time.time() + LEFT_S
    while (pids := marked(subject, running)) and time.time() < deadline:
        kill(pids)
        time.sleep(POLL_S)


def end_left(subject: Subject, running: Running) -> list[str]:
    """Kill the processes that a start has left behind; returns their commands."""
    deadline = time.time() + LEFT_S
    while (pids := marked(subject, running)) and time.time() < deadline:
        time.sleep(POLL_S)
    commands = [" ".join(procfs.command_line(pid)) for pid in pids]
    kill(pids)
    return [FORK if LAUNCHER in each else each for each in commands if each]
