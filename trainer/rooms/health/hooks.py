"""The callback of a rank: its watchdog, and the preflight of its node."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ...hooks import Callback, Pulse
from .watchdog import Watchdog

if TYPE_CHECKING:
    import torch

    from ...process.rank_process import RankProcess
    from ...process.run_handle import RankContext


def callbacks(pulse: Pulse) -> list[Callback]:
    """Start the watchdog of this rank."""
    # For `diagnosis`: by default torch 2.13 records 2,000 collectives, of NCCL only.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    # Missing variables are reported later. Source: torchrun, "Environment Variables".
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    watchdog = Watchdog(int(rank), int(world_size), pulse)
    watchdog.open_early(sys.argv[1:], os.environ)
    watchdog.start()
    return [Health(watchdog)]


class Health(Callback):
    """Tests the node of this rank; tells its watchdog which run it trains."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def connected(self, rank: RankProcess, device: torch.device) -> None:
        """Test all nodes together. Raises: BadNode, PeerBadNode."""
        from .preflight import preflight  # imports torch

        preflight(rank, device)

    def opened(self, context: RankContext) -> None:
        """Let the watchdog exchange states with those of the other ranks."""
        run = context.run
        self._watchdog.open(run.dir, run.attempt, run.spec.launch.hang_timeout_s)
