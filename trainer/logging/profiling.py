"""Writes traces of torch's profiler for the steps and ranks of the spec's `profile` section."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..errors import log
from ..process.run_handle import RunHandle


class Tracer:
    """Traces those steps of `profile.steps` that this attempt does, on one rank."""

    def __init__(self, run: RunHandle, rank: int, device: torch.device) -> None:
        requested = run.spec.profile
        is_traced = bool(requested.steps) and rank in requested.ranks
        self._first, self._last = requested.steps if is_traced else (1, 0)
        self._name = f"attempt-{run.attempt}-rank-{rank:05d}"
        self._dir = run.dir.profile
        gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
        self._activities = [ProfilerActivity.CPU, *gpu]
        self._profile: Any = None
        self._from = self._to = 0

    def before(self, step: int) -> None:
        """Start tracing where due. Call right before optimizer step `step`, from 1."""
        if self._first <= step <= self._last and self._profile is None:
            self._from = step
            self._profile = profile(activities=self._activities, record_shapes=True)
            self._profile.start()

    def after(self, step: int) -> None:
        """Write the trace after its last step. Call right after optimizer step `step`."""
        if self._profile is not None:
            self._to = step
            if step >= self._last:
                self.close()

    def close(self) -> None:
        """Write the trace of the steps so far, if any; an error is only a warning in the log."""
        if self._profile is None:
            return
        traced, self._profile = self._profile, None
        # TensorBoard's profiler plugin looks for files with this ending.
        path = self._dir / f"{self._name}-steps-{self._from}-{self._to}.pt.trace.json.gz"
        try:
            traced.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            log(f"warning: no trace of steps {self._from} to {self._to}: {error}")
        else:
            log(f"trace of steps {self._from} to {self._to}: {path}")
