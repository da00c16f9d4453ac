"""For a loop of one's own with accelerate: it stops, saves and resumes whole."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from .keeper import OwnLoop


class AccelerateLoop(OwnLoop):
    """Saves by `Accelerator.save_state` what `prepare` got; made after `prepare`.

    Its `batches` have is_split=False, because `prepare` makes each rank take its own part.
    """

    def __init__(self, accelerator: Accelerator, total: float | None, **options: Any) -> None:
        super().__init__(
            total,
            lambda folder: accelerator.save_state(str(folder)),
            lambda folder: accelerator.load_state(str(folder)),
            **options,
        )
        self.accelerator = accelerator

    def after_batch(self, is_step: bool = True, **metrics: Any) -> None:
        """Call it last in the loop's body, on all ranks."""
        super().after_batch(is_step and self.accelerator.sync_gradients, **metrics)
