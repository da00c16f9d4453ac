"""For a loop of one's own with Lightning's Fabric: it stops, saves and resumes whole."""

from __future__ import annotations

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
        super().__init__(
            total,
            lambda folder: fabric.save(folder / FILE, state),
            lambda folder: fabric.load(folder / FILE, state),
            **options,
        )
