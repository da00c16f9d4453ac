"""What the trainer finds in this room."""

from __future__ import annotations

from typing import Any


def parts(key: str) -> dict[str, Any]:
    """Return what reads batches ahead."""
    if key != "workers":
        return {}
    from .processes import WorkerLoader  # the import of multiprocessing's parts takes time

    return {"read_ahead": WorkerLoader}
