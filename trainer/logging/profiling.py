"""Writes traces of torch's profiler for the steps and ranks of the spec's `profile` section."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..contract import write_atomic
from ..errors import log
from ..process.run_handle import RunHandle

TABLE_ROWS = 30


class Tracer:
    """Traces those steps of `profile.steps` that this attempt does, on one rank."""

    def __init__(self, run: RunHandle, rank: int, device: torch.device) -> None:
        requested = run.spec.profile
        is_traced = bool(requested.steps) and rank in requested.ranks
        self._first, self._last = requested.steps if is_traced else (1, 0)
        self._name = f"attempt-{run.attempt}-rank-{rank:05d}"
        self._dir = run.dir.profile
        self._activities = [ProfilerActivity.CPU]
        self._sort_by = "self_cpu_time_total"
        if device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
            self._sort_by = "self_cuda_time_total"
        self._profile: Any = None
        self._from = self._to = 0

    def before(self, step: int) -> None:
        """Start tracing where due. Call right before optimizer step `step`, from 1."""
        if self._first <= step <= self._last and self._profile is None:
            self._from, self._to = step, step
            self._profile = profile(
                activities=self._activities,
                record_shapes=True,
                with_stack=True,
                profile_memory=True,
            )
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
        self._first, self._last = 1, 0
        # TensorBoard's profiler plugin looks for files with this ending.
        path = self._dir / f"{self._name}-steps-{self._from}-{self._to}.pt.trace.json.gz"
        table = path.with_name(path.name.replace(".pt.trace.json.gz", ".txt"))
        try:
            traced.stop()
            _export(traced, path)
            averages = traced.key_averages(group_by_input_shape=True)
            write_atomic(table, averages.table(sort_by=self._sort_by, row_limit=TABLE_ROWS))
        except (OSError, RuntimeError) as error:
            log(f"warning: no trace of steps {self._from} to {self._to}: {error}")
        else:
            log(
                f"trace of steps {self._from} to {self._to}: {path}; the slowest operators: {table}"
            )


def _export(traced: Any, path: Path) -> None:
    """Write a Chrome trace to a temporary file, then rename it to `path`.

    Not jobs.rundir.write_atomic, because torch writes the file by itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    traced.export_chrome_trace(str(temporary))
    os.replace(temporary, path)
