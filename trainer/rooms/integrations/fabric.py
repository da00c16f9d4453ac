"""For a loop of one's own with Lightning's Fabric: it stops, saves and resumes whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from .keeper import OwnLoop

FILE = "fabric.ckpt"


class FabricLoop(OwnLoop):
    """Saves by `Fabric.save` the objects of `state`; made after `setup`.

    The loader is set up with use_distributed_sampler=False: its `batches` are split already.
    """

    def __init__(
        self, fabric: Fabric, state: dict[str, Any], total: float | None, **options: Any
    ) -> None:
        super().__init__(total, **options)
        self.fabric, self.state = fabric, state

    def write(self, folder: Path) -> None:
        """Save the objects of `state`."""
        self.fabric.save(folder / FILE, self.state)

    def read(self, folder: Path) -> None:
        """Load what `write` saved."""
        self.fabric.load(folder / FILE, self.state)
