"""All ranks stop or save after the same optimizer step, by an asynchronous MAX over all ranks.

A reduction that starts at one check is read at the next one, so no step waits for it. It carries
the stop flag of every rank and how far it is with its part of a save, and from rank 0 whether to
save now and after how many steps the next check comes.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
import torch.distributed as dist

from .stop import StopSignal

CHECK_INTERVAL_S = 0.05
MAX_INTERVAL_STEPS = 128  # an upper bound, because steps may become slower


class Agreement(NamedTuple):
    """Whether all ranks stop, and whether they save, before the next step.

    written_step: the lowest of all ranks, some checks ago.
    """

    stop: bool
    save: bool
    written_step: int = -1


class StepAgreement:
    """Finds what all ranks agree on; every rank calls `check` before the same steps.

    next_step: the step before which the next `check` does anything.
    """

    def __init__(self, stop: StopSignal, interval_steps: int | str, device: torch.device) -> None:
        self._stop = stop
        self._fixed = None if interval_steps == "auto" else int(interval_steps)
        self._device = device
        self.next_step = 0
        self._interval = self._fixed or 1
        self._pending: _Reduction | None = None
        self._is_stopping = False
        self._written_step = -1
        self._last_check: tuple[float, int] | None = None

    def check(self, step: int, wants_save: bool, drain: bool, written_step: int = -1) -> Agreement:
        """Return what the ranks agree on before `step`, by the reduction of the last check.

        `drain` waits for this check's own reduction and leaves none in flight. `wants_save` counts
        on rank 0 only. written_step: of the newest save of which this rank has written its part.
        """
        save = False
        if drain or step >= self.next_step:
            save = self._collect()
            self._start(step, wants_save and not save, written_step)
            self.next_step = step + self._interval
        if drain:
            save = self._collect() or save
            self._last_check = None
            self.next_step = step + 1
        return Agreement(self._is_stopping, save, self._written_step)

    def for_evaluation(self) -> StepAgreement:
        """Return a StepAgreement on the same stop flag, whose "steps" are an evaluation's batches.

        This one must have no reduction in flight. The ranks check before every batch: batches
        arrive in bursts, so a learned interval would be too long.
        """
        return StepAgreement(self._stop, 1, self._device)

    def _start(self, step: int, wants_save: bool, written_step: int) -> None:
        is_first = dist.get_rank() == 0
        of_first = [int(wants_save), self._distance(step)] if is_first else [0, 0]
        # The MAX of negative numbers finds the lowest step.
        values = [int(self._stop.requested), *of_first, -written_step]
        self._pending = _Reduction(values, self._device)

    def _collect(self) -> bool:
        """Read the reduction in flight, if there is one; return whether to save."""
        if self._pending is None:
            return False
        stop, save, self._interval, written = self._pending.result()
        self._written_step = -written
        self._is_stopping = self._is_stopping or bool(stop)
        self._pending = None
        return bool(save)

    def _distance(self, step: int) -> int:
        """Return the steps to the next check: as configured, or about CHECK_INTERVAL_S of them."""
        if self._fixed is not None:
            return self._fixed
        now, last = time.monotonic(), self._last_check
        self._last_check = (now, step)
        if last is None or step <= last[1]:
            return self._interval
        step_s = (now - last[0]) / (step - last[1])
        return max(1, min(MAX_INTERVAL_STEPS, round(CHECK_INTERVAL_S / max(step_s, 1e-6))))


class _Reduction:
    """One MAX over all ranks in flight; on a GPU only `result` waits for the device."""

    def __init__(self, values: list[int], device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        self._work: dist.Work | None = None
        is_alone = dist.get_world_size() == 1
        is_on_gpu = device.type == "cuda" and not is_alone
        self._host = torch.tensor(values, dtype=torch.int64, pin_memory=is_on_gpu)
        if is_on_gpu:
            tensor = self._host.to(device, non_blocking=True)
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
            # Makes the stream wait for NCCL, not the host; the event marks the end of the copy.
            work.wait()
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        elif not is_alone:
            self._work = dist.all_reduce(self._host, dist.ReduceOp.MAX, async_op=True)

    def result(self) -> list[int]:
        """Return the reduced values; waits until they have arrived."""
        if self._work is not None:
            self._work.wait()
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()
