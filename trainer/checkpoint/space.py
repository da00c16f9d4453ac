"""Whether the checkpoints of a run fit on its disk."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path


def warning(checkpoints: Path, size: int) -> str:
    """Return a warning where the disk has no room for two more checkpoints; else "".

    size: bytes of one. A save has the old and the new one on the disk.
    """
    with contextlib.suppress(OSError):  # a save will find it out
        free = shutil.disk_usage(checkpoints.parent).free
        if free < 2 * size:
            gib = f"{size / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free"
            return f"the disk of {checkpoints} may become full: a checkpoint takes {gib}"
    return ""
