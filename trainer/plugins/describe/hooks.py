"""The callback of a rank: it describes the training before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:
    from ...training.loop import Loop


def callbacks(pulse: Pulse) -> list[Callback]:
    return [Describe()]


class Describe(Callback):
    """Finds the exactness of the result; logs what is trained, and where."""

    def restored(self, loop: Loop) -> None:
        """Note this attempt's environment in the state; log the first lines."""
        from . import first_lines, reproducibility  # a rank imports torch after this module

        context, sizes = loop.context, loop.data.train_batches.sizes
        reproducibility.note_attempt(loop)
        lines = first_lines.start_lines(context, loop.replica.module, loop.length, sizes)
        for line in (first_lines.data_line(loop.data, context.train.dataset), *lines):
            context.distributed.log(line)
        if loop.state.global_step and loop.exactness[0] != "bitwise":
            context.distributed.log("exactness is {}, not bitwise: {}".format(*loop.exactness))
        self.loop = loop
        # Without a checkpoint this is the run that was never stopped.
        self.unsaved = reproducibility.unsaved_buffers(loop) if loop.state.global_step else {}

    def saved(self, step: int, path: Path) -> None:
        """Note where training changes a buffer that the state, which was loaded, does not have."""
        now = dict(self.loop.replica.module.named_buffers())
        words = "training changes the buffer {} of train.model, which no checkpoint has"
        for name, was in self.unsaved.items():
            if self.loop.exactness[0] == "bitwise" and not was.equal(now.get(name, was).to(was)):
                self.loop.exactness = "same samples", words.format(name)
