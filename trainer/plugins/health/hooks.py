"""The watchdog of a rank, which also has its node tested."""

import os

from ...hooks import Callback
from ...process.watcher import Pulse
from .watchdog import Watchdog


def callbacks(pulse: Pulse) -> list[Callback]:
    # Missing variables are reported later. Source: torchrun, "Environment Variables".
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    watchdog = Watchdog(int(rank), int(world_size), pulse)
    watchdog.start()
    return [watchdog]
