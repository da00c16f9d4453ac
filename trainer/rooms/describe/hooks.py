"""The callback of a rank: it describes the training before the first step."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ...errors import log
from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:
    from ...loop import Loop


def callbacks(pulse: Pulse) -> list[Callback]:
    """Return the callback."""
    return [Describe()]


class Describe(Callback):
    """Finds the exactness of the result; logs what is trained, and where."""

    def restored(self, loop: Loop) -> None:
        """Note this attempt's environment in the state; rank 0 looks at the disk, too."""
        from . import first_lines, reproducibility  # a rank imports torch after this module

        context, train = loop.context, loop.train
        reproducibility.note_attempt(loop)
        lines = [first_lines.data_line(loop.data, train.dataset)]
        lines += first_lines.start_lines(
            context, loop.replica.module, loop.length, loop.data.train_batches.sizes
        )
        if text := first_lines.precision_warning(train.precision, context.device):
            lines.append(f"warning: {text}")
        for line in lines:
            context.distributed.log(line)
        if context.distributed.is_first:  # one rank asks the file server
            parts = loop.replica.module, loop.replica.optimizer
            with contextlib.suppress(OSError):  # a save will find it out
                if text := first_lines.space_warning(context.run.dir.checkpoints, *parts):
                    log(f"warning: {text}")
