"""What rank 0 tells of the training: `metrics.jsonl`, `progress`, and lines in its log."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any

from jobs.rundir import PROGRESS_STEP_WIDTH, RunDir

STATUS_WIDTH = 500


@dataclass(frozen=True)
class Plan:
    """How long the whole training is."""

    total_steps: int
    steps_per_epoch: int
    epochs: int
    global_batch_size: int


class Reporter:
    """Rank 0's files and log lines, from `step` on. An `epoch` there counts finished epochs."""

    def __init__(self, run_dir: RunDir, plan: Plan, step: int, metrics_bytes: int) -> None:
        self._plan = plan
        self._metrics = open(run_dir.metrics, "ab")  # noqa: SIM115 (open for the whole run)
        # Lines after the checkpoint belong to steps that are done again: nothing appears twice.
        if metrics_bytes < self._metrics.tell():
            self._metrics.truncate(metrics_bytes)
        elif metrics_bytes > self._metrics.tell():
            print(f"warning: {run_dir.metrics} lost lines that the checkpoint knew", flush=True)
        self._progress = os.open(run_dir.progress, os.O_WRONLY | os.O_CREAT, 0o666)
        self._status: dict[str, Any] = {"total": plan.total_steps, "epochs": plan.epochs}
        self.restart_clock(step)
        self.step_done(step)
        self._write_status(epoch=step // plan.steps_per_epoch)

    def restart_clock(self, step: int) -> None:
        """Measure the speed from now on, so that it does not count an evaluation or a save."""
        self._clock = (time.monotonic(), step)

    def step_done(self, step: int) -> None:
        """Overwrite the finished step in place: after a kill it tells how many are redone."""
        os.pwrite(self._progress, f"{step:0{PROGRESS_STEP_WIDTH}d}\n".encode(), 0)

    def trained(self, step: int, loss: float, lr: float) -> None:
        """A line about the steps since the last such line."""
        epoch = step // self._plan.steps_per_epoch
        self._record({"step": step, "epoch": epoch, "train_loss": loss, "lr": lr})
        now = time.monotonic()
        step_s = (now - self._clock[0]) / max(1, step - self._clock[1])
        self._clock = (now, step)
        speed = self._plan.global_batch_size / max(step_s, 1e-9)
        eta_s = step_s * (self._plan.total_steps - step)
        print(
            f"{self._where(step)}  loss {loss:.4f}  lr {lr:.3g}  {speed:.0f} samples/s  "
            f"{eta_s:.0f} s left",
            flush=True,
        )
        fields = {"loss": loss, "lr": lr, "samples_per_s": round(speed, 1), "eta_s": round(eta_s)}
        self._write_status(epoch=epoch, **fields)

    def evaluated(self, step: int, loss: float, accuracy: float) -> None:
        """A line about a held-out evaluation."""
        epoch = step // self._plan.steps_per_epoch
        values = {"eval_loss": loss, "eval_accuracy": accuracy}
        self._record({"step": step, "epoch": epoch, **values})
        print(f"{self._where(step)}  held-out accuracy {accuracy:.2%}  loss {loss:.4f}", flush=True)
        self._write_status(epoch=epoch, accuracy=accuracy)
        self.restart_clock(step)

    def sync(self) -> int:
        """Make the metrics durable; their size in bytes, which a checkpoint remembers."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return self._metrics.tell()

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()
        os.close(self._progress)

    def _record(self, record: dict[str, Any]) -> None:
        self._metrics.write((json.dumps(record) + "\n").encode())
        self._metrics.flush()

    def _write_status(self, **fields: Any) -> None:
        self._status.update(fields)
        keys = ("total", "epoch", "epochs", "loss", "accuracy", "samples_per_s", "eta_s", "lr")
        text = json.dumps({key: self._status.get(key) for key in keys})
        os.pwrite(self._progress, f"{text:<{STATUS_WIDTH - 1}}\n".encode(), PROGRESS_STEP_WIDTH + 1)

    def _where(self, step: int) -> str:
        plan = self._plan
        epoch = (step - 1) // plan.steps_per_epoch + 1
        return f"step {step}/{plan.total_steps}  epoch {epoch}/{plan.epochs}"
