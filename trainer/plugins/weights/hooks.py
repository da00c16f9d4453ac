"""Loads the weights of train.init_from into a new training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:
    from ...training.loop import Loop


def callbacks(pulse: Pulse) -> list[Callback]:
    return [_Initial()]


class _Initial(Callback):
    def restored(self, loop: Loop) -> None:
        context, path = loop.context, loop.context.train.init_from
        if path is not None and loop.checkpoints.newest_step is None:
            from .initial import load_initial  # a rank imports torch after this module

            load_initial(loop.replica, path, context)
            context.distributed.log(f"loaded the weights of {path}")
