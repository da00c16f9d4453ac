"""The ends of processes that wrote no record: what their logs and torchrun's summary show.

A rank that a signal ends, a torchrun that finds no store, an agent that srun cannot start: the
reason stands in a log only.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from .. import log_text
from ..known_causes import REPEATED, known_cause
from ..log_text import on_a_screen
from ..records.nodes import RankError
from ..rundir import AttemptDir
from .last_error import last_error
from .script_failure import UNCAUGHT, format_exit, kind_of_exit
from .stop_signals import STOP_SIGNALS

# An entry of torchrun's summary. Source: torch.distributed.elastic.multiprocessing.errors.
_FAILURE = re.compile(
    r"^  time +: (\S+)\n  host +: \S+\n  rank +: (\d+) \(local_rank: \d+\)\n  exitcode +: (-?\d+) ",
    re.MULTILINE,
)
_CONSEQUENCES = ("ChildFailedError", "SignalException")
_SIGTERM = -15
_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
_OF_ATTEMPT = re.compile(r"^(?:attempt \d+|warning: |  hint: |torchrun's own output)")
_TASK_END = re.compile(r"^srun: error: (\S+): tasks? \S+: Exited with exit code (\d+)$")
_OF_SIGNALS = {128 + number for number in (*STOP_SIGNALS, signal.SIGINT, signal.SIGKILL)}
_EXIT_CODE = re.compile(r"^(.*? exit code \d+)(?:: .*)?$", re.DOTALL)


def ended_ranks(
    attempt_dir: AttemptDir, node_rank: int, host: str, recorded: Sequence[int]
) -> list[RankError]:
    """Return a record of each rank that torchrun saw fail on a node, and that wrote none itself.

    recorded: the ranks that wrote one.
    """
    text = log_text.read_end(attempt_dir.torchrun_log(node_rank)).text
    return [
        _record(attempt_dir, host, int(rank), int(code), when)
        for when, rank, code in _FAILURE.findall(text)
        if int(rank) not in recorded
    ]


def _record(attempt_dir: AttemptDir, host: str, rank: int, code: int, when: str) -> RankError:
    lines = log_text.read_end(attempt_dir.rank_log(rank)).lines
    error = last_error(lines, may_be_uncaught=code == UNCAUGHT, takes_words=False)
    words, ended = on_a_screen(error.text), format_exit(code)
    cause = known_cause(f"{error.text}\n{ended}", (error.name,) if error.name else ())
    shown = f"{ended}: {words}" if words else ended
    return RankError(
        _seconds(when),
        rank,
        host,
        shown,
        kind=cause or kind_of_exit(code),
        caused_by_peer=code == _SIGTERM,
        would_repeat=cause in REPEATED,
        exit_code=code,
    )


def _seconds(when: str) -> float:
    try:
        return time.mktime(time.strptime(when, "%Y-%m-%d_%H:%M:%S"))
    except ValueError:
        return time.time()


# What stands before, or at the top of, a traceback of an exit, a thread or a process beside it.
_BESIDE = re.compile(
    r"^(?:Exception ignored|Exception in thread|Error in atexit|--- Logging error)"
)
# After an error that a script caught, and without output: so long a script trains. More than a
# client of a file server may be late, or the clocks of two hosts differ.
QUIET_S = 600.0
_BESIDE_FRAME = re.compile(r'\n *File ".*/(?:multiprocessing|concurrent|asyncio)/|/threading\.py"')


def error_at_end(attempt_dir: AttemptDir, exited: float | None) -> str:
    """Return the error that a script whose rank 0 exited with 0 printed last; "" without one.

    An error of Python or of a program alone counts: other words may be those of a summary. Not
    where the rank went on for long without output. exited: when it did; None: not known.
    """
    log = attempt_dir.rank_log(0)
    with contextlib.suppress(OSError):
        if exited is not None and exited - log.stat().st_mtime > QUIET_S:
            return ""
    lines = log_text.read_end(log).lines
    error = last_error(lines, may_be_uncaught=False, takes_words=False)
    if error.is_logged:
        return ""
    if not error.traceback:
        return on_a_screen(error.text)
    before, _, _ = "\n".join(lines).rpartition(error.traceback)
    line_before = before.rstrip().rpartition("\n")[2]
    first_frame = "\n".join(error.traceback.split("\n", 2)[:2])
    is_beside = _BESIDE.search(line_before) or _BESIDE_FRAME.search(first_frame)
    return "" if is_beside else on_a_screen(error.text)


def torchrun_words(attempt_dir: AttemptDir, node_rank: int) -> str:
    """Return the last error of a torchrun; "" where it only reports that of its ranks."""
    lines = log_text.read_end(attempt_dir.torchrun_log(node_rank)).lines
    error = last_error(lines)
    return "" if error.name in _CONSEQUENCES else on_a_screen(error.text)


def job_lines(job_log: Path, attempt: int) -> list[str]:
    """Return the lines of a job's log from the opening of an attempt on, without their time."""
    lines = [_TIME.sub("", line) for line in log_text.read_end(job_log).lines]
    opened = f"attempt {attempt}: "
    begin = max(
        (n for n, line in enumerate(lines) if line.startswith(opened) and "rendezvous at" in line),
        default=len(lines),
    )
    return lines[begin + 1 :]


def agent_words(lines: Sequence[str]) -> str:
    """Return the last error in the lines of a job's log, of srun or of an agent."""
    return on_a_screen(last_error([each for each in lines if not _OF_ATTEMPT.match(each)]).text)


def failed_tasks(lines: Sequence[str]) -> dict[str, int]:
    """Return nodes, as a host list, and exit code of tasks that failed by themselves, from srun.

    After the first one srun sends SIGTERM to the others.
    """
    ended = (_TASK_END.match(line) for line in lines)
    return {each[1]: int(each[2]) for each in ended if each and int(each[2]) not in _OF_SIGNALS}


def setup_words(reason: str, setup_log: Path) -> str:
    """Return the reason of setup lines that failed, with the last error of their output."""
    words = last_error(log_text.read_end(setup_log).lines).text
    head = _EXIT_CODE.match(reason)
    return f"{head[1]}: {on_a_screen(words)}" if head and words else reason
