"""Runs torchrun in a process that imports, during the rendezvous, what the ranks need.

    python -m jobs.node.preload MODULE[,MODULE...] torch.distributed.run OPTIONS...

torchrun forks the trainer's ranks out of this process (`--start-method=fork`), so a node imports
torch and the trainer once, and not once for each rank.

What a fork needs: no thread of this process holds a lock that the rank needs, and CUDA is not
initialised. The thread that imports has ended before the fork. Two threads remain: that of the
rendezvous store runs no Python, and that of torchrun's keep-alive waits for most of the time and
holds only locks that Python and the C library make free in a child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import threading
from collections.abc import Sequence

# torchrun imports these during the rendezvous. They are imported before, because of two threads
# that import modules with circular imports one may get an unfinished module.
# Source: `sys.modules` before and after the rendezvous (torch 2.13).
LATE_IMPORTS = (
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "encodings.idna",
    "multiprocessing.queues",
)


def preload(modules: Sequence[str]) -> None:
    """Import modules. A rank imports one that fails again, and reports the error."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def main(argv: Sequence[str]) -> None:
    """Import the modules `argv[0]` in a thread; call `main` of the module `argv[1]` meanwhile."""
    for name in (argv[1], *LATE_IMPORTS):
        importlib.import_module(name)
    thread = threading.Thread(target=preload, args=(argv[0].split(","),), daemon=True)
    thread.start()
    os.register_at_fork(before=thread.join)
    # A rank's garbage collector then ignores what it inherits, and that memory stays shared.
    os.register_at_fork(before=gc.freeze)
    importlib.import_module(argv[1]).main(argv[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
