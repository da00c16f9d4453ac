"""Why a user's script failed: from its exit code and its log to the rank's error record.

The trainer writes this record itself.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from slurm_job_kit.jobs import installation, log_text
from slurm_job_kit.jobs.errors import DISK_FAULTS, MEMORY_TEXTS, PEER_TEXTS, Fault
from slurm_job_kit.jobs.records.nodes import RankError

# Python ends with this code after an error that nothing caught.
UNCAUGHT = 1
# torch puts `[rank3]: ` before each line of a traceback.
_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.M)
_TRACEBACK = "Traceback (most recent call last):\n"
# Python shows a mistake in the grammar of the script itself without that line.
_SYNTAX_ERROR = re.compile(r'^  File ".*\n(?: .*\n)+((?:\w+\.)*\w*Error: .+)\n?\Z', re.M)
# A relative path that the script did not find.
_NOT_FOUND = re.compile(r"FileNotFoundError: \[Errno 2\] .*: '([^/'][^']*)'$")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
PEER_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")
MEMORY_ERRORS = ("OutOfMemoryError", "MemoryError")


def record_of(exit_code: int, rank: int, host: str, log: Path, work: str) -> RankError:
    """The error record of a rank that has just ended.

    `exit_code`: -N: ended by signal N. `work`: its working directory.
    """
    trace = traceback_in(log_text.read_end(log).text) if exit_code == UNCAUGHT else ""
    line = error_line(trace) if trace else format_exit(exit_code)
    name, text = line.partition(": ")[0].rpartition(".")[2], line.partition(": ")[2]
    is_torchs = name in ("RuntimeError", *PEER_ERRORS)
    is_peers = name in PEER_ERRORS or (is_torchs and any(each in text for each in PEER_TEXTS))
    is_memory = name in MEMORY_ERRORS or (is_torchs and any(each in text for each in MEMORY_TEXTS))
    missing = _NOT_FOUND.search(line)
    hint = "" if missing is None else not_found_hint(missing[1], work)
    is_code = exit_code > 0 and not (is_peers or is_memory or missing)
    return RankError(
        round(time.time(), 3),
        rank,
        host,
        line + hint,
        kind="out_of_memory" if is_memory else "error",
        traceback=trace,
        # torchrun sends SIGTERM to the other ranks of the node after the first one failed.
        caused_by_peer=is_peers or exit_code in (-signal.SIGTERM, 128 + signal.SIGTERM),
        exit_code=exit_code,
        mistake="code" if is_code and exit_code != 128 + signal.SIGTERM else None,
        fault=fault_of(name, text),
    )


def fault_of(name: str, text: str) -> Fault | None:
    """What an exception of this name with this message shows; None if nothing."""
    if name in ("ModuleNotFoundError", "ImportError"):
        return "import"
    if name == "OutOfMemoryError":
        return "device_memory"
    if name in PEER_ERRORS:
        return "collective"
    if name == "FileNotFoundError":
        return "files_missing"
    number = _ERRNO.match(text) if name == "OSError" else None
    return None if number is None else DISK_FAULTS.get(int(number[1]))


def format_exit(exit_code: int) -> str:
    """`exited with code 3`, or `was killed by SIGSEGV`."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-exit_code}"


def traceback_in(text: str) -> str:
    """The last traceback of a log, without what is logged after it; "" if there is none."""
    text = _PREFIX.sub("", text)
    _, found, rest = text.rpartition(_TRACEBACK)
    if not found:
        syntax = _SYNTAX_ERROR.search(text)
        return syntax[0].rstrip() if syntax else ""
    frames, lines = [], rest.splitlines()
    for line in lines:
        frames.append(line)
        if line and not line.startswith(" "):
            break
    return found + "\n".join(frames)


def error_line(trace: str) -> str:
    """The last line of a traceback: the type of the error and its message."""
    return trace.splitlines()[-1].strip()


def not_found_hint(path: str, work: str) -> str:
    """What to do where the script did not find a relative path."""
    return (
        f"\n  hint: the script starts in {work}; an input file that git ignores is there with "
        f"{installation.override(f'launch.inputs=[{path}]')}, its path from the repository or from "
        "the folder of a script outside of it"
    )
