"""Runs torchrun in a process that imports what the ranks need, during the rendezvous.

    python -m jobs.plugins.fast_start.preload [MODULE,...] TORCHRUN OPTIONS...

torchrun forks the trainer's ranks out of this process (`--start-method=fork`), so a node imports
torch and the trainer once, and not once for each rank.

What a fork needs: no thread of this process holds a lock that the rank needs, and CUDA is not
initialised. The thread that imports has ended before the fork. Two threads remain: that of the
rendezvous store runs no Python, and that of torchrun's keep-alive waits for most of the time and
holds only locks that Python and the C library make free in a child.
"""

import contextlib
import gc
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

TORCHRUN = "torch.distributed.run"

# torchrun imports these during the rendezvous. They are imported before, because of two threads
# that import modules with circular imports one may get an unfinished module.
# Source: `sys.modules` before and after the rendezvous (torch 2.13).
LATE_IMPORTS = (
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "encodings.idna",
    "multiprocessing.queues",
)
# Why the import of each module failed. torch cannot be imported a second time: that error is of
# what the first import has left, and hides the cause.
_failed: dict[str, Exception] = {}


def preload(modules: Sequence[str]) -> None:
    """Import modules, without the garbage collector: imports make many objects, but no garbage.

    A rank imports a module that fails again, and reports the error. Nothing is imported after
    torchrun, so torch, has failed.
    """
    gc.disable()
    try:
        for name in modules:
            if TORCHRUN in _failed:
                break
            try:
                importlib.import_module(name)
            except Exception as error:
                _failed[name] = error
    finally:
        gc.enable()


def main(argv: Sequence[str]) -> None:
    """Import the modules `argv[0]`, and run torchrun by the rest of `argv`."""
    modules, arguments = list(filter(None, argv[0].split(","))), argv[1:]
    preload([TORCHRUN, *LATE_IMPORTS])
    pid = os.getpid()
    # Registered first, so called last: the imports of the thread are frozen, too. A rank's garbage
    # collector then ignores what it inherits, and that memory stays shared.
    os.register_at_fork(before=lambda: gc.freeze() if os.getpid() == pid else None)
    thread = threading.Thread(target=preload, args=(modules,), daemon=True)
    thread.start()
    os.register_at_fork(before=thread.join)
    run_torchrun(arguments)


def run_torchrun(arguments: Sequence[str]) -> NoReturn:
    """Run `TORCHRUN OPTIONS...`, a module with `main`, and end this process at once.

    Python would first tear down all imported modules, which takes longer than the save of a stop,
    and the next attempt waits for it.
    """
    status = 0
    try:
        if (error := _failed.get(TORCHRUN)) is not None:
            raise error
        importlib.import_module(arguments[0]).main(arguments[1:])
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the disk of the log is full
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
