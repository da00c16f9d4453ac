"""All ranks stop after the same optimizer step: the stop flag is reduced with MAX, asynchronously.

A reduction that starts at one check is read at the next, so no step waits for it. The second
element of the tensor carries rank 0's wish for the distance between checks, in steps.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from trainer.stop import StopSignal

CHECK_INTERVAL_S = 0.05
MAX_INTERVAL_STEPS = 1000


class StopAgreement:
    """Whether the ranks agreed to stop; every rank asks at every step boundary."""

    def __init__(self, stop: StopSignal, interval_steps: int | str, device: torch.device) -> None:
        self._stop = stop
        self._fixed = None if interval_steps == "auto" else int(interval_steps)
        self._device = device
        self._next_step = 0
        self._interval = self._fixed or 1
        self._pending: _Reduction | None = None
        self._agreed = False
        self._last_check: tuple[float, int] | None = None

    def check(self, step: int, wait: bool) -> bool:
        """Whether to stop before `step`; `wait` settles it now, with no reduction left behind."""
        if wait:
            self._collect()
            self._start(step)
            self._collect()
            self._last_check = None
            self._next_step = step + 1
        elif step >= self._next_step:
            self._collect()
            self._start(step)
            self._next_step = step + self._interval
        return self._agreed

    def _start(self, step: int) -> None:
        wish = self._wish(step) if dist.get_rank() == 0 else 0
        self._pending = _Reduction([int(self._stop.requested), wish], self._device)

    def _collect(self) -> None:
        if self._pending is not None:
            flag, self._interval = self._pending.result()
            self._agreed = self._agreed or bool(flag)
            self._pending = None

    def _wish(self, step: int) -> int:
        if self._fixed is not None:
            return self._fixed
        now, last = time.monotonic(), self._last_check
        self._last_check = (now, step)
        if last is None or step <= last[1]:
            return self._interval
        step_s = (now - last[0]) / (step - last[1])
        return max(1, min(MAX_INTERVAL_STEPS, round(CHECK_INTERVAL_S / max(step_s, 1e-6))))


class _Reduction:
    """One MAX over all ranks on its way; on a GPU nothing but `result` waits for the device."""

    def __init__(self, values: list[int], device: torch.device) -> None:
        self._host = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._event: torch.cuda.Event | None = None
        self._work: dist.Work | None = None
        if device.type == "cuda":
            tensor = self._host.to(device, non_blocking=True)
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
            # Makes the stream wait for NCCL, not the host; the event says when the copy is done.
            work.wait()
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._work = dist.all_reduce(self._host, dist.ReduceOp.MAX, async_op=True)

    def result(self) -> list[int]:
        """The reduced values, waiting for them if need be."""
        if self._work is not None:
            self._work.wait()
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()
