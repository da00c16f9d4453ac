"""What the trainer finds in this plugin."""

from typing import Any


def parts(key: str) -> dict[str, Any]:
    """Return what reads samples by number, and what makes batches of a stream."""
    if key != "samples":
        return {}
    from .by_sample import PerSample
    from .stream import StreamBatches

    return {"by_sample": PerSample, "stream": StreamBatches}
