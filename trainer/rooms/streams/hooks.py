"""What the trainer finds in this room."""

from __future__ import annotations

from typing import Any

from .stream import StreamBatches


def parts(key: str) -> dict[str, Any]:
    """Return what makes batches of a stream."""
    return {"batches": StreamBatches} if key == "stream" else {}
