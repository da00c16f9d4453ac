"""What a loop of one's own calls, with Fabric or accelerate: `resume`, then `after_batch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .keeper import Keeper


class OwnLoop(Keeper):
    """A Keeper that counts the batches and steps of a loop. total: steps of the whole training."""

    def __init__(self, total: int, **options: Any) -> None:
        super().__init__(**options)
        self.total = total

    def resume(self) -> None:
        """Load the newest whole checkpoint, if there is one; `self.epoch` is its epoch."""
        if (checkpoint := self.newest()) is not None:
            self.read(checkpoint)
            self.restore(checkpoint)

    def after_batch(self, is_step: bool = True, **metrics: Any) -> None:
        """Call it last in the loop's body, on all ranks. is_step: the optimizer has stepped."""
        self.count_batch()
        if is_step:
            self.step += 1
            self.after_step(self.total, self.write, metrics)

    def write(self, folder: Path) -> None:
        """Save the library's state in a folder."""
        raise NotImplementedError

    def read(self, folder: Path) -> None:
        """Load what `write` saved."""
        raise NotImplementedError
