"""Why a user's script failed: from its end, its report and its log to the rank's error record.

The trainer writes this record itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from .. import installation, log_text
from ..errors import MEMORY_TEXTS, PEER_TEXTS, Mistake
from ..kinds import KIND_OF_MISTAKE, OF_MEMORY, Kind
from ..known_causes import REPEATED, known_cause
from ..log_text import first_line, on_a_screen
from ..records.nodes import RankError
from .last_error import OUTPUT_BEFORE, LastError, last_error

# Python ends with this code after an error that nothing caught, and after sys.exit("text").
UNCAUGHT = 1
# A relative path that the script did not find.
_NOT_FOUND = re.compile(r"FileNotFoundError: \[Errno 2\] .*: '([^']+)'")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
# A process ends by these, whatever it is. As an exit code another one is most often a number.
_KILLING = {
    *(signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE),
    *(signal.SIGTERM, signal.SIGXFSZ, signal.SIGXCPU, signal.SIGSYS),
}
_KILLED_CHILD = re.compile(r"killed by SIG|died with <Signals|with signal SIG|killed by signal: ")
PEER_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")
MEMORY_ERRORS = ("OutOfMemoryError", "MemoryError")


@dataclass(frozen=True)
class Report:
    """What a script reported of its end: jobs/node/uncaught.

    begun: it can report. text, names, errno, traceback: of an error that nothing caught, with the
    names of its class and its bases. exit_text: of its last sys.exit. is_hook_ours: False where
    another sys.excepthook shows errors. main: the file of the script.
    """

    begun: bool = False
    text: str = ""
    names: Sequence[str] = ()
    errno: int | None = None
    traceback: str = ""
    exit_text: str = ""
    ended: bool = False
    is_hook_ours: bool = True
    main: str | None = None


@dataclass(frozen=True)
class ScriptEnd:
    """The end of a script. exit_code: -N: ended by signal N; work: its working directory."""

    exit_code: int
    log: Path
    work: str
    args: Sequence[str] = ()
    report: Report = Report()


def read_report(pipe: int) -> Report:
    """Return what a script wrote to the pipe of its reports."""
    content = b""
    with contextlib.suppress(OSError):  # a process of the script may still have it open: no more
        os.set_blocking(pipe, False)
        while block := os.read(pipe, 1 << 16):
            content += block
    values: dict[str, object] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            values |= json.loads(line)
    known = {each.name for each in fields(Report)}
    return Report(**{name: value for name, value in values.items() if name in known})  # type: ignore[arg-type]


def record_of(end: ScriptEnd, rank: int, host: str) -> RankError:
    """Return the error record of a rank that has just ended."""
    error, names = _error_of(end)
    is_torchs = any(name in names for name in ("RuntimeError", *PEER_ERRORS))
    text = error.text
    is_peers = not {*PEER_ERRORS}.isdisjoint(names) or (
        is_torchs and any(each in text for each in PEER_TEXTS)
    )
    is_memory = not {*MEMORY_ERRORS}.isdisjoint(names) or (
        is_torchs and any(each in text for each in MEMORY_TEXTS)
    )
    cause = _cause_of(end, error, names)
    missing = _NOT_FOUND.search(text) if error.traceback else None
    in_args = missing is not None and any(missing[1] in each for each in end.args)
    is_stop = signal_of(end.exit_code) == signal.SIGTERM
    is_own = not (is_stop or is_peers or is_memory)
    mistake = _mistake_of(end, error, cause, in_args) if is_own else None
    if cause is not None and not (is_memory and cause not in OF_MEMORY):
        kind = cause
    elif is_memory:
        kind = Kind.OUT_OF_MEMORY
    elif is_peers:
        kind = Kind.COLLECTIVE
    else:
        kind = KIND_OF_MISTAKE.get(mistake) or kind_of_exit(end.exit_code)
    return RankError(
        round(time.time(), 3),
        rank,
        host,
        _words_of(end, error) + _explanation(end, missing),
        kind=kind,
        traceback=error.traceback,
        # torchrun sends SIGTERM to the other ranks of the node after the first one failed.
        caused_by_peer=is_peers or is_stop,
        would_repeat=in_args or cause in REPEATED,
        exit_code=end.exit_code,
        mistake=mistake,
    )


def _error_of(end: ScriptEnd) -> tuple[LastError, Sequence[str]]:
    """Return the error that ended a script, and the classes of a Python exception."""
    report, lines = end.report, log_text.read_end(end.log).lines
    if end.exit_code == UNCAUGHT and report.text:
        return _of_report(report, lines)
    if end.exit_code == UNCAUGHT and _is_printed(report.exit_text, lines):
        return LastError(report.exit_text), ()
    has_reported = report.begun and report.ended and report.is_hook_ours
    error = last_error(
        lines,
        may_be_uncaught=end.exit_code == UNCAUGHT or (has_reported and end.exit_code > 0),
        # What a process wrote before it aborted is why, most often.
        takes_words=end.exit_code > 0 or end.exit_code == -signal.SIGABRT,
        main=report.main if has_reported else None,
    )
    return error, (error.name,) if error.name else ()


def _of_report(report: Report, lines: Sequence[str]) -> tuple[LastError, Sequence[str]]:
    """Return a reported error; where it only reports that of a child, the child's own."""
    # In the text itself: of a data worker, of a spawned process, or captured.
    inner = last_error(report.text.split("\n"))
    if inner.traceback and inner.traceback in report.traceback:
        return LastError(inner.text, report.names[0], report.traceback), report.names
    if not inner.traceback:
        inner = last_error(lines)
        own = first_line(report.text)
        has_more = inner.text.startswith(own) and f"\n{OUTPUT_BEFORE}" in inner.text
        if not has_more and f"({own})" not in inner.text:
            return LastError(report.text, report.names[0], report.traceback), report.names
    names = (inner.name or report.names[0],)
    return replace(inner, traceback=inner.traceback or report.traceback), names


