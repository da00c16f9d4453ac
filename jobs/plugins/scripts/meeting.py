"""Runs torchrun, which notes what its ranks did: each that exited with 0, and if none met another.

    python -m jobs.plugins.scripts.meeting TORCHRUN OPTIONS...

Ranks meet at the store of MASTER_ADDR, in the torchrun of global rank 0. Its end is after that of
all ranks: torchrun waits for them. All that is replaced is torchrun's own (torch 2.10 to 2.15).
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from slurm_job_kit.jobs.base.console import BestEffort
from slurm_job_kit.jobs.contract.rundir import AttemptDir
from slurm_job_kit.jobs.node.signed_torchrun import RENDEZVOUS
from slurm_job_kit.jobs.node.torchrun import END_LIMIT

NEVER_MET = "never_met"  # beside the file by which the ranks are stopped
ELASTIC = "torch.distributed.elastic"


def main(argv: list[str]) -> None:
    """Run torchrun by `argv`: a module with `main`, and its arguments."""
    handler: Any = importlib.import_module(RENDEZVOUS).DynamicRendezvousHandler
    processes: Any = importlib.import_module(f"{ELASTIC}.multiprocessing.api").SubprocessContext
    agent: Any = importlib.import_module(f"{ELASTIC}.agent.server.api").SimpleElasticAgent
    shut_down, poll, wait_for_nodes = handler.shutdown, processes._poll, agent._exit_barrier
    attempt_dir = AttemptDir(Path(os.environ["KIT_STOP_FILE"]).parent)
    best_effort, noted = BestEffort("torchrun"), set[int]()

    def poll_and_note(self: Any) -> Any:
        result = poll(self)
        ended = {*range(self.nprocs)} - self._running_local_ranks - {*self._failures}
        with best_effort():
            for local_rank in ended - noted:
                noted.add(local_rank)
                attempt_dir.rank_ended(int(self.envs[local_rank]["RANK"])).touch()
        return result

    def wait_longer(own: Any) -> None:
        own._exit_barrier_timeout = float(os.environ[END_LIMIT]) - 30
        wait_for_nodes(own)

    def look_and_shut_down(self: Any) -> bool:
        with best_effort():
            store = getattr(self, "_shared_tcp_store_server", None)  # None on other nodes
            if store is not None and store.num_keys() == 0:
                (attempt_dir.path / NEVER_MET).touch()
        return bool(shut_down(self))

    processes._poll, agent._exit_barrier = poll_and_note, wait_longer
    handler.shutdown = look_and_shut_down
    importlib.import_module(argv[0]).main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
