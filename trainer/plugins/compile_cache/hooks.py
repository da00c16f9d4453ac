"""torch.compile: where a run keeps the compiled code."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:
    from ...process.run_handle import RankContext


def callbacks(pulse: Pulse) -> list[Callback]:
    return [CompileCache()]


class CompileCache(Callback):
    """Acts before torch imports its compiler, which reads TORCHINDUCTOR_CACHE_DIR then."""

    def opened(self, context: RankContext) -> None:
        """Keep compiled code in the run directory, unless the user has set the variable.

        Each rank has its own directory, because torch locks files in it and locks on NFS are not
        reliable. By default torch uses /tmp. Triton's cache is inside this directory. Others cannot
        enter it, because torch executes what is in it.
        """
        if context.train.compile and context.run.dir.path.is_dir():
            folder = context.run.dir.path / "compile-cache"
            cache = folder / f"rank-{context.distributed.rank:05d}"
            with contextlib.suppress(OSError):  # a full disk
                folder.mkdir(0o700, exist_ok=True)
                cache.mkdir(exist_ok=True)
                os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
