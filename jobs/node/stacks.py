"""Python stacks of other processes, by py-spy: where each rank of a node is.

Without py-spy, or where the kernel forbids it to look into processes of the same user (ptrace), a
process that has a handler for SIGQUIT, such as faulthandler's, writes its stack to its own log.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import procfs

LIMIT_S = 20.0
MAX_PROCESSES = 4  # of a rank: the training and some of its data workers
# Code in which a rank waits for its peers: a collective, DDP's backward, or the device.
WAITING_IN = tuple(f"/torch/{name}/" for name in ("distributed", "autograd", "cuda", "nn/parallel"))
LIBRARIES = (
    *("/site-packages/", "/dist-packages/", sysconfig.get_path("stdlib"), "<"),
    "/jobs/rehearse/probe/",
)


@dataclass(frozen=True)
class Stack:
    """The stacks of a rank's processes.

    where: file:line and function of the main thread, in code that no library has if possible.
    is_waiting: whether it waits there for other ranks. Of a rank without a stack both are unknown.
    """

    text: str
    pid: int = 0
    where: str = "an unknown place"
    is_waiting: bool = True


def py_spy() -> str | None:
    """Return the program py-spy, beside this interpreter or on PATH; None without it."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def stacks_of(wrappers: Sequence[int]) -> list[Stack]:
    """Return the stacks of the rank below each of these wrappers; takes up to LIMIT_S."""
    trees = [pythons_below(wrapper) for wrapper in wrappers]
    with ThreadPoolExecutor(max(1, len(trees) * MAX_PROCESSES)) as pool:
        found = [pool.map(threads_of, tree) for tree in trees]  # all of them at once
        return [_stack(tree, list(each)) for tree, each in zip(trees, found, strict=True)]


def pythons_below(wrapper: int) -> list[int]:
    """Return the processes of a rank, those with torch loaded if there are any."""
    pids = procfs.descendants(wrapper)
    with_torch = [pid for pid in pids if procfs.has_mapped(pid, b"/libtorch")]
    return (with_torch or pids)[:MAX_PROCESSES]


def threads_of(pid: int) -> tuple[Any, str]:
    """Return (py-spy's list of the threads of a process, "") or (None, why there is none)."""
    if (program := py_spy()) is None:
        return None, f"there is no py-spy beside {sys.executable} (pip install py-spy)"
    argv = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"py-spy: {error}"
    with contextlib.suppress(ValueError):
        return json.loads(done.stdout), ""
    return None, done.stderr.decode(errors="replace").strip()


def _stack(pids: Sequence[int], found: Sequence[tuple[Any, str]]) -> Stack:
    texts: list[str] = []
    main: Stack | None = None
    for pid, (threads, error) in zip(pids, found, strict=True):
        texts.append(f"process {pid}: {' '.join(procfs.command_line(pid))}")
        texts += [error, _signal(pid)] if threads is None else map(_thread_text, threads)
        if threads and main is None:
            main = _of_main_thread(pid, threads)
    first = pids[0] if pids else 0
    if _is_stopped(first):
        main = Stack("", first, "a stop of its process (SIGSTOP)", is_waiting=False)
    elif main is None:
        main = Stack("", first)
    return replace(main, text="\n".join(texts))


def _is_stopped(pid: int) -> bool:
    return procfs.usage(pid)[0] == "T"


def _signal(pid: int) -> str:
    """Ask a process for its stack; return where that is, or why there is none."""
    if not procfs.catches(pid, signal.SIGQUIT):
        return "no stack: the process has no handler for SIGQUIT (faulthandler.register)"
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGQUIT)
    return "the process got SIGQUIT: its stack is at the end of the rank's log"


def _thread_text(thread: dict[str, Any]) -> str:
    frames = (f"    {frame['name']} ({_place(frame)})" for frame in thread["frames"])
    return "\n".join([f"  thread {thread['thread_name'] or thread['thread_id']}", *frames])


def _of_main_thread(pid: int, threads: list[dict[str, Any]]) -> Stack:
    named = [each for each in threads if each["thread_name"] == "MainThread"]
    frames = (named or threads)[0]["frames"]
    if not frames:
        return Stack("", pid)
    own = [frame for frame in frames if not any(each in frame["filename"] for each in LIBRARIES)]
    frame = (own or frames)[0]
    is_waiting = any(each in frames[0]["filename"] for each in WAITING_IN)
    return Stack("", pid, f"{_place(frame)} {frame['name']}", is_waiting)


def _place(frame: dict[str, Any]) -> str:
    return f"{frame['filename']}:{frame['line']}"
