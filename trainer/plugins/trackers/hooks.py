"""Sends the values of `metrics.jsonl` to TensorBoard and Weights & Biases, if the spec says so.

Both are optional packages; only rank 0 imports them. A tracker runs on its own thread: the training
waits neither for its disk nor for its network, and continues without it after any error.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...contract import installation
from ...errors import UserError, log
from ...hooks import Callback
from ...process.watcher import Pulse

if TYPE_CHECKING:  # they import torch
    from ...process.run_handle import RunHandle
    from ...training.loop import Loop

CLOSE_LIMIT_S = 10.0  # of each tracker; a stop must fit into the grace that Slurm gives
WANDB_INIT_LIMIT_S = 60.0
FLUSH_EVERY_S = 1.0
MAX_WAITING = 10_000  # lines that a tracker may lag behind
Recorder = tuple[Callable[[int, Mapping[str, float]], None], Callable[[], None]]


def callbacks(pulse: Pulse) -> list[Callback]:
    """Return the trackers of a rank; only those of rank 0 do anything."""
    # W&B sends its own errors to a host on the internet, even offline. Only this variable, set
    # before the import, prevents that.
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    return [TensorBoard(), WeightsAndBiases()]


class Tracker(Callback):
    """A destination of metrics by step, on its own thread until its first error.

    off: the override of the spec without it; before the = its key. package: what pip installs.
    """

    name: str
    off: str
    package: str
    module: str

    def __init__(self) -> None:
        self.is_on = False
        self._waiting = queue.Queue[tuple[int, Mapping[str, float]] | None](MAX_WAITING)

    def restored(self, loop: Loop) -> None:
        """Start on rank 0. Raises: UserError where the package is missing."""
        if loop.distributed.is_first:
            self.start(loop.context.run, loop.state.global_step + 1)

    def start(self, run: RunHandle, first_step: int) -> None:
        """Start the thread, if the spec has this tracker; a warning where that fails.

        first_step: the first global step of this attempt. Raises: UserError.
        """
        key, _, off = self.off.partition("=")
        if getattr(run.spec.log, key.removeprefix("log.")) in (False, off):
            return
        try:
            module = importlib.import_module(self.module)
            self._record, self._close = self._open(module, run, first_step)
        except ImportError as error:
            raise UserError(
                f"{key} needs the package {self.package} (an extra of pyproject.toml): {error}; "
                f"pip install {self.package}, or set {self.off}"
            ) from None
        except Exception as error:  # also of the import: a protobuf that it does not know
            self._give_up(error)
            return
        self.is_on = True
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def reported(self, step: int, values: Mapping[str, float]) -> None:
        """Queue these values of a global step; returns at once."""
        if self.is_on:
            try:
                self._waiting.put_nowait((step, values))
            except queue.Full:
                self._give_up(f"it lags {self._waiting.maxsize} lines behind")

    def end(self) -> None:
        """Wait up to `CLOSE_LIMIT_S` until the tracker has recorded all queued values."""
        if self.is_on:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=CLOSE_LIMIT_S)
            self._thread.join(CLOSE_LIMIT_S)
            if self._thread.is_alive():
                self._give_up(f"it did not finish within {CLOSE_LIMIT_S:.0f} s")

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                self._record(*item)
            self._close()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: object) -> None:
        self.is_on = False
        what = f"{self.name} is off from here on, the training continues without it"
        log(f"warning: {what}: {error}")

    @abstractmethod
    def _open(self, module: Any, run: RunHandle, first_step: int) -> Recorder:
        """Return what records the values of a global step, and what writes out all at the end."""


class TensorBoard(Tracker):
    """Writes event files to RUN_DIR/tensorboard, a new one in each attempt."""

    name, off = "TensorBoard", "log.tensorboard=false"
    package, module = "tensorboard", "torch.utils.tensorboard"

    def _open(self, module: Any, run: RunHandle, first_step: int) -> Recorder:
        # TensorBoard hides the values that earlier attempts wrote for the steps from here on.
        writer = module.SummaryWriter(str(run.dir.tensorboard), purge_step=first_step)

        def record(step: int, values: Mapping[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()  # a kill loses no value

        return record, writer.close


class WeightsAndBiases(Tracker):
    """One W&B run for all attempts; offline, each attempt writes a directory in RUN_DIR/wandb.

    The x axis is global_step and not W&B's own step, which may only grow: after a kill some steps
    are done again, with the same values.
    """

    name, off = "Weights & Biases", "log.wandb=off"
    package = module = "wandb"

    def _open(self, module: Any, run: RunHandle, first_step: int) -> Recorder:
        spec, mode = run.spec, run.spec.log.wandb
        # W&B's default raises KeyboardInterrupt in rank 0: a crash, which would be retried.
        cancel = installation.command("cancel", "...")
        no_stop = f"warning: a stop in W&B does not stop the run: use `{cancel}`"
        run_of_wandb = module.init(
            project=spec.log.wandb_project or spec.name,
            id=run.dir.run_id,
            name=run.dir.run_id,
            dir=str(run.dir.path),
            mode=mode,
            resume="allow",
            # Not the whole spec, because launch.env may hold secrets.
            config=asdict(spec.train),
            settings=module.Settings(
                console="off",  # the run directory has the logs
                disable_git=True,
                silent=mode == "offline",  # the log line below has all that a user needs
                quiet=True,
                init_timeout=WANDB_INIT_LIMIT_S,
                finish_timeout=CLOSE_LIMIT_S / 2,
                stop_fn=lambda: log(no_stop),
                x_transaction_log_flush_interval=FLUSH_EVERY_S,  # the most that a kill may lose
            ),
        )
        run_of_wandb.define_metric("*", step_metric="global_step")
        upload = f"upload it with: wandb sync {run.dir.path}/wandb/offline-run-*"
        log(f"{self.name}: {run_of_wandb.url if mode == 'online' else upload}")

        def record(step: int, values: Mapping[str, float]) -> None:
            run_of_wandb.log({"global_step": step, **values})

        return record, run_of_wandb.finish  # W&B's own process ends with rank 0
