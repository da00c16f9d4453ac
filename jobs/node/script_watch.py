"""Ends an attempt of a user's script or module in which no rank works, and names who hangs.

A thread of each node's agent looks for signs of life of the node's ranks: a progress call of
kit_stop.py, a line in the log, processor time. While any rank of the attempt has one, nothing is
ended. The first agent over its limit creates `hang.json`, empty: the question. An agent whose ranks
work deletes it. The others write their ranks' stacks to a file, and where they are. The agent that
asked then writes its conclusion into `hang.json`, and each agent kills its torchrun. An agent that
does not answer, perhaps because its disk blocks it, has the ranks that hang.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import procfs, records, shared_files
from ..kinds import Kind
from ..records import RecordError
from ..records.nodes import HangConclusion, RankError, RankHang
from ..records.training import read_events
from ..rundir import AttemptDir, RunDir
from ..spec import Spec
from .stacks import stacks_of
from .torchrun import Node

TICK_S = 1.0
MAX_TICK_S = 2.0  # a longer tick was a suspension, or other processes took the cores
LOOK_S = 10.0
# The share of a core from which on a rank works. Ranks that wait in a collective used 0.2 % (NCCL's
# threads, measured on an H100) to 0.5 % (gloo), one that waits for a GPU 100 %.
WORKING_SHARE = 0.02
MIN_LEARNED_S = 600.0
LEARNED_FACTOR = 10
# Looks of the other agents, and the time of a slow file system and of py-spy.
ANSWER_LIMIT_S = 60.0
MAX_NAMED = 4
TRAINING, EXITED = "training", "exit"


@dataclass(frozen=True)
class Signs:
    """What shows that a rank lives. ticks: the processor time of its processes, in clock ticks.

    report: sizes and times of its log and of the files of progress calls.
    has_reported: whether the script has written to its log.
    """

    report: tuple[int, ...]
    ticks: int
    has_reported: bool


class IdleNode:
    """Seconds since the last sign of life of any rank of a node, and their limit."""

    def __init__(self, hang_timeout_s: int | str) -> None:
        self.seconds = 0.0
        self._configured_s = None if hang_timeout_s == "auto" else float(hang_timeout_s)
        self._has_reported = False
        self._longest_gap_s = 0.0
        self._last: dict[int, Signs] = {}

    @property
    def look_s(self) -> float:
        """The time between two looks."""
        return LOOK_S if self._configured_s is None else min(LOOK_S, self._configured_s / 2)

    @property
    def limit_s(self) -> float:
        """How many seconds are a hang: as configured, or far more than the longest gap so far."""
        if self._configured_s is not None:
            return self._configured_s
        return max(LEARNED_FACTOR * self._longest_gap_s, MIN_LEARNED_S)

    @property
    def is_hang(self) -> bool:
        """Whether to ask the others. By auto not before the script has written to a log here."""
        is_on = self._configured_s is not None or self._has_reported
        return is_on and self.seconds > self.limit_s

    @property
    def may_hang(self) -> bool:
        """What to answer to another node: the last one to wait has waited for a shorter time."""
        return self.seconds >= self.limit_s / 2

    def look(self, elapsed_s: float, signs: Mapping[int, Signs]) -> None:
        """Add the time since the last look; signs: of each rank that runs now."""
        self.seconds += elapsed_s
        self._has_reported |= any(each.has_reported for each in signs.values())
        is_changed = signs.keys() != self._last.keys()
        if is_changed or any(self._works(rank, signs[rank], elapsed_s) for rank in signs):
            self._longest_gap_s = max(self._longest_gap_s, self.seconds)
            self.seconds = 0.0
        self._last = dict(signs)

    def _works(self, rank: int, now: Signs, elapsed_s: float) -> bool:
        before = self._last[rank]
        used_s = abs(now.ticks - before.ticks) / os.sysconf("SC_CLK_TCK")
        return now.report != before.report or used_s >= WORKING_SHARE * elapsed_s


def conclusion(
    states: Mapping[int, RankHang], silent: Mapping[int, str]
) -> tuple[str, tuple[int, ...]]:
    """Return (which ranks the others wait for, as a text; their numbers, none if that is unknown).

    silent: the host of each rank whose agent does not answer.
    """
    if silent:
        names = [f"rank {rank} on {host}" for rank, host in sorted(silent.items())]
        return f"{_listed(names)}: the node does not answer", tuple(sorted(silent))
    ranks = [states[rank] for rank in sorted(states)]
    behind = [each for each in ranks if not each.is_waiting]
    places = [
        f"rank {each.rank} on {each.host} (pid {each.pid}) is at {each.where}"
        for each in behind or ranks
    ]
    prefix = "" if behind and (len(behind) < len(ranks) or len(ranks) == 1) else "no rank lags: "
    return prefix + _listed(places), () if prefix else tuple(each.rank for each in behind)


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more


def ranks_below(torchrun: int) -> dict[int, int]:
    """Return the rank of each wrapper that torchrun has started; {pid: rank}."""
    ranks = {pid: procfs.variable(pid, "RANK") for pid in procfs.children(torchrun)}
    return {pid: int(rank) for pid, rank in ranks.items() if rank}


class ScriptWatch:
    """Watches the ranks of this node from `begin` to `close`."""

    def __init__(self, run_dir: RunDir, attempt: int, node: Node, spec: Spec) -> None:
        self.is_hang_found = threading.Event()
        self._run_dir, self._attempt = run_dir, attempt
        self._node = node
        self._idle = IdleNode(spec.launch.hang_timeout_s)
        self._world_size = 0
        self._known: set[int] = set()  # the ranks that this node has, or had
        self._answered_s: float | None = None  # since the answer to a question
        self._has_asked = False
        self._is_closed = threading.Event()

    def begin(self, torchrun: int) -> None:
        """Watch the ranks of the torchrun with this pid. A thread: a disk may block it for ever."""
        threading.Thread(target=self._watch, args=(torchrun,), daemon=True).start()

    def close(self) -> None:
        """End nothing from now on."""
        self._is_closed.set()

    @property
    def _attempt_dir(self) -> AttemptDir:
        return self._run_dir.attempt(self._attempt)

    def _watch(self, torchrun: int) -> None:
        elapsed_s, last = 0.0, time.monotonic()
        while not self._is_closed.wait(TICK_S) and not self.is_hang_found.is_set():
            now = time.monotonic()
            elapsed_s, last = elapsed_s + min(now - last, MAX_TICK_S), now
            if elapsed_s >= self._idle.look_s:
                with contextlib.suppress(OSError):  # the next look may succeed
                    self._look(elapsed_s, ranks_below(torchrun))
                elapsed_s = 0.0

    def _look(self, elapsed_s: float, ranks: Mapping[int, int]) -> None:
        """Take the signs of the ranks, {pid of the wrapper: rank}; ask, answer or conclude."""
        self._idle.look(elapsed_s, {rank: self._signs(pid, rank) for pid, rank in ranks.items()})
        self._known |= {*ranks.values()}
        for pid in ranks:
            self._world_size = int(procfs.variable(pid, "WORLD_SIZE") or self._world_size)
        is_asked = False
        try:
            if records.read(HangConclusion, self._attempt_dir.hang) is not None:
                self.is_hang_found.set()
                return
        except RecordError:  # empty
            is_asked = True
        if is_asked and not (self._known and self._idle.may_hang):
            self._attempt_dir.hang.unlink(missing_ok=True)
        elif is_asked and self._answered_s is None:
            self._answer(ranks)
        elif is_asked:
            self._wait_for_answers(elapsed_s)
        elif self._answered_s is not None:  # the ranks of another node work
            self._answered_s, self._has_asked, self._idle.seconds = None, False, 0.0
            for rank in self._known:
                self._attempt_dir.rank_hang(rank).unlink(missing_ok=True)
        elif self._known and self._idle.is_hang:
            self._ask(ranks)

    def _signs(self, wrapper: int, rank: int) -> Signs:
        log = self._attempt_dir.rank_log(rank)
        files = [log, *((self._run_dir.progress, self._run_dir.saved) if rank == 0 else ())]
        report = tuple(number for file in files for number in _size_and_time(file))
        pids = [wrapper, *procfs.descendants(wrapper)]
        return Signs(report, sum(procfs.usage(pid)[1] for pid in pids), has_second_line(log))

    def _ask(self, ranks: Mapping[int, int]) -> None:
        with contextlib.suppress(FileExistsError):  # another agent asks
            os.close(os.open(self._attempt_dir.hang, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            self._has_asked = True
            self._answer(ranks)

    def _answer(self, ranks: Mapping[int, int]) -> None:
        """Write where the ranks of this node are, and their stacks to a file for a person."""
        stacks = dict(zip(ranks.values(), stacks_of([*ranks]), strict=True))
        for rank in self._known:
            place = (0, EXITED, None, "its end, with exit code 0", False)
            if (stack := stacks.get(rank)) is not None:
                place = (stack.pid, TRAINING, None, stack.where, stack.is_waiting)
            state = RankHang(round(time.time(), 3), rank, self._node.host, *place)
            records.write(self._attempt_dir.rank_hang(rank), state)
        self._answered_s = 0.0
        host = self._node.host
        texts = [f"rank {rank} on {host}\n{stack.text}\n" for rank, stack in stacks.items()]
        file = self._attempt_dir.stacks(self._node.rank)
        file.write_text("\n".join(texts), encoding="utf-8", errors="backslashreplace")

    def _wait_for_answers(self, elapsed_s: float) -> None:
        """Conclude when all agents have answered, or late, even where the one that asked died."""
        self._answered_s = (self._answered_s or 0.0) + elapsed_s
        paths = shared_files.files_in(self._attempt_dir.path, "rank-*.hang.json")
        found = [state for path in paths if (state := records.read(RankHang, path)) is not None]
        states = {state.rank: state for state in found}
        limit_s = ANSWER_LIMIT_S if self._has_asked else 2 * ANSWER_LIMIT_S
        is_complete = self._has_asked and len(states) == self._world_size
        if is_complete or self._answered_s > limit_s:
            self._conclude(states)

    def _conclude(self, states: Mapping[int, RankHang]) -> None:
        """Write which ranks hang, and the error record of the first one."""
        me, attempt_dir = min(self._known), self._attempt_dir
        missing = {*range(self._world_size)} - states.keys()
        silent = {rank: self._host_of(rank) for rank in missing}
        text, ranks = conclusion(states, silent)
        idle = self._idle
        error = (
            f"no progress call, log line or processor time for {idle.seconds:.0f} s (limit "
            f"{idle.limit_s:.0f} s): {text}; stacks are in {attempt_dir.path.name}/stacks-*.txt"
        )
        hosts = {rank: state.host for rank, state in states.items()} | {**silent}
        of_ranks = tuple(sorted({hosts[rank] for rank in ranks}))
        found = HangConclusion(me, error, tuple(sorted(silent)), ranks, of_ranks)
        records.write(attempt_dir.hang, found)
        first = ranks[0] if ranks else me
        host = hosts[first]
        record = RankError(round(time.time(), 3), first, host, error, kind=Kind.HANG, reporter=me)
        records.write(attempt_dir.rank_error(first), record)
        self.is_hang_found.set()

    def _host_of(self, rank: int) -> str:
        events = read_events(self._run_dir.timeline(f"rank-{rank:05d}"))
        hosts = [each.host for each in events if each.attempt == self._attempt and each.host]
        return hosts[-1] if hosts else "an unknown host"


def _size_and_time(file: Path) -> tuple[int, int]:
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def has_second_line(log: Path) -> bool:
    """Return whether a rank's log has more than the first line, which its wrapper writes."""
    try:
        with open(log, "rb") as file:
            return bool(file.readline()) and bool(file.read(1))
    except FileNotFoundError:
        return False
