"""Runs torchrun, which notes at its end if no rank opened a process group at its store.

    python -m jobs.plugins.scripts.meeting TORCHRUN OPTIONS...

The store is that of MASTER_ADDR, in the torchrun of global rank 0 (torch 2.11 to 2.13). Its end is
after that of all ranks: torchrun waits for them.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.base.console import BestEffort
from slurm_job_kit.jobs.node.signed_torchrun import RENDEZVOUS

NEVER_MET = "never_met"  # beside the file by which the ranks are stopped


def main(argv: list[str]) -> None:
    """Run torchrun by `argv`: a module with `main`, and its arguments."""
    handler: Any = importlib.import_module(RENDEZVOUS).DynamicRendezvousHandler
    shut_down = handler.shutdown

    def look_and_shut_down(self: Any) -> bool:
        with BestEffort("torchrun")():
            store = getattr(self, "_shared_tcp_store_server", None)  # None on other nodes
            if store is not None and store.num_keys() == 0:
                Path(os.environ["KIT_STOP_FILE"]).with_name(NEVER_MET).touch()
        return bool(shut_down(self))

    handler.shutdown = look_and_shut_down
    importlib.import_module(argv[0]).main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
