"""Rank 0's reports on the training: log lines, metrics.jsonl and progress.json."""

import contextlib
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..contract import files, format_duration, format_metrics, records, training
from ..data.batches import TrainingLength
from ..errors import log, storage
from ..process.run_handle import RankContext

WRITE_S = 1.0  # the shortest time between two writes of progress.json


class Reporter:
    """Writes rank 0's files and log lines, from `step` on.

    metrics_bytes: size of metrics.jsonl in the loaded checkpoint; longer files are cut to it.
    progress: takes each finished step.
    `epoch` is the present epoch, from 1, in metrics.jsonl and in the log. In progress.json
    it is the number of finished epochs. Methods raise StorageError where metrics.jsonl cannot be
    written.
    """

    def __init__(
        self, context: RankContext, length: TrainingLength, step: int, metrics_bytes: int
    ) -> None:
        run = context.run
        self._context, self._length = context, length
        self._path = run.dir.metrics
        with storage(f"opening {self._path}"):
            self._metrics = open_cut(self._path, metrics_bytes)
            if metrics_bytes > self._metrics.tell():
                log(f"warning: {self._path} is shorter than when the checkpoint was saved")
        self.progress = Progress(run.dir.progress, step)
        epoch = step // length.steps_per_epoch
        self.progress.update(total=length.total_steps, epochs=length.epochs, epoch=epoch)
        self._last_line = time.monotonic()
        self.restart_clock(step)
        self._epoch_began, self._epoch_first = time.monotonic(), step
        # What a plugin measures at a log line, by name, beside these samples/s.
        self.more: Callable[[float], dict[str, float]] = lambda samples_per_s: {}

    def restart_clock(self, step: int) -> None:
        """Exclude the time until now, of an evaluation or a save, from the measured speed."""
        self._clock, self._clock_step = time.monotonic(), step

    def report_training(
        self, step: int, means: dict[str, float], lr: float, data_wait_s: float
    ) -> None:
        """Report the steps since the last such report.

        means: train_loss and the objective's metrics. data_wait_s: the seconds in which the
        training waited for a batch.
        """
        length, now = self._length, time.monotonic()
        self._record({"step": step, "epoch": length.epoch_of(step), **means, "lr": lr})
        samples = length.samples(step) - length.samples(self._clock_step)
        samples_per_s = samples / max(now - self._clock, 1e-9)
        samples_left = length.samples(length.total_steps) - length.samples(step)
        eta_s = max(0.0, samples_left / samples_per_s) if samples else 0.0
        data_wait = min(1.0, data_wait_s / max(now - self._last_line, 1e-9))
        self._last_line = now
        self.restart_clock(step)
        time_left = format_duration(eta_s, 2)
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux: KiB
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            peak_bytes = torch.cuda.max_memory_allocated()
        speed = {"samples_per_s": samples_per_s, **self.more(samples_per_s)}
        pace = f"{format_metrics(speed)}  {time_left} left"
        use = f"data {data_wait:.0%}  mem {peak_bytes / 2**30:.1f} GiB"
        log(f"{self._where(step)}  {format_metrics(means)}  lr {lr:.3g}  {pace}  {use}")
        fields = {"epoch": step // length.steps_per_epoch, "loss": means["train_loss"]}
        self.progress.update(lr=lr, speed=speed, eta_s=round(eta_s), **fields)
        shown = {**speed, "data_wait": data_wait}
        for each in self._context.watchers:
            each.reported(step, {**means, "lr": lr, **shown})

    def epoch_done(self, step: int, means: dict[str, float], lr: float) -> None:
        """Log the end of an epoch: its time and its means. means: as for `report_training`."""
        now, length = time.monotonic(), self._length
        seconds = format_duration(now - self._epoch_began, 2)
        whole = step - self._epoch_first >= length.steps_per_epoch
        where = f"epoch {length.epoch_of(step)}/{length.epochs}"
        took = f"took {seconds}" if whole else f"ended after {seconds} in this attempt"
        log(f"{where} {took}  {format_metrics(means)}  lr {lr:.3g}")
        self._epoch_began, self._epoch_first = now, step

    def report_evaluation(self, step: int, means: dict[str, float]) -> None:
        """Report a held-out evaluation. means: eval_loss and the objective's metrics."""
        self._record({"step": step, "epoch": self._length.epoch_of(step), **means})
        log(f"{self._where(step)}  {format_metrics(means)}")
        epoch = step // self._length.steps_per_epoch
        metrics = [(name, value) for name, value in means.items() if name != "eval_loss"]
        # A few: the live line has one line.
        shown = metrics[:4] or [("eval_loss", means["eval_loss"])]
        self.progress.update(epoch=epoch, metrics=dict(shown))
        for each in self._context.watchers:
            each.reported(step, means)
        self.restart_clock(step)

    def sync(self) -> int:
        """Flush metrics.jsonl to the disk; return its size in bytes for the checkpoint."""
        self.progress.flush()
        with storage(f"writing {self._path}"):
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
            return self._metrics.tell()

    def close(self) -> None:
        self.progress.flush()
        with storage(f"closing {self._path}"):
            self._metrics.close()

    def _record(self, record: dict[str, Any]) -> None:
        with storage(f"writing {self._path}"):
            self._metrics.write((json.dumps(record) + "\n").encode())
            self._metrics.flush()

    def _where(self, step: int) -> str:
        length = self._length
        return f"step {step}/{length.total_steps}  epoch {length.epoch_of(step)}/{length.epochs}"


def open_cut(path: Path, num_bytes: int) -> BinaryIO:
    """Replace a file by its first `num_bytes` bytes; return the new file, open for appending.

    Lines after the checkpoint belong to steps that are done again; without the cut they would
    appear twice. An earlier attempt may be alive on a node that was cut off: it continues to write
    to the old file, which has no name any more.
    """
    kept = b""
    with contextlib.suppress(FileNotFoundError), files.open_binary(path) as old:
        kept = old.read(num_bytes)
    with files.replacing(path) as temporary:
        file = open(temporary, "xb")  # noqa: SIM115 (open for the whole run)
        file.write(kept)
        file.flush()
        os.fsync(file.fileno())
    return file


class Progress:
    """progress.json, which is only shown and counted; replaced at most once a second.

    After a kill its step shows how many steps are done twice; those of the last second may be
    missing. No error of it ends a training.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self._path, self._next_write = path, 0.0
        self._fields: dict[str, Any] = {"step": step}

    def update(self, **fields: Any) -> None:
        """Take these fields of `training.Progress`; the other fields keep their values."""
        self._fields |= fields
        if time.monotonic() >= self._next_write:
            self.flush()

    def flush(self) -> None:
        self._next_write = time.monotonic() + WRITE_S
        with contextlib.suppress(OSError), files.replacing(self._path) as temporary:
            temporary.write_text(records.text(training.Progress(**self._fields)))
