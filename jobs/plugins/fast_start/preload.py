"""Runs torchrun beside a process that imports what the ranks need, and forks them.

    python -m jobs.plugins.fast_start.preload [MODULE,...] TORCHRUN OPTIONS...

A node imports torch and the trainer once, and not once for each rank. torchrun itself must not fork
its ranks: while it does, its threads answer the first of them, and one may hold a lock of the C
library. The copy of such a lock is never released (measured: a rank stood in getnameinfo). So this
process forks one without threads before torchrun begins: the fork server, of which multiprocessing
forks the ranks (`--start-method=forkserver`). It imports the modules during the rendezvous.
"""

import contextlib
import gc
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker, util
from socket import AF_UNIX, socket
from typing import Any, NoReturn

from ...base.prctl import die_with_parent, set_name
from ...contract.rank_start import RANKS_DIR

TORCHRUN = "torch.distributed.run"


def main(argv: Sequence[str]) -> None:
    """Import the modules `argv[0]` in a fork server, and run torchrun by the rest of `argv`."""
    modules, arguments = list(filter(None, argv[0].split(","))), argv[1:]
    gc.disable()  # imports make many objects, but no garbage
    importlib.import_module(TORCHRUN)
    if modules:
        start_server(modules)
    gc.enable()
    run_torchrun(arguments)


def start_server(modules: Sequence[str]) -> None:
    """Fork the server that multiprocessing will ask for the ranks.

    Its own would be a new Python, which imports torch once more. Private where multiprocessing has
    no function for it: what `ForkServer.ensure_running` notes of its process (Python 3.11 to 3.13).
    """
    listener, address = socket(AF_UNIX), os.path.join(os.environ[RANKS_DIR], "fork-server")
    listener.bind(address)
    listener.listen()
    is_wanted, wanted = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(wanted)
        serve(modules, listener.detach(), is_wanted)
    listener.close()
    os.close(is_wanted)
    server: Any = forkserver._forkserver
    server._forkserver_address, server._forkserver_pid = address, pid
    server._forkserver_alive_fd = wanted
    server.ensure_running = resource_tracker.ensure_running  # starts no second server


def serve(modules: Sequence[str], listener: int, is_wanted: int) -> NoReturn:
    """Import modules, then fork ranks until torchrun ends. A rank reports an import that fails."""
    die_with_parent()
    set_name("fork-server")
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # A rank's garbage collector ignores what it inherits, and that memory stays shared.
    gc.enable()
    gc.freeze()
    with contextlib.suppress(SystemExit):
        forkserver.main(listener, is_wanted, ())
    os._exit(0)


def run_torchrun(arguments: Sequence[str]) -> NoReturn:
    """Run `TORCHRUN OPTIONS...`, a module with `main`, and end this process at once.

    Python would first tear down all imported modules, which takes longer than the save of a stop,
    and the next attempt waits for it.
    """
    status = 0
    logging.setLogRecordFactory(record_of)
    try:
        importlib.import_module(arguments[0]).main(arguments[1:])
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    util._run_finalizers(0)  # type: ignore[attr-defined] # private; deletes semaphores of the ranks
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the disk of the log is full
            stream.flush()
    os._exit(status)


def record_of(*arguments: Any, **options: Any) -> logging.LogRecord:
    """Return a record with its exception as text: torch's formatter imports _dynamo for others."""
    record = logging.LogRecord(*arguments, **options)
    if record.exc_info:
        text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
        record.exc_text = text
    return record


if __name__ == "__main__":
    main(sys.argv[1:])
