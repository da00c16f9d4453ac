"""torch.compile: where a run keeps the compiled code, and how long each compilation took."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..events import Events
from ..process.run_handle import RankContext

if TYPE_CHECKING:
    from torch._dynamo.callback import CallbackArgs


def keep_compiled_code(context: RankContext) -> None:
    """Keep compiled code in the run directory, unless the user set TORCHINDUCTOR_CACHE_DIR.

    Each rank has its own directory, because torch locks files in it and locks on NFS are not
    reliable. The variable must be set before torch imports its compiler, which otherwise uses
    /tmp. Triton's cache is inside this directory.
    """
    if context.run.dir.path.is_dir():
        cache = context.run.dir.compile_cache / f"rank-{context.distributed.rank:05d}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))


def report_compilations(events: Events) -> None:
    """Write an event `compile` with its `seconds` whenever torch has compiled something.

    Also of a model that compiles itself. Source: torch/_dynamo/callback.py; torch 2.13 has no
    public function for it.
    """
    # DDP and the optimizers import it, too. The import reads TORCHINDUCTOR_CACHE_DIR.
    from torch._dynamo.callback import on_compile_end, on_compile_start

    began = 0.0

    def begin(_: CallbackArgs) -> None:
        nonlocal began
        began = time.monotonic()

    def end(_: CallbackArgs) -> None:
        events.event("compile", seconds=round(time.monotonic() - began, 3))

    on_compile_start(begin)
    on_compile_end(end)