def _is_printed(text: str, lines: Sequence[str]) -> bool:
    """Return whether a log ends with a text: the script may have caught the exit and gone on."""
    last = log_text.visible(text.rstrip().rpartition("\n")[2]).strip()
    return bool(last) and any(last[:100] in line for line in lines[-20:])


def _cause_of(end: ScriptEnd, error: LastError, names: Sequence[str]) -> Kind | None:
    number = end.report.errno
    if number is None and "OSError" in names and (number_match := _ERRNO.search(error.text)):
        number = int(number_match[1])
    return known_cause(f"{error.text}\n{format_exit(end.exit_code)}", names, number)


def _mistake_of(
    end: ScriptEnd, error: LastError, cause: Kind | None, in_args: bool
) -> Mistake | None:
    if in_args:
        return "spec"
    is_plain = cause in (None, Kind.IMPORT_ERROR)
    is_killed = signal_of(end.exit_code) is not None or _KILLED_CHILD.search(error.text)
    return "code" if is_plain and not is_killed else None


def _words_of(end: ScriptEnd, error: LastError) -> str:
    """Return the words of an error, behind the exit code where no exception ended the script."""
    words = on_a_screen(error.text)
    if error.traceback:
        return words
    if not words:
        return format_exit(end.exit_code)
    return f"{format_exit(end.exit_code)}{': ' if error.is_known else '; its last output: '}{words}"


def _explanation(end: ScriptEnd, missing: re.Match[str] | None) -> str:
    """Return what to do about an input file that was not found, in lines of their own."""
    if missing is not None and not missing[1].startswith("/"):
        return not_found_hint(missing[1], end.work)
    return ""


def kind_of_exit(exit_code: int) -> Kind:
    """Return the kind of an end of which nothing but the exit code is known."""
    # A shell shows the end of a script by signal N as 128 + N.
    return Kind.PROCESS_KILLED if exit_code < 0 or exit_code > 128 else Kind.UNKNOWN


def format_exit(exit_code: int) -> str:
    """Return `exited with code 3`, or `was killed by SIGSEGV`."""
    number = signal_of(exit_code)
    if number is None:
        return f"exited with code {exit_code}"
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    if exit_code < 0:
        return f"was killed by {name}"
    return f"exited with code {exit_code}: a process that it started was killed by {name}"


def signal_of(exit_code: int) -> int | None:
    """Return the signal that killed a process, or a child whose end is its exit code, or None.

    A shell passes signal N on as 128 + N, Python's `sys.exit(process.wait())` as 256 - N.
    """
    if exit_code < 0:
        return -exit_code
    number = exit_code - 128 if exit_code < 192 else 256 - exit_code
    return number if number in _KILLING else None


def not_found_hint(path: str, work: str) -> str:
    """Return what to do where the script did not find a relative path."""
    return (
        f"\n  hint: the script starts in {work}; an input file that git ignores is there with "
        f"{installation.override(f'launch.inputs=[{path}]')}, its path from the repository or from "
        "the folder of a script outside of it"
    )
